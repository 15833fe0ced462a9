"""From examples to token ids: the processor's own judge prompts, and what should follow them in either mode."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from transformers_egrm.modeling.errors_egrm import ConfigError, InputError
from transformers_egrm.modeling.processing_egrm import EGRMProcessor
from transformers_egrm.modeling.prompt_guard_egrm import TextGuard
from transformers_egrm.modeling.prompt_templates_egrm import verdict_word
from transformers_egrm.training.labelled import record_of
from transformers_egrm.training.world import Example


@dataclass(frozen=True, slots=True)
class TrainingItem:
    """One example as a judge is trained on it, in either mode."""

    prompt_ids: "array[int]"
    """The judge prompt without the mode suffix."""
    verdict: int
    """The true verdict's id."""
    chain_ids: "array[int]"
    """The worked chain up to the verdict's cue."""
    chain_verdict_ids: "array[int]"
    """The verdict's tokens after that cue."""
    difficulty: int
    """1 is the easiest."""
    answer_start: int | None
    """Where the judged response starts in the prompt, if it deserves full marks; None where it does not."""
    swapped_ids: "array[int] | None" = None
    """Of a pair, the judge prompt that shows it in the reverse order; None elsewhere."""
    has_chain: bool = True
    """Whether there is a chain to learn; without one the chain is empty."""


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One training sequence: prompt, mode suffix, completion."""

    input_ids: list[int]
    """All tokens."""
    completion_mask: list[int]
    """1 on what the judge should write: thought, verdict, end; also on the answer, where that is learnt."""
    verdict_mask: list[int]
    """1 on the verdict's tokens."""
    answer_mask: list[int]
    """1 on the judged response and its end, where that is learnt."""
    is_short: bool
    """Whether it is in short mode."""


class ItemEncoder:
    """Encodes examples with a processor.

    Args:
        processor: Makes the judge prompts, as it does for judging.

    Raises:
        ConfigError: Its verdict space cannot be trained in, or its template cannot end a turn.
    """

    def __init__(self, processor: EGRMProcessor) -> None:
        self.processor, self.task = processor, processor.task()
        space = self.task.space
        if space.kind not in ("pointwise", "binary", "pairwise"):
            raise ConfigError(f"Examples are points, right and wrong answers, or pairs; the verdict space is {space.kind}.",
                              "Train a pointwise, binary or pairwise judge.")  # fmt: skip
        if space.verdict_format != "verdict":
            raise ConfigError(f"Chains are taught to end with `Verdict:`, got verdict_format={space.verdict_format!r}.",
                              "Train with the default form.")  # fmt: skip
        tokenizer, template = processor.tokenizer, str(processor.chat_template)
        self._guard = TextGuard(tokenizer, template)
        talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        self._context = tokenizer.apply_chat_template(
            talk[:1], chat_template=template, tokenize=False, add_generation_prompt=True
        )
        self._context_ids = self._guard.encode(self._context)
        rendered = self._guard.encode(tokenizer.apply_chat_template(talk, chat_template=template, tokenize=False))
        ends = [index for index in reversed(rendered) if index in self.task.chain_stop_ids]
        if not self.task.chain_stop_ids:
            raise ConfigError("A judge must learn where to stop, but the tokenizer has no token that ends a text.",
                              "Set its `eos_token`.")  # fmt: skip
        self.end_id = ends[0] if ends else self.task.chain_stop_ids[0]
        """The token that ends the judge's turn."""
        self._chat_template = template
        tag = "[/THINK]" if "[THINK]" in template else "</think>"
        self._bridge = f"\n{tag}\n\n" if self.task.thinking_opened else "\n"

    def encode(self, example: Example) -> TrainingItem:
        """One example; of it only what is judged enters the prompt.

        Args:
            example: With a verdict of the verdict space.

        Raises:
            ConfigError: The verdict lies outside the verdict space.
            PromptTooLongError: The prompt does not fit.
        """
        space = self.task.space
        label = self._label(example.verdict)
        encoded = self.processor.encode(record_of(example))
        bridge = self._bridge if example.chain else self._bridge.lstrip("\n")
        cue = f"{self._context}{self._guard.hide(example.chain)}{bridge}{verdict_word(space)}:"
        short, joint = self._guard.encode(cue), self._guard.encode(f"{cue} {label}")
        # Where the label merges with the cue, the shared beginning still tells which tokens spell the verdict.
        shared = next((i for i, (a, b) in enumerate(zip(short, joint, strict=False)) if a != b), len(short))
        start = len(self._context_ids)
        if joint[:start] != self._context_ids:
            raise ConfigError("The tokenizer merges the judge's turn with its first word, so that no chain can be learnt.",
                              "Use a chat template that starts a turn with a control token or a line break.")  # fmt: skip
        is_best = space.kind != "pairwise" and label == space.labels[-1]
        return TrainingItem(
            prompt_ids=array("i", encoded.prompts[0]),
            verdict=space.labels.index(label),
            chain_ids=array("i", joint[start:shared]),
            chain_verdict_ids=array("i", joint[shared:]),
            difficulty=example.difficulty,
            answer_start=self._answer_start(example, encoded.prompts[0]) if is_best else None,
            swapped_ids=array("i", encoded.prompts[1]) if len(encoded.prompts) > 1 else None,
            has_chain=bool(example.chain),
        )

    def _label(self, verdict: int) -> str:
        space = self.task.space
        if space.kind == "pointwise" and space.low <= verdict <= space.high:
            return str(verdict)
        if space.kind != "pointwise" and 0 <= verdict < space.num_verdicts:
            return space.labels[verdict]
        raise ConfigError(
            f"An example's verdict is {verdict}, but verdicts go from {space.low} to {space.high}."
            if space.kind == "pointwise"
            else f"An example's verdict is {verdict}, but a {space.kind} space has {space.num_verdicts}.",
            "Set `judge.low` and `judge.high`.",
        )

    def _answer_start(self, example: Example, prompt: Sequence[int]) -> int | None:
        # None where the template writes a question differently once it is answered, or the question was neutralised.
        asked = self.processor.tokenizer.apply_chat_template(
            [{"role": "user", "content": example.prompt}], chat_template=self._chat_template, tokenize=False,
            add_generation_prompt=True,
        )  # fmt: skip
        ids = self._guard.encode(asked)
        return len(ids) if list(prompt[: len(ids)]) == list(ids) else None

    def encode_all(self, examples: Iterable[Example], max_tokens: int | None = None) -> list[TrainingItem]:
        """Every example.

        Args:
            examples: Any number.
            max_tokens: Longest sequence the model can hold; None: not checked.

        Raises:
            ConfigError: An example does not fit, or its verdict is not in the space.
        """
        items = [self._named(number, example) for number, example in enumerate(examples, start=1)]
        longest = max((self.length(item, is_short=False) for item in items), default=0)
        if max_tokens is not None and longest > max_tokens:
            raise ConfigError(f"The longest example takes {longest} tokens with its chain, the model holds {max_tokens}.",
                              "Raise `generator.max_position_embeddings` or leave long examples out.")  # fmt: skip
        return items

    def _named(self, number: int, example: Example) -> TrainingItem:
        # One of thousands that does not fit must be found again.
        try:
            return self.encode(example)
        except InputError as error:
            raise ConfigError(f"Example {number}, an answer to {example.question_id!r:.60}, cannot be used: {error}",
                              "Leave it out, or mend it.") from error  # fmt: skip

    def length(self, item: TrainingItem, *, is_short: bool) -> int:
        """Tokens of the item's sequence in one mode.

        Args:
            item: An encoded example.
            is_short: Whether in short mode.
        """
        task, prompt = self.task, len(item.prompt_ids)
        if is_short:
            return prompt + len(task.short_suffix_ids) + len(task.verdict_token_ids[item.verdict]) + 1
        return prompt + len(task.long_suffix_ids) + len(item.chain_ids) + len(item.chain_verdict_ids) + 1

    def sequence(
        self, item: TrainingItem, *, is_short: bool, with_answer: bool = False, swapped: bool = False
    ) -> TrainingSequence:
        """The item as a training sequence in one mode.

        Args:
            item: An encoded example.
            is_short: Short mode (the verdict alone) or long mode (the chain, then the verdict).
            with_answer: Whether a response that deserves full marks is learnt, too.
            swapped: Whether a pair is shown in the reverse order; only in short mode, as a chain speaks of one order.
        """
        task = self.task
        if swapped and item.swapped_ids is not None:
            item = replace(item, prompt_ids=item.swapped_ids, verdict=task.space.swap(item.verdict))
        suffix = task.short_suffix_ids if is_short else task.long_suffix_ids
        verdict = task.verdict_token_ids[item.verdict] if is_short else item.chain_verdict_ids
        thought = () if is_short else item.chain_ids
        prompt, completion = [*item.prompt_ids, *suffix], [*thought, *verdict, self.end_id]
        end = len(item.prompt_ids) - len(task.judge_turn_ids)
        start = end if item.answer_start is None or not with_answer else item.answer_start
        answer = [0] * start + [1] * (end - start) + [0] * (len(prompt) - end)
        return TrainingSequence(
            input_ids=prompt + completion,
            completion_mask=answer + [1] * len(completion),
            verdict_mask=[0] * (len(prompt) + len(thought)) + [1] * len(verdict) + [0],
            answer_mask=answer + [0] * len(completion),
            is_short=is_short,
        )


__all__ = ["ItemEncoder", "TrainingItem", "TrainingSequence"]
