"""Command line options that several commands share, each written once.

The judging options are the fields of `JudgeOptions`: name, type and help text are read from the class, so that a new
field is a new option of every command. `RunOptions` and what a single command takes are declared the same way.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache, wraps
from itertools import pairwise
from typing import Annotated, Any, Literal, get_type_hints

import typer

from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.judge_options_egrm import (
    CallOptions,
    ChainOptions,
    ConsensusOptions,
    DraftingOptions,
    JudgeOptions,
    LadderOptions,
)


# Shorter spellings, in addition to the field's own name.
_ALIASES = {"consensus_threshold": "--tau", "num_chains": "--chains", "timeout_s": "--timeout"}
CALL_ONLY_OPTIONS = frozenset(option.name for option in fields(CallOptions))
"""Judging options that belong to a call and have no default in the checkpoint, such as the seed."""
_GROUPS = {
    LadderOptions: "Short verdicts",
    ConsensusOptions: "Agreement",
    ChainOptions: "Chains of thought",
    DraftingOptions: "Drafts",
    CallOptions: "Judging",
}
"""Heading of each group of judging options in a help text."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How records are read, judged in batches, and written."""

    output: str = field(default="-", metadata={"flags": ("--output", "-o"), "panel": "Records"})
    """Where results go, .jsonl, .csv or .parquet; - writes JSONL to stdout, without resume."""
    map: tuple[str, ...] = field(default=(), metadata={"metavar": "FIELD=COLUMN", "panel": "Records"})
    """Read a field from a column of another name, such as prompt=input; nested columns as a.b. Repeatable."""
    keep: tuple[str, ...] = field(default=(), metadata={"metavar": "COLUMN", "panel": "Records"})
    """Copy an input column into the output, such as a label; nested columns as a.b. Repeatable."""
    limit: int | None = field(default=None, metadata={"min": 1, "metavar": "N", "panel": "Records"})
    """Judge the first N records only."""
    rubric: str | None = field(default=None, metadata={"metavar": "TEXT|@FILE", "panel": "Prompts"})
    """How to judge, for records without a `rubric` of their own; default: the checkpoint's."""
    verdict_format: Literal["verdict", "boxed", "double_bracket", "result", "json"] | None = field(
        default=None, metadata={"panel": "Prompts"}
    )
    """How the judge writes a verdict: as Verdict: 7, in a box, as [[7]], as [RESULT] 7 or as JSON; default: the checkpoint's."""
    max_prompt_tokens: int | None = field(default=None, metadata={"min": 1, "panel": "Prompts"})
    """Longest judge prompt; default: the checkpoint's."""
    truncation: Literal["error", "keep_ends"] | None = field(default=None, metadata={"panel": "Prompts"})
    """What happens to longer ones: error refuses them, keep_ends cuts the middle; default: the checkpoint's."""
    batch_size: int = field(default=8, metadata={"min": 1})
    """Most records judged at once; fewer where padding would be more than a tenth of what is run."""
    batch_tokens: int | None = field(default=None, metadata={"min": 1})
    """Most prompts judged at once times the longest of them, in tokens; by default no limit."""
    reorder_window: int | None = field(default=None, metadata={"min": 1})
    """Most records in flight while input order is restored; by default eight batches or more."""
    rationale: bool = False
    """Add the text of each chain that was believed to the output."""
    explain: bool = False
    """Add to each row how its reward came about: probes, distribution, candidates with scores, and cost."""
    draft: str | None = field(default=None, metadata={"metavar": "MODEL"})
    """Small language model with the generator's tokenizer that drafts the chains: a folder, a .gguf file or a Hub id."""
    cache: str | None = field(default=None, metadata={"metavar": "FILE.db"})
    """Where verdicts are kept, and looked for before anything is judged; by default nowhere."""
    url: str | None = field(default=None, metadata={"metavar": "URL"})
    """Ask a server that egrm serve started with the same MODEL, instead of loading it here."""
    engine: str | None = field(default=None, metadata={"metavar": "URL"})
    """Let the generator run on a server: vLLM, SGLang, TensorRT-LLM, llama.cpp, transformers serve. The rest runs here."""
    device: str = "auto"
    """Device of the model: auto, cpu, cuda, cuda:1, mps."""
    dtype: str = "auto"
    """Number format of the generator: auto (the checkpoint's), float32, bfloat16, float16."""
    revision: str | None = None
    """Branch, tag or commit of a model on the Hub."""
    summary: str | None = field(default=None, metadata={"metavar": "FILE.json"})
    """Write the summary as JSON too."""
    restart: bool = False
    """Start over, and replace what an earlier run wrote to the output."""
    retry_failed: bool = False
    """Judge the records again that have no verdict in a finished output; another --timeout may be given."""
    allow_failures: bool = False
    """Exit with 0 even where no record could be judged."""
    progress: bool | None = None
    """Show a progress bar; by default only on a terminal."""


def with_options(
    cls: type, receives: str, panel: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the fields of a dataclass as options; it receives an instance.

    Args:
        cls: The dataclass; the docstring under each field is its help text.
        receives: The command's argument that takes the instance.
        panel: Heading of the options in the help text; None: that of all others.
    """
    parameters = [_parameter(option, cls, panel) for option in fields(cls)]
    lists = [option.name for option in fields(cls) if isinstance(option.default, tuple)]

    def pack(**values: Any) -> Any:
        return cls(**values | {name: tuple(values[name] or ()) for name in lists})

    return lambda command: _extended(command, receives, parameters, pack)


def with_run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the fields of `RunOptions` as options; it receives them as its argument `run`."""
    return with_options(RunOptions, "run", "Run")(command)


def with_judge_options(
    skip: Collection[str] = (), panel: str = "{group} (default: the checkpoint's own setting)"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the fields of `JudgeOptions` as options; it receives those used as the dict `judging`.

    Args:
        skip: Fields to leave out.
        panel: Heading of the options in the help text; `{group}` stands for what a group of them decides.
    """
    groups = {option.name: heading for group, heading in _GROUPS.items() for option in fields(group)}
    parameters = [
        _parameter(option, JudgeOptions, panel.format(group=groups[option.name]), optional=True)
        for option in fields(JudgeOptions)
        if option.name not in skip
    ]

    def pack(**values: Any) -> dict[str, Any]:
        judging = {name: value for name, value in values.items() if value is not None}
        for name in ("temperatures", "top_ps"):
            if name in judging:
                judging[name] = _numbers(name, judging[name])
        _resolved(judging)  # a value out of range is refused before a model is loaded
        return judging

    return lambda command: _extended(command, "judging", parameters, pack)


@cache  # every option asks; reading a class's source takes 20 ms
def documented_fields(cls: type) -> Mapping[str, str]:
    """The docstring under each field of a dataclass and of those it is made of, by the field's name."""
    found = {}
    for base in (base for base in cls.__mro__ if is_dataclass(base)):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        body = definition.body if isinstance(definition, ast.ClassDef) else []
        for statement, following in pairwise(body):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                match following:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        found[statement.target.id] = " ".join(text.split())
    return found


def _parameter(option: Field, cls: type, panel: str | None, *, optional: bool = False) -> inspect.Parameter:
    annotation = get_type_hints(cls)[option.name]
    metavar = option.metadata.get("metavar")
    if annotation == tuple[float, ...]:
        annotation, metavar = str, "X,X,..."
    elif annotation == tuple[str, ...]:
        annotation = list[str]
    spelling = option.name.replace("_", "-")
    flags: tuple[str, ...] = option.metadata.get("flags", (f"--{spelling}",))
    if annotation == bool | None or (annotation is bool and optional):
        flags = (f"--{spelling}/--no-{spelling}",)
    flags += (_ALIASES[option.name],) if option.name in _ALIASES else ()
    default = None if optional else option.default
    if default is MISSING:
        default = inspect.Parameter.empty  # a required option
    shown = not any(default is silent for silent in (None, False, (), inspect.Parameter.empty))
    # One backtick pair per name reads well in code, not in a terminal.
    text = documented_fields(cls)[option.name].replace("`", "")
    info = typer.Option(
        *flags,
        help=text,
        metavar=metavar,
        rich_help_panel=option.metadata.get("panel", panel),
        show_default=shown,
        min=option.metadata.get("min"),
    )
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=list(default) if isinstance(default, tuple) else default,
        annotation=Annotated[annotation | None if optional else annotation, info],
    )


def _extended(
    command: Callable[..., Any], receives: str, parameters: list[inspect.Parameter], pack: Callable[..., Any]
) -> Callable[..., Any]:
    """`command` with its argument `receives` replaced by options, which `pack` turns into that argument."""
    names = [parameter.name for parameter in parameters]

    @wraps(command)
    def extended(**arguments: Any) -> Any:
        values = {name: arguments.pop(name) for name in names}
        return command(**arguments, **{receives: pack(**values)})

    signature = inspect.signature(command, eval_str=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != receives]
    extended.__signature__ = signature.replace(parameters=own + parameters)  # pyright: ignore[reportAttributeAccessIssue]
    extended.__annotations__ = {parameter.name: parameter.annotation for parameter in own + parameters}
    return extended


def _resolved(judging: dict[str, Any]) -> JudgeOptions:
    # Only the checkpoint knows how many probes there are: here, as many as either option says.
    probes = len(judging.get("temperatures") or judging.get("top_ps") or JudgeOptions().temperatures)
    defaults = JudgeOptions(temperatures=(1.0,) * probes, top_ps=JudgeOptions().top_ps[:1] * probes)
    return defaults.with_overrides(**judging)


def _numbers(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"`{name}` must be numbers separated by commas, got {text!r}.", "For example 0.6,0.8."
        ) from error


__all__ = [
    "CALL_ONLY_OPTIONS",
    "RunOptions",
    "documented_fields",
    "with_judge_options",
    "with_options",
    "with_run_options",
]
