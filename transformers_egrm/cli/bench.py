"""`egrm bench`: judges on the field's benchmarks and on one's own file, compared and reported.

Every benchmark is a command of its own, so that `egrm bench --help` lists them.
"""

import inspect
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from transformers_egrm.cli.options import with_judge_options, with_options
from transformers_egrm.cli.summary import message_console
from transformers_egrm.evaluation.benchmarks import TITLES


EXAMPLES = (
    "egrm bench own --data pairs.jsonl egrm-mini",
    "egrm bench rm-bench --data RM-Bench/data ./judge -o runs/judge --space pointwise",
    "egrm bench llmbar --data LLMBar/Dataset my_judges.py:worth -o runs/mine",
    "egrm bench adversarial ./judge -o runs/attacked",
    "egrm bench diff runs/judge runs/mine",
    "egrm bench report runs/judge runs/mine -o report.html",
)
_JUDGE_HELP = (
    "`egrm-mini`, a folder or a Hub id of an EGRM checkpoint or of a scalar reward model, a Python function as "
    "module:function or file.py:function, or rival:NAME. Without one, the rivals alone are run."
)

app = typer.Typer(
    help="Judges on benchmarks and on your own file: accuracies with intervals, biases, costs and rivals.",
    no_args_is_help=True,
    epilog="\n\n".join(("Examples:", *EXAMPLES)),
)


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """How a benchmark is run on a judge."""

    data: str = field(metadata={"metavar": "PATH"})
    """A file or folder of records, or the id of a data set: owner/name:split."""
    output: str | None = field(default=None, metadata={"flags": ("--output", "-o"), "metavar": "FOLDER"})
    """Keeps the run, and makes it resumable."""
    label: str | None = field(default=None, metadata={"metavar": "COLUMN"})
    """Own file: the column that holds the truth."""
    map: tuple[str, ...] = field(default=(), metadata={"metavar": "FIELD=COLUMN"})
    """Own file: read a field from another column. Repeatable."""
    subset: tuple[str, ...] = field(default=(), metadata={"metavar": "NAME"})
    """Judge this subset only. Repeatable."""
    limit: int | None = field(default=None, metadata={"min": 1})
    """Judge so many questions only, a share of every subset."""
    orders: Literal["1", "2"] = "2"
    """In how many orders a pair is shown to a judge that sees one at a time."""
    rivals: Literal["cheap", "decision", "none"] = "cheap"
    """Judges to compare with. cheap: those that know nothing. decision: also the judge's generator, without thought."""
    resamples: int = field(default=1000, metadata={"min": 1})
    """Of the bootstrap that gives the intervals."""
    space: Literal["pointwise", "binary", "pairwise", "listwise", "free"] | None = None
    """Verdict space of an EGRM judge. Default: the checkpoint's."""
    low: int | None = None
    """Lowest verdict of a pointwise space."""
    high: int | None = None
    """Highest verdict of a pointwise space."""
    rubric: str | None = field(default=None, metadata={"metavar": "TEXT|@FILE"})
    """How an EGRM judge is to judge."""
    guard: bool = field(default=True, metadata={"flags": ("--guard/--no-guard",)})
    """Whether an EGRM judge's injection guard is on; off shows what it is worth."""
    rationale: bool = False
    """Keep the text of each chain that was believed."""
    explain: bool = field(default=True, metadata={"flags": ("--explain/--no-explain",)})
    """Keep of each reward how it came about: the probes' votes, the candidates with their scores, the operations."""
    batch_size: int = field(default=8, metadata={"min": 1})
    """Records judged at once; no verdict depends on it."""
    processes: int = field(default=1, metadata={"min": 1})
    """Processes that share the work, each with the judge; no verdict depends on it."""
    device: str = "auto"
    """Device of the model: auto, cpu, cuda, cuda:1, mps."""
    dtype: str = "auto"
    """Number format of the generator: auto (the checkpoint's), float32, bfloat16, float16."""
    revision: str | None = None
    """Branch, tag or commit of a model on the Hub."""
    restart: bool = False
    """Start over, and replace an earlier run in the folder."""
    progress: bool | None = None
    """Show a progress bar; by default only on a terminal."""


@with_judge_options()
@with_options(BenchOptions, "bench")
def _run(
    judge: Annotated[str | None, typer.Argument(metavar="[JUDGE]", help=_JUDGE_HELP)] = None,
    *,
    benchmark: str,
    bench: BenchOptions,
    judging: dict[str, Any],
) -> None:
    from transformers_egrm.cli.bench_judges import JudgeRequest, load_in_processes, load_rivals
    from transformers_egrm.evaluation.benchmarks import load_benchmark
    from transformers_egrm.evaluation.benchmarks.reading import Data
    from transformers_egrm.evaluation.report import results_of, write_run
    from transformers_egrm.evaluation.runner import Settings, evaluate

    settings = Settings(seed=judging.get("seed", 0), orders=int(bench.orders), limit=bench.limit,
                        subsets=bench.subset, resamples=bench.resamples)  # fmt: skip
    shared = {one.name: getattr(bench, one.name) for one in fields(JudgeRequest) if hasattr(bench, one.name)}
    request = JudgeRequest(place=judge or "rival:longer", options=judging, **shared)
    loaded = load_in_processes(request, bench.processes)
    run = evaluate(
        load_benchmark(benchmark),
        Data(path=bench.data, label=bench.label, map=bench.map),
        loaded,
        settings=settings,
        folder=bench.output,
        restart=bench.restart,
        progress=typer.get_text_stream("stderr").isatty() if bench.progress is None else bench.progress,
    )
    results = results_of(run, load_rivals(bench.rivals, loaded, settings.seed), _command())
    if bench.output is not None:
        write_run(run, results, bench.output)
    _print(results, bench.output)


def _make(name: str) -> Callable[..., None]:
    """The command of one benchmark: the common one with its name filled in."""

    def command(**arguments: Any) -> None:
        _run(**arguments, benchmark=name)

    signature = inspect.signature(_run)
    kept = [parameter for parameter in signature.parameters.values() if parameter.name != "benchmark"]
    if name == "adversarial":  # it brings questions of its own
        kept = [one.replace(default="") if one.name == "data" else one for one in kept]
    command.__signature__ = signature.replace(parameters=kept)  # pyright: ignore[reportFunctionMemberAccess]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in kept}
    return command


for _name, _title in TITLES.items():
    app.command(_name, help=f"{_title}.", rich_help_panel="Benchmarks")(_make(_name))


@app.command(rich_help_panel="Runs")
def diff(
    first: Annotated[Path, typer.Argument(help="Folder of a run.")],
    second: Annotated[Path, typer.Argument(help="Folder of another run of the same benchmark.")],
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write Markdown here instead of stdout.")
    ] = None,
) -> None:
    """Which of two judges is better, by McNemar's test and a paired bootstrap."""
    from transformers_egrm.evaluation.comparing import difference, markdown
    from transformers_egrm.evaluation.report import read_run, write_text

    text = markdown(difference(read_run(first), read_run(second)))
    if output is None:
        sys.stdout.write(text)
    else:
        write_text(output, text)


@app.command(rich_help_panel="Runs")
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs, or outputs of `egrm score` and `egrm compare`.")
    ],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.")] = Path("report.html"),
) -> None:
    """One self-contained HTML page: tables, charts, and every item with how it was judged."""
    from transformers_egrm.evaluation.page import read_any, render
    from transformers_egrm.evaluation.report import write_text

    write_text(output, render([read_any(run) for run in runs]))
    message_console().print(f"Written to {output}.", markup=False, soft_wrap=True)


def _print(results: dict[str, Any], output: str | None) -> None:
    from rich.markup import escape
    from rich.table import Table

    from transformers_egrm.evaluation.report import beaten_by, percent

    console = message_console()
    headline, first = results["headline"], results["tables"][0]
    title = f"{results['benchmark']['title']}: {results['judge']['name']}, %"
    table = Table(title=escape(title), title_justify="left")
    table.add_column("")
    for column in ("n", *first["columns"]):
        table.add_column(column, justify="right")
    for part in first["rows"]:
        table.add_row(escape(part["label"]), str(part["n"]), *map(percent, part["values"]))
    console.print(table)
    figures = results["figures"]
    counts = ", ".join(f"{count} {name}" for name, count in figures["outcomes"].items())
    console.print(f"{figures['comparisons']} comparisons: {counts}.", markup=False, soft_wrap=True)
    for note in results["notes"]:
        console.print(f"Note: {note}", markup=False, soft_wrap=True)
    if results["rivals"]:
        console.print(beaten_by(results).replace("**", ""), markup=False, soft_wrap=True)
    console.print(
        f"{headline['name']}: {percent(headline)} %, with 95 % interval", style="bold", markup=False, soft_wrap=True
    )
    if output is not None:
        console.print(f"Written to {output}: report.md, results.json, items.jsonl.", markup=False, soft_wrap=True)


def _command() -> str:
    return shlex.join(["egrm", *sys.argv[1:]]) if sys.argv[1:2] == ["bench"] else "egrm bench"


__all__ = ["EXAMPLES", "BenchOptions", "app", "diff", "report"]
