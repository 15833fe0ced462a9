"""`/v1/systemone`: typed questions about a state, as Transformers, vLLM and SGLang take them, by a judge that can think.

See `transformers_egrm.modeling.decision_egrm`. The thread that judges answers one question at a time, in turn with its batches.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field

from transformers_egrm.modeling.decision_egrm import HAS_DECISIONS, EGRMForDecision
from transformers_egrm.serving.asking import Answer, check_size, judge, need_answers, service_of
from transformers_egrm.serving.schemas import Closed
from transformers_egrm.serving.work import Item, RefusedError


router = APIRouter()

_MOST_QUESTIONS = 64
_MOST_LETTERS = 500  # of a reason, which may quote the request
_OTHERS = ("audit_share", "decoder", "timeout_s")
"""Options of the server that say nothing of decisions."""


class SystemOneRequest(Closed):
    """Typed questions about a state: `choice`, `score` or `noul`."""

    model: str | None = Field(None, description="Not read, but told again: a server has one model.")
    state: str | dict[str, Any] | list[Any]
    questions: dict[str, dict[str, Any]] = Field(min_length=1, max_length=_MOST_QUESTIONS)
    assets: dict[str, Any] = Field(default_factory=dict, max_length=0, description="Images cannot be judged.")
    think: Literal["never", "auto", "always"] = Field("auto", description="`auto`: where the probabilities are split.")


@dataclass(frozen=True)
class Decided:
    """The answers of a request."""

    answers: dict[str, dict[str, Any]]
    """Per question, as `JudgedQuestion.answer` gives it."""
    prompt_tokens: int
    """Tokens of their prompts."""
    new_tokens: int
    """Tokens of their chains."""
    status = "ok"

    @property
    def route(self) -> str:
        """`long` where a question was thought about."""
        return "long" if any(answer["route"] == "long" for answer in self.answers.values()) else "short"


def decider_of(model: Any) -> EGRMForDecision | None:
    """A judge as a decision model.

    Args:
        model: As `create_app` takes it.

    Returns:
        None where Transformers has no decisions, or the judge no engine of its own.
    """
    return EGRMForDecision.of(model) if HAS_DECISIONS and hasattr(model, "engine") else None


@router.post("/v1/systemone")
async def systemone(body: SystemOneRequest, request: Request) -> Answer:
    """A probability for each option from one prefill; below tau the judge thinks, unless `think` says otherwise."""
    service = service_of(request)
    if service.decider is None:
        raise RefusedError(
            501, "no_decisions", "Decisions need Transformers 5.23 or later, and this server has an older one."
        )
    asked = {"state": body.state, "questions": body.questions}
    check_size(service, [asked])
    options = {name: value for name, value in service.judging.items() if name not in _OTHERS}
    item = Item(None, steps=partial(_answer, service.decider, asked, {**options, "think": body.think}))
    try:
        judged = await judge(request, [item])
    except RefusedError as error:
        raise RefusedError(error.status, error.kind, error.message[:_MOST_LETTERS], error.retry_after_s) from error
    need_answers(service, judged)
    (decided,) = judged.results
    usage = {"input_tokens": decided.prompt_tokens, "output_tokens": decided.new_tokens}
    return Answer({"model": body.model or service.name, "answers": decided.answers, "usage": usage})


def _answer(
    decider: Any, asked: Mapping[str, Any], options: Mapping[str, Any], deadline: float
) -> Iterator[Decided | None]:
    ((inputs, questions),) = decider.decision_config.prepare_inputs(asked, decider.processor)
    found: dict[str, dict[str, Any]] = {}
    left = max(deadline - time.monotonic(), 1e-6)
    for place, scores in decider.decide_each(questions, **options, timeout_s=left):
        found[questions[place].name] = questions[place].answer(scores.softmax(-1).tolist())
        if len(found) < len(questions):
            yield None
    in_order = {question.name: found[question.name] for question in questions}
    yield Decided(in_order, inputs["input_ids"].shape[1], sum(question.new_tokens for question in questions))


__all__ = ["Decided", "decider_of", "router"]
