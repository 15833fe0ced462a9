"""What a branch may draw, and when it ends: any token (`OpenVocabulary`) or verdicts only (`VerdictTrie`)."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from .sampling_egrm import warped_probs


class OpenVocabulary:
    """Every token may be drawn; a stop token ends the branch.

    Args:
        stop_ids: Token ids that end a branch at any step.
        late_stop_ids: Token ids that end it at every step but the first (a newline before the answer is not its end).
    """

    columns: Tensor | None = None

    def __init__(self, stop_ids: Sequence[int], late_stop_ids: Sequence[int] = ()) -> None:
        self.stop_ids, self.late_stop_ids = tuple(stop_ids), tuple(late_stop_ids)

    def restrict(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Logits of what may be drawn: all of them."""
        return logits

    def advance(self, drawn: Tensor, rows: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Token ids of the drawn columns, and whether each branch ends."""
        stops = self.stop_ids if step == 0 else self.stop_ids + self.late_stop_ids
        return drawn, torch.isin(drawn, torch.tensor(stops, device=drawn.device, dtype=drawn.dtype))


class VerdictTrie:
    """Token sequences of an enumerable verdict space: only they may be drawn.

    Args:
        sequences: Token ids of each verdict, none empty.
        stop_ids: Token ids that end a verdict which another one continues ("1" of "10").

    Attributes:
        columns: [A] int64, the token ids that occur, ascending: the rows of the LM head that are needed.
        next_state: [S, A] int64; -1: not allowed here; S + v: verdict v is complete.
        max_steps: Tokens the longest walk takes.
    """

    def __init__(self, sequences: Sequence[Sequence[int]], stop_ids: Sequence[int]) -> None:
        children: list[dict[int, int]] = [{}]
        depth, verdict_at = [0], {}
        for verdict, sequence in enumerate(sequences):
            node = 0
            for token in sequence:
                if token not in children[node]:
                    children.append({})
                    depth.append(depth[node] + 1)
                    children[node][token] = len(children) - 1
                node = children[node][token]
            if not sequence or node in verdict_at:
                raise ValueError(f"Verdict {verdict} has no token sequence of its own: {list(sequence)}.")
            verdict_at[node] = verdict
        open_nodes = [node for node in verdict_at if children[node]]
        inner = [node for node in range(len(children)) if children[node]]
        tokens = {token for node in children for token in node} | (set(stop_ids) if open_nodes else set())
        if open_nodes and not stop_ids:
            raise ValueError("A verdict continues another one, so ending it needs a stop token; none was given.")
        state_of, column_of = {node: s for s, node in enumerate(inner)}, {t: a for a, t in enumerate(sorted(tokens))}
        self.num_states, self.num_verdicts = len(inner), len(sequences)
        self.columns = torch.tensor(sorted(tokens))
        self.next_state = torch.full((len(inner), len(tokens)), -1)
        self.paths: list[tuple[int, ...]] = [()] * len(inner)
        for node in inner:
            for token, child in children[node].items():
                leaf = child not in state_of
                self.next_state[state_of[node], column_of[token]] = (
                    self.num_states + verdict_at[child] if leaf else state_of[child]
                )
                if not leaf:
                    self.paths[state_of[child]] = (*self.paths[state_of[node]], token)
            if node in verdict_at:
                for token in stop_ids:
                    if token not in children[node]:
                        self.next_state[state_of[node], column_of[token]] = self.num_states + verdict_at[node]
        self.max_steps = max(depth[node] for node in inner) + 1

    def to(self, device: torch.device) -> "VerdictTrie":
        """A copy on a device."""
        moved = copy.copy(self)
        moved.columns, moved.next_state = self.columns.to(device), self.next_state.to(device)
        return moved

    def walk(self, num_rows: int) -> "TrieWalk":
        """The vocabulary of `num_rows` branches that all start at the root."""
        return TrieWalk(self, torch.zeros(num_rows, dtype=torch.int64, device=self.columns.device))

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
        probs = step.new_zeros(prompts, rungs, self.num_verdicts)
        for state in range(states):  # parents come before children
            for column in (self.next_state[state] >= 0).nonzero()[:, 0].tolist():
                target, flow = int(self.next_state[state, column]), reach[:, state] * step[:, state, :, column]
                if target < states:
                    reach[:, target] += flow
                else:
                    probs[:, :, target - states] += flow
        return probs


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

    @property
    def verdicts(self) -> Tensor:
        """[N] int64 verdict ids, negative where the walk has not ended."""
        return self.states - self.trie.num_states


__all__ = ["OpenVocabulary", "TrieWalk", "VerdictTrie"]
