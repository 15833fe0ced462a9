"""`AutoModelForDecision` and `pipeline("decision")`: typed questions answered by the short path, which thinks when unsure.

Needs Transformers 5.23. With older versions the module can be imported, and its classes are of no use.
"""

import copy
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from .engine_backbone_egrm import evaluating
from .engine_shared_egrm import SharedStart
from .errors_egrm import ConfigError, InputError, ModelError, need
from .judge_batch_egrm import EncodedItem
from .judge_options_egrm import NEVER_SHORT
from .judge_values_egrm import Status
from .modeling_egrm import EGRMRewardModel
from .prompt_decisions_egrm import MAX_OPTIONS, decision_record
from .prompt_groups_egrm import common_prefix, find_groups
from .verdict_consensus_egrm import Route


try:
    from transformers.decision.configuration_utils import DecisionConfig
    from transformers.decision.modeling_utils import DecisionMixin
    from transformers.decision.template_utils import Question, parse_questions

    HAS_DECISIONS = True
except ImportError:  # before 5.23
    HAS_DECISIONS = False
    _Missing: Any = type("_Missing", (), {})
    DecisionConfig = DecisionMixin = Question = parse_questions = _Missing


THINK: dict[str, dict[str, Any]] = {
    "never": {"path": "short"},
    "auto": {},
    "always": {"path": "auto", "consensus_threshold": NEVER_SHORT},
}
"""Whether a question takes the long path -> the options that see to it."""


@dataclass
class JudgedQuestion(Question):  # pyright: ignore[reportGeneralTypeIssues]
    """A question with its judge prompt, and after judging what came of it."""

    item: EncodedItem | None = None
    """Its prompt."""
    verdict_ids: tuple[int, ...] = ()
    """Per option, the verdict id that stands for it."""
    judged: dict[str, Any] = field(default_factory=dict)
    """Keys that the answer has beside the API's own."""
    new_tokens: int = 0
    """Tokens of its chains."""

    def answer(self, probabilities: list[float]) -> dict[str, Any]:
        """The answer in the API's form, with the keys `verdict`, `route`, `consensus`, `support` and `status`.

        Probabilities, and what is computed from them, are those of the prefill, also where chains were written. `verdict`, and
        `choice` where there is a verdict, are what the judge believes in the end.

        Args:
            probabilities: One per option, in [0, 1].
        """
        found = {**super().answer(probabilities), **self.judged}
        if found["type"] == "choice" and found.get("verdict") is not None:
            found["choice"] = found["verdict"]
        return found


class JudgeDecisionConfig(DecisionConfig):  # pyright: ignore[reportGeneralTypeIssues]
    """Makes judge prompts of requests. `decision.json` holds what other programs read; nothing in it changes a prompt."""

    def prepare_inputs(self, request: Mapping[str, Any] | str, processor: Any) -> list[tuple[dict, list]]:
        """All questions of a request as one prompt with one mark each; `decide` runs their common tokens once.

        Args:
            request: `{"state": ..., "questions": {name: question}}`, or its JSON.
            processor: The checkpoint's `EGRMProcessor`.

        Raises:
            ConfigError: The processor is another one.
            InputError: A question is wrong, or cannot be judged; there are images.
            PromptTooLongError: State and question are too long, and the processor does not cut.
        """
        if not hasattr(processor, "collate"):
            raise ConfigError(
                f"Requests are read by the checkpoint's EGRMProcessor, got {type(processor).__name__}.",
                "Pass `processor=model.processor` to the pipeline.",
            )
        state, asked = read_request(request)
        try:
            parsed = parse_questions(asked, self)
        except ValueError as error:
            raise InputError(str(error)) from error
        questions = [_judged_question(state, question, processor) for question in parsed]
        ids = [token for question in questions for token in _prompt(question)]
        marks = torch.tensor([len(_prompt(question)) for question in questions]).cumsum(0)
        return [({"input_ids": torch.tensor([ids]), "marks": marks}, questions)]


class EGRMForDecision(DecisionMixin, EGRMRewardModel):  # pyright: ignore[reportGeneralTypeIssues]
    """An `EGRMRewardModel` that answers typed questions about a state.

    Example:
        ```python
        decide = pipeline("decision", model="./my-judge", trust_remote_code=True)
        decide({"state": {"prompt": "2 + 2?", "response": "4"}, "questions": {"right": {"type": "noul"}}})
        ```
    """

    def post_init(self) -> None:
        """As in the base class; decisions are made of judge prompts."""
        super().post_init()
        self.decision_config = JudgeDecisionConfig()

    @classmethod
    def of(cls, model: EGRMRewardModel) -> "EGRMForDecision":
        """A judge that is loaded already, as a decision model. Both share all weights.

        Args:
            model: Stays as it is.
        """
        judge: Any = copy.copy(model)
        judge.__class__ = cls
        judge.decision_config = JudgeDecisionConfig()
        return judge

    # The mixin's own loading and saving would put its default decision configuration in the place of ours.

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any) -> Any:
        """As `EGRMRewardModel.from_pretrained`."""
        kwargs.pop("decision_config", None)
        mixin: Any = DecisionMixin
        return super(mixin, cls).from_pretrained(pretrained_model_name_or_path, *model_args, **kwargs)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As `EGRMRewardModel.save_pretrained`."""
        mixin: Any = DecisionMixin
        super(mixin, self).save_pretrained(save_directory, *args, **kwargs)

    @torch.no_grad()
    def decide(
        self, input_ids: Tensor | None = None, marks: Tensor | None = None,
        decision_questions: Sequence[JudgedQuestion] = (), decision_config: Any = None, *, think: str = "auto",
        **options: Any,
    ) -> list[Tensor]:  # fmt: skip
        """Judge questions from `decision_config.prepare_inputs`.

        Args:
            input_ids: [1, T] their prompts in a row; the questions hold them too.
            marks: [n] int64, where each ends.
            decision_questions: n of them. Each learns what its answer says beside probabilities.
            decision_config: The model's own, or None.
            think: `auto`: below tau. `never`, `always`: whatever the probabilities.
            **options: Fields of `JudgeOptions`. Consensus is exact in any case.

        Returns:
            Per question, the logarithms [number of options] float32 of the options' probabilities.

        Raises:
            ConfigError: An option is wrong, or the questions are not those of the model's own configuration.
            ModelError: The generator's numbers are not finite.
        """
        scores = dict(self.decide_each(decision_questions, think=think, **options))
        return [scores[place] for place in range(len(decision_questions))]

    def decide_each(
        self, questions: Sequence[JudgedQuestion], *, think: str = "auto", **options: Any
    ) -> Iterator[tuple[int, Tensor]]:
        """`decide`, question by question, for a caller that has other work between two of them.

        Args:
            questions: As in `decide`.
            think: As in `decide`.
            **options: As in `decide`; `timeout_s` counts from the first question to the end of the last one.

        Yields:
            The place of a question and the logarithms of its options' probabilities. Those that begin alike follow each other.

        Raises:
            ConfigError: As in `decide`.
            ModelError: As in `decide`.
        """
        need(think in THINK, "think", think, f"one of {', '.join(THINK)}")
        if not all(hasattr(question, "item") for question in questions):
            raise ConfigError("An EGRM checkpoint judges its own prompts.", "Leave `decision_config` out.")
        options = {**options, **THINK[think], "consensus": "exact", "reward": "verdict"}
        timeout_s = self.config.judge_options(**options).timeout_s
        until = None if timeout_s is None else time.monotonic() + timeout_s
        prompts = [_prompt(question) for question in questions]
        groups = find_groups(prompts)
        for group in dict.fromkeys(groups):
            members = [place for place, own in enumerate(groups) if own == group]
            judge = self if len(members) == 1 else self._after([prompts[member] for member in members])
            for place in members:
                left = {} if until is None else {"timeout_s": max(until - time.monotonic(), 1e-6)}
                yield place, judge._decide_one(questions[place], {**options, **left})

    @torch.no_grad()
    def _after(self, prompts: list[tuple[int, ...]]) -> "EGRMForDecision":
        # A shallow copy, which shares all weights: the model itself may be judging in another thread.
        judge = copy.copy(self)
        with evaluating(self):
            judge.engine = SharedStart(self.engine, prompts[0][: common_prefix(prompts)])
        return judge

    @torch.no_grad()
    def _decide_one(self, question: Any, options: dict[str, Any]) -> Tensor:
        output = self.judge(self.processor.collate([question.item]), **options)
        status, verdict = Status(int(output["statuses"][0])), int(output["verdicts"][0])
        if status == Status.ERROR:
            raise ModelError("The generator returned numbers that are not finite.", "Load it in another dtype.")
        support, question.new_tokens = float(output["support"][0]), int(output["new_tokens"][0])
        question.judged = {
            "verdict": question.options[question.verdict_ids.index(verdict)] if status == Status.OK else None,
            "route": Route(int(output["routes"][0])).name.lower(),
            "consensus": float(output["consensus"][0]),
            "support": support if status == Status.OK else None,
            "status": status.name.lower(),
        }
        return output["verdict_probs"][0, list(question.verdict_ids)].log()

    def answer(self, request: Mapping[str, Any] | str, *, think: str = "auto", **options: Any) -> dict[str, Any]:
        """Answers of a request, as the pipeline gives them.

        Args:
            request: As in `JudgeDecisionConfig.prepare_inputs`.
            think: As in `decide`.
            **options: Fields of `JudgeOptions`.

        Returns:
            Question name -> answer; see `JudgedQuestion.answer`.
        """
        ((inputs, questions),) = self.decision_config.prepare_inputs(request, self.processor)
        scores = self.decide(**inputs, decision_questions=questions, think=think, **options)
        return {q.name: q.answer(own.softmax(-1).tolist()) for q, own in zip(questions, scores, strict=True)}


def read_request(request: Mapping[str, Any] | str) -> tuple[Any, Any]:
    """State and questions of a request.

    Args:
        request: A mapping, or its JSON.

    Raises:
        InputError: It is neither, lacks one of both, or brings images.
    """
    try:
        read = json.loads(request) if isinstance(request, str) else request
    except ValueError as error:
        raise InputError(f"A request as text must be JSON: {error}.") from None
    if not isinstance(read, Mapping) or not {"state", "questions"} <= read.keys():
        raise InputError(f'A request is {{"state": ..., "questions": {{name: question}}}}, got {read!r:.80}.')
    if unknown := sorted(map(str, read.keys() - {"state", "questions", "assets"})):
        raise InputError(f"Unknown keys {', '.join(unknown)} in a request.", "It takes state and questions.")
    if read.get("assets"):
        raise InputError("Images cannot be judged: a state is text or JSON.", "Leave `assets` out.")
    return read["state"], read["questions"]


def _judged_question(state: Any, question: Any, processor: Any) -> JudgedQuestion:
    plain: Any = {own.name: getattr(question, own.name) for own in fields(question)}
    if not 2 <= len(plain["options"]) <= MAX_OPTIONS:
        raise InputError(f"Question {plain['name']!r} needs 2 to {MAX_OPTIONS} options, got {len(plain['options'])}.")
    found = decision_record(state, question, processor.space)
    item = processor.encode(found.record, space=found.space)
    return JudgedQuestion(**plain, item=item, verdict_ids=found.verdicts)


def _prompt(question: JudgedQuestion) -> tuple[int, ...]:
    assert question.item is not None, "made by `prepare_inputs`"
    return question.item.prompts[0]


__all__ = ["HAS_DECISIONS", "THINK", "EGRMForDecision", "JudgeDecisionConfig", "JudgedQuestion", "read_request"]
