"""From new tokens to verdict ids, and from verdict ids to rewards."""

from collections.abc import Callable

import torch
from torch import Tensor

from .engine_sampler_egrm import BranchSampler
from .engine_vocabulary_egrm import TrieWalk
from .judge_values_egrm import JudgeInputs
from .verdicts_egrm import JudgeTask


Decode = Callable[[list[list[int]]], list[str]]
"""Token ids of N texts -> the texts, control tokens spelled out: a thought may end at one."""


class ProbeReader:
    """Reads each probe once, as soon as it has ended: by its place in the trie, else by its text.

    Reading text is the one transfer to the host that a batch of unrestricted probes needs.

    Args:
        decode: Token ids -> texts.
        inputs: The prompts that the probes answer.
        num_probes: M.

    Attributes:
        verdicts: [R, M] int64 verdict ids in the item's own order; meaningless where `parsed` is False.
        parsed: [R, M] bool.
        seen: [R * M] bool, False where a probe was stopped before its end.
        answers: [B] ids of the `free` answers met, in the order of the probes that gave them; empty for other spaces.
    """

    def __init__(self, decode: Decode, inputs: JudgeInputs, num_probes: int) -> None:
        self.task, self._decode = inputs.task, decode
        rows, device = inputs.item_index.repeat_interleave(num_probes), inputs.input_ids.device
        self._items, self._swapped = rows.tolist(), inputs.swapped.repeat_interleave(num_probes)
        self._shape = (inputs.input_ids.shape[0], num_probes)
        self._verdicts = torch.zeros(len(self._items), dtype=torch.int64, device=device)
        self._parsed, self.seen = (torch.zeros(len(self._items), dtype=torch.bool, device=device) for _ in range(2))
        self.answers: list[dict[str, int]] = [{} for _ in range(inputs.num_items)]
        self._said: dict[int, str] = {}  # probe -> its `free` answer

    @property
    def verdicts(self) -> Tensor:
        """[R, M] int64."""
        return self._verdicts.view(self._shape)

    @property
    def parsed(self) -> Tensor:
        """[R, M] bool."""
        return self._parsed.view(self._shape)

    @property
    def num_ids(self) -> int:
        """How many verdict ids there are by now, at least 1."""
        return max(1, self.task.space.num_verdicts, *(len(answers) for answers in self.answers))

    def read(self, sampler: BranchSampler) -> None:
        """Read what has ended since the last call, and, when the sampling is over, what the budget cut."""
        over = sampler.ended | ~(sampler.done | sampler.must_run)
        fresh = over & ~self.seen & ~sampler.broken
        self.seen |= over
        if not bool(fresh.any()):
            return
        if isinstance(sampler.vocabulary, TrieWalk):
            verdicts, parsed = sampler.vocabulary.verdicts, sampler.ended
            self._verdicts = torch.where(fresh, verdicts.clamp_min(0), self._verdicts)
            self._parsed |= fresh & parsed
        else:
            rows = fresh.nonzero()[:, 0]
            tokens, lengths, ended = (t[rows].tolist() for t in (sampler.tokens, sampler.lengths, sampler.ended))
            texts = self._decode([ids[:length] for ids, length in zip(tokens, lengths, strict=True)])
            if self.task.space.enumerable:
                found = [verdict_of(self.task, t, False, c) for t, c in zip(texts, ended, strict=True)]
                read = torch.tensor([-1 if v is None else v for v in found], device=rows.device)
                self._verdicts[rows], self._parsed[rows] = read.clamp_min(0), read >= 0
            else:
                self._number(
                    rows.tolist(), [answer_of(self.task, t, False, c) for t, c in zip(texts, ended, strict=True)]
                )
        if self.task.space.enumerable:
            swap = torch.tensor(self.task.space.swap_ids, device=self._verdicts.device)
            self._verdicts = torch.where(fresh & self._swapped, swap[self._verdicts], self._verdicts)

    def _number(self, rows: list[int], found: list[str | None]) -> None:
        # Ids follow the order of the probes, not of their ends, so that ties fall the same way with early stop.
        self._said |= {row: answer for row, answer in zip(rows, found, strict=True) if answer is not None}
        for answers in self.answers:
            answers.clear()
        for row in sorted(self._said):
            answers = self.answers[self._items[row]]
            self._verdicts[row] = answers.setdefault(self._said[row], len(answers))
            self._parsed[row] = True


def verdict_of(task: JudgeTask, text: str, reasoning: bool, complete: bool) -> int | None:
    """The verdict id that a text states, as its prompt numbers them; None where it states none.

    Args:
        task: An enumerable verdict space and how its prompts are set.
        text: What the generator wrote.
        reasoning: Whether it is a chain of thought, else a short verdict.
        complete: Whether it ended by itself. A number that the token budget may have cut short is not read.
    """
    verdict = task.parse(text, reasoning)
    if verdict is None or complete or not text.endswith(label := task.space.labels[verdict]):
        return verdict
    return None if any(other != label and other.startswith(label) for other in task.space.labels) else verdict


def answer_of(task: JudgeTask, text: str, reasoning: bool, complete: bool) -> str | None:
    """The `free` answer that a text states, normalised; None where it states none, or where the budget may have cut it.

    Args:
        task: A `free` verdict space and how its prompts are set.
        text: What the generator wrote.
        reasoning: Whether it is a chain of thought, else a short answer.
        complete: Whether it ended by itself.
    """
    answer = task.parse_free(text, reasoning)
    # An answer that one more letter would change was still being written.
    return answer if complete or answer == task.parse_free(f"{text}x", reasoning) else None


def reward_of(task: JudgeTask, verdict: int, answers: dict[str, int], reference: str | None) -> float:
    """The reward a verdict carries; NaN for a `free` answer without a reference."""
    if task.space.enumerable:
        return task.space.rewards[verdict]
    if reference is None:
        return float("nan")
    return float(task.space.equal(label_of(task, verdict, answers), reference))


def label_of(task: JudgeTask, verdict: int, answers: dict[str, int]) -> str:
    """A verdict as text."""
    return task.space.labels[verdict] if task.space.enumerable else next(a for a, i in answers.items() if i == verdict)


__all__ = ["Decode", "ProbeReader", "answer_of", "label_of", "reward_of", "verdict_of"]
