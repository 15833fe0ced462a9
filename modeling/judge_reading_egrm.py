"""From what was written to verdict ids, and from verdict ids to rewards."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .engine_protocol_egrm import Drawn
from .engine_vocabulary_egrm import VerdictTrie
from .judge_values_egrm import JudgeInputs
from .prompt_task_egrm import JudgeTask


class ProbeReader(ABC):
    """Reads each probe once, as soon as it is complete.

    Args:
        inputs: The prompts that the probes answer.
        num_probes: M.

    Attributes:
        verdicts: [R, M] int64 verdict ids in the item's own order; meaningless where `parsed` is False.
        parsed: [R, M] bool.
        seen: [R, M] bool, False where a probe was not drawn, or was stopped before its end.
        answers: [B] ids of the `free` answers met, in the order of the probes that gave them; empty for other spaces.
    """

    def __init__(self, inputs: JudgeInputs, num_probes: int) -> None:
        self.task, device = inputs.task, inputs.input_ids.device
        shape = (inputs.input_ids.shape[0], num_probes)
        self.verdicts = torch.zeros(shape, dtype=torch.int64, device=device)
        self.parsed, self.seen = (torch.zeros(shape, dtype=torch.bool, device=device) for _ in range(2))
        self.answers: list[dict[str, int]] = [{} for _ in range(inputs.num_items)]
        self._items = inputs.item_index.repeat_interleave(num_probes).tolist()
        self._swapped = inputs.swapped[:, None].expand(shape)

    @property
    def num_ids(self) -> int:
        """How many verdict ids there are by now, at least 1."""
        return max(1, self.task.space.num_verdicts, *(len(answers) for answers in self.answers))

    def read(self, drawn: Drawn) -> None:
        """Read what is complete and was not read before.

        Args:
            drawn: So far, or in the end.
        """
        over = drawn.complete.view_as(self.seen)
        fresh = over & ~self.seen & ~drawn.broken.view_as(self.seen)
        self.seen |= over
        if not bool(fresh.any()):
            return
        self._read(drawn, fresh)
        if self.task.space.enumerable:
            swap = torch.tensor(self.task.space.swap_ids, device=self.verdicts.device)
            self.verdicts = torch.where(fresh & self._swapped, swap[self.verdicts], self.verdicts)

    @abstractmethod
    def texts(self, drawn: Drawn, rows: Sequence[int]) -> list[str]:
        """What some probes wrote, as a scorer reads them.

        Args:
            drawn: In the end.
            rows: Of the R * M, each complete.
        """

    @abstractmethod
    def _read(self, drawn: Drawn, fresh: Tensor) -> None:
        # Verdicts as their own prompts number them.
        ...


class TextReader(ProbeReader):
    """Reads a probe by its text: the one transfer to the host that a batch of unrestricted probes needs.

    Args:
        inputs: As in `ProbeReader`.
        num_probes: As in `ProbeReader`.
        decode: Token ids -> texts, control tokens left out or (`control=True`) spelled out.
    """

    def __init__(self, inputs: JudgeInputs, num_probes: int, decode: Callable[..., list[str]]) -> None:
        super().__init__(inputs, num_probes)
        self._decode = decode
        self._said: dict[int, str] = {}  # probe -> its `free` answer

    def texts(self, drawn: Drawn, rows: Sequence[int]) -> list[str]:
        """See `ProbeReader`."""
        return self._decode(written(drawn, rows))

    def _read(self, drawn: Drawn, fresh: Tensor) -> None:
        rows = fresh.flatten().nonzero()[:, 0]
        texts = self._decode(written(drawn, rows.tolist()), control=True)
        said = list(zip(texts, drawn.ended[rows].tolist(), strict=True))
        if not self.task.space.enumerable:
            self._number(rows.tolist(), [answer_of(self.task, text, False, complete) for text, complete in said])
            return
        found = [verdict_of(self.task, text, False, complete) for text, complete in said]
        read = torch.tensor([-1 if verdict is None else verdict for verdict in found], device=rows.device)
        self.verdicts.view(-1)[rows], self.parsed.view(-1)[rows] = read.clamp_min(0), read >= 0

    def _number(self, rows: list[int], found: list[str | None]) -> None:
        # Ids follow the order of the probes, not of their ends, so that ties fall the same way with early stop.
        self._said |= {row: answer for row, answer in zip(rows, found, strict=True) if answer is not None}
        for answers in self.answers:
            answers.clear()
        for row in sorted(self._said):
            answers = self.answers[self._items[row]]
            self.verdicts.view(-1)[row] = answers.setdefault(self._said[row], len(answers))
            self.parsed.view(-1)[row] = True


class TrieReader(ProbeReader):
    """Reads a probe by its place in the trie of verdicts: no text, no transfer.

    Args:
        inputs: As in `ProbeReader`.
        num_probes: As in `ProbeReader`.
        trie: What the probes were drawn from.
    """

    def __init__(self, inputs: JudgeInputs, num_probes: int, trie: VerdictTrie) -> None:
        super().__init__(inputs, num_probes)
        self._trie = trie

    def texts(self, drawn: Drawn, rows: Sequence[int]) -> list[str]:
        """Labels as the prompt shows them: a verdict is drawn only as far as it takes to tell it from the others."""
        space, swapped = self.task.space, self._swapped.flatten().tolist()
        verdicts = self.verdicts.flatten().tolist()
        return [space.labels[space.swap(verdicts[row]) if swapped[row] else verdicts[row]] for row in rows]

    def _read(self, drawn: Drawn, fresh: Tensor) -> None:
        verdicts = self._trie.verdicts_of(drawn.tokens).view_as(fresh)
        self.verdicts = torch.where(fresh, verdicts.clamp_min(0), self.verdicts)
        self.parsed |= fresh & (verdicts >= 0)


def written(drawn: Drawn, rows: Sequence[int]) -> list[list[int]]:
    """Token ids of some rows, each up to its length.

    Args:
        drawn: What was drawn.
        rows: Which of its rows.
    """
    index = list(rows)
    tokens, lengths = drawn.tokens[index].tolist(), drawn.lengths[index].tolist()
    return [ids[:length] for ids, length in zip(tokens, lengths, strict=True)]


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


__all__ = [
    "ProbeReader",
    "TextReader",
    "TrieReader",
    "answer_of",
    "label_of",
    "reward_of",
    "verdict_of",
    "written",
]
