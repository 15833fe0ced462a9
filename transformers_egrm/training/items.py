"""From examples to token ids: the processor's own judge prompts, and what should follow them in either mode."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.processing_egrm import EGRMProcessor
from transformers_egrm.modeling.prompt_guard_egrm import TextGuard
from transformers_egrm.modeling.prompt_templates_egrm import verdict_word
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
        ConfigError: Its verdict space is not pointwise, or its template cannot end a turn.
    """

    def __init__(self, processor: EGRMProcessor) -> None:
        self.processor, self.task = processor, processor.task()
        space = self.task.space
        if space.kind != "pointwise":
            raise ConfigError(f"Examples carry points, so the verdict space must be pointwise, got {space.kind}.")
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
        """One example; only its question and response enter the prompt.

        Args:
            example: With a verdict of the verdict space.

        Raises:
            ConfigError: The verdict lies outside the verdict space.
            PromptTooLongError: The prompt does not fit.
        """
        label = str(example.verdict)
        if label not in self.task.space.labels:
            raise ConfigError(
                f"An example's verdict is {label}, but verdicts go from {self.task.space.low} to {self.task.space.high}.",
                "Set `judge.low` and `judge.high`.",
            )
        encoded = self.processor.encode({"prompt": example.prompt, "response": example.response})
        cue = f"{self._context}{self._guard.hide(example.chain)}{self._bridge}{verdict_word(self.task.space)}:"
        short, joint = self._guard.encode(cue), self._guard.encode(f"{cue} {label}")
        # Where the label merges with the cue, the shared beginning still tells which tokens spell the verdict.
        shared = next((i for i, (a, b) in enumerate(zip(short, joint, strict=False)) if a != b), len(short))
        start = len(self._context_ids)
        if joint[:start] != self._context_ids:
            raise ConfigError("The tokenizer merges the judge's turn with its first word, so that no chain can be learnt.",
                              "Use a chat template that starts a turn with a control token or a line break.")  # fmt: skip
        return TrainingItem(
            prompt_ids=array("i", encoded.prompts[0]),
            verdict=self.task.space.labels.index(label),
            chain_ids=array("i", joint[start:shared]),
            chain_verdict_ids=array("i", joint[shared:]),
            difficulty=example.difficulty,
            answer_start=self._answer_start(example, encoded.prompts[0])
            if label == self.task.space.labels[-1]
            else None,
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
        items = [self.encode(example) for example in examples]
        longest = max((self.length(item, is_short=False) for item in items), default=0)
        if max_tokens is not None and longest > max_tokens:
            raise ConfigError(f"The longest example takes {longest} tokens with its chain, the model holds {max_tokens}.",
                              "Raise `generator.max_position_embeddings` or leave long examples out.")  # fmt: skip
        return items

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

    def sequence(self, item: TrainingItem, *, is_short: bool, with_answer: bool = False) -> TrainingSequence:
        """The item as a training sequence in one mode.

        Args:
            item: An encoded example.
            is_short: Short mode (the verdict alone) or long mode (the chain, then the verdict).
            with_answer: Whether a response that deserves full marks is learnt, too.
        """
        task = self.task
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
