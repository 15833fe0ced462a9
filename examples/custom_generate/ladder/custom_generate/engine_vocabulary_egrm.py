"""What a branch may draw, and when it ends: any token (`OpenVocabulary`) or verdicts only (`VerdictTrie`).

Both are plain descriptions; what changes while branches are drawn is their `walk`.
"""

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .engine_sampling_egrm import warped_probs
from .errors_egrm import ConfigError


@dataclass(frozen=True)
class OpenVocabulary:
    """Every token may be drawn; a stop token ends the branch."""

    stop_ids: tuple[int, ...]
    """Token ids that end a branch at any step."""
    late_stop_ids: tuple[int, ...] = ()
    """Token ids that end it at every step but the first: a newline before the answer is not its end."""

    columns = None  # no class annotation: it is no field

    def walk(self, num_rows: int, device: torch.device) -> "OpenWalk":
        """What the sampler asks step by step."""
        return OpenWalk(self, device)


class OpenWalk:
    """`OpenVocabulary` while branches are drawn."""

    columns: Tensor | None = None

    def __init__(self, vocabulary: OpenVocabulary, device: torch.device) -> None:
        stops, late = vocabulary.stop_ids, vocabulary.late_stop_ids
        self._first = torch.tensor(stops, dtype=torch.int64, device=device)
        self._later = torch.tensor((*stops, *late), dtype=torch.int64, device=device)

    def restrict(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Logits of what may be drawn: all of them."""
        return logits

    def advance(self, drawn: Tensor, rows: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Token ids of the drawn columns, and whether each branch ends."""
        return drawn, torch.isin(drawn, self._first if step == 0 else self._later)


class VerdictTrie:
    """Token sequences of an enumerable verdict space: only they may be drawn.

    Args:
        sequences: Token ids of each verdict, none empty; only as many are drawn as tell it from the others.
        stop_ids: Token ids that end a verdict which another one continues ("1" of "10").

    Attributes:
        columns: [A] int64, the token ids that occur, ascending: the rows of the LM head that are needed.
        next_state: [S, A] int64; -1: not allowed here; S + v: verdict v is complete.
        edges: (state, column, next state) of everything that is allowed; parents come before children.
        max_steps: Tokens the longest walk takes.
    """

    def __init__(self, sequences: Sequence[Sequence[int]], stop_ids: Sequence[int]) -> None:
        children: list[dict[int, int]] = [{}]
        depth, verdict_at = [0], {}
        shared = Counter(tuple(sequence[:end]) for sequence in sequences for end in range(1, len(sequence) + 1))
        for verdict, sequence in enumerate(sequences):
            # Tokens after the one that tells a verdict from all others have probability 1: they are not drawn.
            told = [end for end in range(1, len(sequence) + 1) if shared[tuple(sequence[:end])] == 1]
            sequence = sequence[: told[0]] if told else sequence
            node = 0
            for token in sequence:
                if token not in children[node]:
                    children.append({})
                    depth.append(depth[node] + 1)
                    children[node][token] = len(children) - 1
                node = children[node][token]
            if not sequence or node in verdict_at:
                raise ConfigError(
                    f"Each verdict needs a token sequence of its own, but verdict {verdict} has {list(sequence)}.",
                    "Use a verdict space whose labels the tokenizer tells apart.",
                )
            verdict_at[node] = verdict
        open_nodes = [node for node in verdict_at if children[node]]
        inner = [node for node in range(len(children)) if children[node]]
        tokens = {token for node in children for token in node} | (set(stop_ids) if open_nodes else set())
        if open_nodes and not stop_ids:
            raise ConfigError(
                "A verdict continues another one, so ending it needs a stop token, but there is none.",
                "Give the tokenizer an end-of-text token.",
            )
        state_of, column_of = {node: s for s, node in enumerate(inner)}, {t: a for a, t in enumerate(sorted(tokens))}
        self.num_states, self.num_verdicts = len(inner), len(sequences)
        self.columns = torch.tensor(sorted(tokens))
        self.edges: list[tuple[int, int, int]] = []
        self.paths: list[tuple[int, ...]] = [()] * len(inner)
        for node in inner:
            for token, child in children[node].items():
                target = state_of.get(child)
                if target is None:
                    target = self.num_states + verdict_at[child]
                else:
                    self.paths[target] = (*self.paths[state_of[node]], token)
                self.edges.append((state_of[node], column_of[token], target))
            if node in verdict_at:
                ended = self.num_states + verdict_at[node]
                self.edges += [(state_of[node], column_of[token], ended) for token in {*stop_ids} - {*children[node]}]
        table = [[-1] * len(tokens) for _ in inner]
        for state, column, target in self.edges:
            table[state][column] = target
        self.next_state = torch.tensor(table)
        self.max_steps = max(depth[node] for node in inner) + 1

    def to(self, device: torch.device) -> "VerdictTrie":
        """A copy on a device."""
        moved = copy.copy(self)
        moved.columns, moved.next_state = self.columns.to(device), self.next_state.to(device)
        return moved

    def walk(self, num_rows: int, device: torch.device) -> "TrieWalk":
        """What the sampler asks step by step, for branches that all start at the root."""
        return TrieWalk(self, torch.zeros(num_rows, dtype=torch.int64, device=device))

    def verdicts_of(self, tokens: Tensor) -> Tensor:
        """The verdict that each row of tokens spells.

        Args:
            tokens: [N, L] int64, as they were drawn; what follows a verdict's last token is not looked at.

        Returns:
            [N] int64 verdict ids, negative where the tokens spell none (yet).
        """
        state = torch.zeros_like(tokens[:, 0])
        for step in range(min(tokens.shape[1], self.max_steps)):
            column = torch.searchsorted(self.columns, tokens[:, step].contiguous()).clamp_max(len(self.columns) - 1)
            inner = (state >= 0) & (state < self.num_states)
            following = self.next_state[state.clamp(0, self.num_states - 1), column]
            following = torch.where(self.columns[column] == tokens[:, step], following, -1)
            state = torch.where(inner, following, state)
        return torch.where(state >= self.num_states, state - self.num_states, -1)

    def verdict_probs(self, node_logits: Tensor, temperatures: Tensor, top_ps: Tensor) -> Tensor:
        """Exact verdict distribution of every rung.

        Args:
            node_logits: [R, S, A] float32 logits at every inner node.
            temperatures: [M].
            top_ps: [M].

        Returns:
            [R, M, C] float64, rows sum to 1.
        """
        prompts, states, size = node_logits.shape
        rungs = temperatures.shape[0]
        masked = node_logits.masked_fill(self.next_state < 0, -torch.inf).view(-1, size).repeat_interleave(rungs, 0)
        step = warped_probs(masked, temperatures.repeat(prompts * states), top_ps.repeat(prompts * states))
        step = step.view(prompts, states, rungs, size)
        reach = step.new_zeros(prompts, states, rungs)
        reach[:, 0] = 1.0
        for state, column, target in self.edges:
            if target < states:
                reach[:, target] = reach[:, state] * step[:, state, :, column]
        ends = [edge for edge in self.edges if edge[2] >= states]
        state, column, target = torch.tensor(ends, device=step.device).unbind(-1)
        flow = reach[:, state] * step[:, state, :, column].permute(1, 0, 2)  # [R, number of ends, M]
        probs = step.new_zeros(prompts, self.num_verdicts, rungs).index_add_(1, target - states, flow)
        return probs.transpose(1, 2)


class TrieWalk:
    """Where each branch stands in a `VerdictTrie`."""

    def __init__(self, trie: VerdictTrie, states: Tensor) -> None:
        self.trie, self.states, self.columns = trie, states, trie.columns

    def restrict(self, logits: Tensor, rows: Tensor) -> Tensor:
        """[n, A] logits with -inf on what the rows' states forbid; fewer logits than rows are first repeated."""
        logits = logits.repeat_interleave(rows.shape[0] // logits.shape[0], 0)
        allowed = self.trie.next_state[self.states[rows].clamp_max(self.trie.num_states - 1)] >= 0
        return logits.masked_fill(~allowed, -torch.inf)

    def advance(self, drawn: Tensor, rows: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Token ids of the drawn columns, and whether each branch's verdict is complete."""
        current = self.states[rows]
        ended = current >= self.trie.num_states
        following = self.trie.next_state[current.clamp_max(self.trie.num_states - 1), drawn]
        self.states[rows] = torch.where(ended, current, following)
        return self.columns[drawn], self.states[rows] >= self.trie.num_states


__all__ = ["OpenVocabulary", "OpenWalk", "TrieWalk", "VerdictTrie"]
