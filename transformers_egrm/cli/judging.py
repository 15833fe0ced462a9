"""What `egrm score`, `compare` and `rank` have in common: the judge, and the columns of its results."""

from pathlib import Path
from typing import Any, get_type_hints

from transformers_egrm.cli.loading import identity, is_watched, load_generator, load_model
from transformers_egrm.cli.options import RunOptions
from transformers_egrm.cli.running import Job
from transformers_egrm.data.fields import FieldMap
from transformers_egrm.modeling.errors_egrm import ConfigError, DataError


MODEL_HELP = "`egrm-mini` (it comes with the package), a folder made by `egrm build` or `egrm train`, or a Hub id."
SOURCE_HELP = "Records: .jsonl, .json (an array), .csv or .parquet; - reads JSONL from stdin."


def make_job(
    command: str, model: str, source: str, *, fields: FieldMap, asked: dict[str, Any], run: RunOptions,
    judging: dict[str, Any], types: dict[str, Any] | None = None,
) -> Job:  # fmt: skip
    """The job of a judging command.

    Args:
        command: Its name.
        model: Folder or Hub id.
        source: Input file, or `-`.
        fields: Where records find their fields.
        asked: What else was asked for, such as a verdict space, as plain data.
        run: How to read and write.
        judging: Judging options that differ from the checkpoint's.
        types: Python type of each column of a row, by default those of `JudgeResult`.
    """
    from transformers_egrm import __version__

    if run.engine is not None and (run.url is not None or run.draft is not None):
        raise ConfigError("--engine says where the generator runs; neither --url nor --draft belongs to it.",
                          "Leave one of them out.")  # fmt: skip
    which = identity(model, run.revision) if run.url is None else {"model": model, "url": run.url}
    settings = {"version": __version__, **which, **asked, "judging": judging,
                "rubric": rubric_text(run.rubric), "rationale": run.rationale, "dtype": run.dtype}  # fmt: skip
    if run.explain:
        settings["explain"] = True
    asked_of_run = {
        name: getattr(run, name)
        for name in ("draft", "max_prompt_tokens", "truncation", "limit", "verdict_format", "engine")
    }
    settings |= {name: value for name, value in asked_of_run.items() if value is not None}
    return Job(
        command=command, model=model, source=source, fields=fields, identity=settings, run=run,
        types={"record": int, **(types or result_types(explain=run.explain))},
    )  # fmt: skip


def result_types(*, explain: bool = False) -> dict[str, Any]:
    """Python type of each field of a `JudgeResult`.

    Args:
        explain: Whether results carry an account, which is nested data.
    """
    from transformers_egrm.modeling.judge_results_egrm import JudgeResult

    types = {name: hint for name, hint in get_type_hints(JudgeResult).items() if name != "account"}
    return types | {"account": dict} if explain else types


def load_judge(job: Job, judging: dict[str, Any]) -> Any:
    """The `RewardJudge` of a job."""
    from transformers_egrm.judge import RewardJudge

    run, on_terminal = job.run, is_watched()
    rubric = rubric_text(run.rubric)
    if run.url is not None:
        from transformers_egrm.cli.remote import RemoteJudge

        return RemoteJudge(job.model, run, rubric, judging)
    model = load_model(job.model, device=run.device, dtype=run.dtype, revision=run.revision, engine=run.engine)
    if run.draft is not None:
        draft, _ = load_generator(run.draft, dtype=run.dtype)
        model.attach_draft(draft.to(model.device))
    return RewardJudge(
        model, _processor(model, run), batch_size=run.batch_size, batch_tokens=run.batch_tokens, reorder_window=run.reorder_window,
        verdict_format=run.verdict_format, rubric=rubric, return_rationale=run.rationale, explain=run.explain, progress=on_terminal if run.progress is None else run.progress, cache=run.cache, **judging,
    )  # fmt: skip


def _processor(model: Any, run: RunOptions) -> Any:
    """The model's processor, with the limit and the truncation that the run asks for."""
    from transformers_egrm.modeling.processing_egrm import EGRMProcessor

    own = model.processor
    if run.max_prompt_tokens is None and run.truncation is None:
        return own
    longest = model.config.longest_prompt
    if longest is not None and run.max_prompt_tokens is not None and run.max_prompt_tokens > longest:
        raise ConfigError(f"--max-prompt-tokens must be at most {longest}, after which a verdict or a chain still fits "
                          f"the model's context, got {run.max_prompt_tokens}.", "Or shorten chains by --max-chain-tokens "
                          "in `egrm build`.")  # fmt: skip
    return EGRMProcessor(
        own.tokenizer, own.scorer_tokenizer, space=own.space, rubric=own.rubric,
        max_prompt_tokens=run.max_prompt_tokens or own.max_prompt_tokens, truncation=run.truncation or own.truncation,
        template_date=own.template_date,
    )  # fmt: skip


def own_space(judge: Any) -> dict[str, Any]:
    """The verdict space that the checkpoint was built for, as plain data."""
    return judge.own_space if hasattr(judge, "own_space") else judge.processor.task().space.to_dict()


def rubric_text(rubric: str | None) -> str | None:
    """The rubric itself, where `@FILE` names a file that holds it.

    Raises:
        DataError: The file cannot be read, or the text is not valid Unicode.
    """
    if rubric is None:
        return None
    try:
        text = Path(rubric[1:]).read_text("utf-8") if rubric.startswith("@") else rubric
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"--rubric must be valid Unicode, got a lone surrogate at character {error.start}.",
                        "Write it in UTF-8.") from error  # fmt: skip
    except (OSError, ValueError) as error:  # a ValueError for bytes that are not UTF-8, or a NUL in the path
        raise DataError(f"--rubric {rubric!r} must name a text file in UTF-8: {error}.") from error
    return text


__all__ = ["MODEL_HELP", "SOURCE_HELP", "load_judge", "make_job", "own_space", "result_types", "rubric_text"]
