"""`egrm bench`: judges on the field's benchmarks and on one's own file, compared and reported.

Every benchmark is a command of its own, so that `egrm bench --help` lists them.
"""

import inspect
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from transformers_egrm.cli.options import with_judge_options
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
_KINDS = Literal["pointwise", "binary", "pairwise", "listwise", "free"]

app = typer.Typer(
    help="Judges on benchmarks and on your own file: accuracies with intervals, biases, costs and rivals.",
    no_args_is_help=True,
    epilog="\n\n".join(("Examples:", *EXAMPLES)),
)


def _run(
    data: Annotated[str, typer.Option(help="A file or folder of records, or a data set's id: owner/name:split.")],
    judge: Annotated[str | None, typer.Argument(metavar="[JUDGE]", help=_JUDGE_HELP)] = None,
    *,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Folder of the run; it makes the run resumable.")] = None,
    label: Annotated[str | None, typer.Option(help="Own file: the column that holds the truth.")] = None,
    map: Annotated[list[str] | None, typer.Option(metavar="FIELD=COLUMN", help="Own file: read a field from another column. Repeatable.")] = None,
    space: Annotated[_KINDS | None, typer.Option(help="Verdict space of an EGRM judge; default: the checkpoint's.")] = None,
    low: Annotated[int | None, typer.Option(help="Lowest verdict of a pointwise space.")] = None,
    high: Annotated[int | None, typer.Option(help="Highest verdict of a pointwise space.")] = None,
    rubric: Annotated[str | None, typer.Option(metavar="TEXT|@FILE", help="How an EGRM judge is to judge.")] = None,
    orders: Annotated[int, typer.Option(min=1, max=2, help="Orders of a pair that are asked of a judge that sees one at a time.")] = 2,
    limit: Annotated[int | None, typer.Option(min=1, help="Judge so many questions only, a share of every subset.")] = None,
    subset: Annotated[list[str] | None, typer.Option(help="Judge this subset only. Repeatable.")] = None,
    rivals: Annotated[Literal["cheap", "decision", "none"], typer.Option(help="Judges to compare with: those that cost nothing; also the same generator asked for a decision; none.")] = "cheap",
    resamples: Annotated[int, typer.Option(min=1, help="Of the bootstrap behind the intervals.")] = 1000,
    batch_size: Annotated[int, typer.Option(min=1, help="Records judged at once; no verdict depends on it.")] = 8,
    processes: Annotated[int, typer.Option(min=1, help="Processes that share the work, each with the judge; no verdict depends on it.")] = 1,
    device: Annotated[str, typer.Option(help="Device of the model: auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="Number format of the generator.")] = "auto",
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a model on the Hub.")] = None,
    rationale: Annotated[bool, typer.Option(help="Keep the text behind each verdict.")] = False,
    guard: Annotated[bool, typer.Option("--guard/--no-guard", help="Whether an EGRM judge's injection guard is on; off shows what it is worth.")] = True,
    restart: Annotated[bool, typer.Option(help="Start over, and replace an earlier run in the folder.")] = False,
    progress: Annotated[bool | None, typer.Option("--progress/--no-progress", help="Show a progress bar.")] = None,
    judging: dict[str, Any],
    benchmark: str,
) -> None:  # fmt: skip
    from transformers_egrm.cli.bench_judges import JudgeRequest, load_in_processes, load_rivals
    from transformers_egrm.evaluation.benchmarks import load_benchmark
    from transformers_egrm.evaluation.benchmarks.reading import Data
    from transformers_egrm.evaluation.report import results_of, write_run
    from transformers_egrm.evaluation.runner import Settings, evaluate

    settings = Settings(
        seed=judging.get("seed", 0), orders=orders, limit=limit, subsets=tuple(subset or ()), resamples=resamples
    )
    request = JudgeRequest(
        judge or "rival:longer", space=space, low=low, high=high, rubric=rubric, batch_size=batch_size, device=device,
        dtype=dtype, revision=revision, rationale=rationale,
        guard=guard, options=judging,
    )  # fmt: skip
    loaded = load_in_processes(request, processes)
    run = evaluate(
        load_benchmark(benchmark),
        Data(path=data, label=label, map=tuple(map or ())),
        loaded,
        settings=settings,
        folder=output,
        restart=restart,
        progress=typer.get_text_stream("stderr").isatty() if progress is None else progress,
    )
    results = results_of(run, load_rivals(rivals, loaded, settings.seed), _command())
    if output is not None:
        write_run(run, results, output)
    _print(results, output)


def _make(name: str) -> Callable[..., None]:
    """The command of one benchmark: the common one with its name filled in."""
    common = with_judge_options()(_run)

    def command(**arguments: Any) -> None:
        common(**arguments, benchmark=name)

    signature = inspect.signature(common)
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
    from rich.table import Table

    from transformers_egrm.evaluation.report import beaten_by, percent

    console = message_console()
    headline, first = results["headline"], results["tables"][0]
    table = Table(title=f"{results['benchmark']['title']}: {results['judge']['name']}, %", title_justify="left")
    table.add_column("")
    for column in ("n", *first["columns"]):
        table.add_column(column, justify="right")
    for part in first["rows"]:
        table.add_row(part["label"], str(part["n"]), *map(percent, part["values"]))
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


__all__ = ["EXAMPLES", "app", "diff", "report"]
