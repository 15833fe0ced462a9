"""What the server's own endpoints take and give. Unknown keys, numbers as text and numbers that are not finite are refused."""

from dataclasses import fields
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from transformers_egrm.modeling.judge_results_egrm import JudgeResult


class Closed(BaseModel):
    """A body that holds nothing but what is named."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


Id = str | Annotated[int, Field(ge=-(2**63), lt=2**63)]
Prompt = str | list[dict[str, Any]]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class Record(Closed):
    """A question and what is judged of it.

    `prompt` comes with `response`, with `response_a` and `response_b`, or with `responses`. `messages` end with the judged
    response.
    """

    id: Id | None = None
    prompt: Prompt | None = None
    response: Prompt | None = None
    response_a: Prompt | None = None
    response_b: Prompt | None = None
    responses: list[Prompt] | None = None
    messages: list[dict[str, Any]] | None = None
    system: str | None = None
    rubric: str | None = None
    reference: str | int | float | None = None
    tools: list[dict[str, Any]] | None = None

    def plain(self) -> dict[str, Any]:
        """The record as `EGRMProcessor.encode` reads it."""
        return {name: value for name, value in self if value is not None}


class Space(Closed):
    """A verdict space, as `VerdictSpace.to_dict` writes it."""

    kind: Literal["pointwise", "pairwise", "binary", "listwise", "free"] = "pointwise"
    low: int = 0
    high: int = 10
    allow_tie: bool = False
    num_candidates: int = 2
    verdict_format: Literal["verdict", "boxed", "double_bracket", "result", "json"] = "verdict"


class Options(Closed):
    """Judging options that a request may set, as in `JudgeOptions`. tau is the server's."""

    path: Literal["auto", "short", "long"] | None = None
    num_probes: Annotated[int, Field(ge=1, le=64)] | None = None
    seed: Seed | None = None
    seed_by: Literal["id", "text"] | None = None
    consensus: Literal["sampled", "exact"] | None = None
    reward: Literal["verdict", "expected", "risk_adjusted"] | None = None
    risk_beta: float | None = None
    abstain_below: Annotated[float, Field(gt=0, le=1)] | None = None

    def plain(self) -> dict[str, Any]:
        """Those that are set."""
        return {name: value for name, value in self if value is not None}


class Asking(Closed):
    """What all requests for rewards have in common."""

    model: str | None = Field(None, description="Not read: a server has one model.")
    space: Space | None = Field(None, description="By default the server's own.")
    rubric: str | None = Field(None, description="How to judge, for records without a rubric.")
    options: Options = Options()
    rationale: bool = Field(False, description="Whether results carry the text of the chain that was believed.")


class RewardRequest(Asking):
    """Records to be judged, each on its own."""

    records: list[Record] = Field(min_length=1)
    timeout_s: Seconds | None = Field(None, description="What is not done by then has the status `timeout`.")
    coalesce: bool = Field(False, description="Whether a record that comes alone waits some milliseconds for others of its "
                           "question, which is then run once.")  # fmt: skip


class GroupRequest(Asking):
    """All completions of one prompt. The prompt is run once."""

    prompt: Prompt
    responses: list[Prompt] = Field(min_length=1)
    system: str | None = None
    reference: str | int | float | None = None
    tools: list[dict[str, Any]] | None = None
    timeout_s: Seconds | None = Field(None, description="What is not done by then has the status `timeout`.")


class JobRequest(Asking):
    """Records that are judged while nobody waits."""

    records: list[Record] = Field(min_length=1)
    callback: str | None = Field(None, description="URL that gets the result, signed; its host must be allowed.")


class Told(Closed):
    """What of a result says how the judge came to be right or wrong."""

    verdict: str | None = None
    consensus: float | None = None
    route: Literal["short", "long"] | None = None


class FeedbackRequest(Closed):
    """What is right about a record."""

    record: Record
    result: Told
    truth: str = Field(min_length=1, description="Label of the right verdict, such as 7 or A.")


_HINTS = get_type_hints(JudgeResult)
_PLAIN: dict[str, Any] = {"order": list[str], "draft_kept": list[int]}
_RESULT_FIELDS: dict[str, Any] = {
    field.name: (_PLAIN.get(field.name, _HINTS[field.name]), ...)
    for field in fields(JudgeResult)
    if field.name != "account"
}
Result: Any = create_model("Result", __doc__="The judgement of one record, as in `JudgeResult`.", **_RESULT_FIELDS)


class Timings(BaseModel):
    """Where the time went, in milliseconds."""

    wait_ms: float = Field(description="From the request's arrival until the judge took it up.")
    engine_ms: float = Field(description="From then until its last result.")
    total_ms: float


class RewardAnswer(BaseModel):
    """One result per record, in order."""

    id: str
    model: str
    results: list[Result]  # pyright: ignore[reportInvalidTypeForm]
    timings: Timings


class GroupAnswer(RewardAnswer):
    """One result per completion, in order, and their ranking."""

    rewards: list[float | None]
    order: list[int] = Field(description="Completions from best to worst; those without a reward come last.")
    tied: list[int] = Field(description="Completions that share the first place; empty where one is best.")


class JobAnswer(BaseModel):
    """Where a job stands."""

    id: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    records: int
    finished: int
    error: str | None = None


class Problem(BaseModel):
    """Why a request was not answered as asked."""

    class Error(BaseModel):
        """The reason."""

        type: str
        message: str
        details: list[dict[str, Any]] | None = None

    error: Error


__all__ = [
    "Asking",
    "Closed",
    "FeedbackRequest",
    "GroupAnswer",
    "GroupRequest",
    "JobAnswer",
    "JobRequest",
    "Options",
    "Problem",
    "Record",
    "Result",
    "RewardAnswer",
    "RewardRequest",
    "Space",
]
