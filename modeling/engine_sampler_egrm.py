"""What every row is fed, step by step: tokens that are drawn (`BranchSampler`), or given ones (`PathSampler`).

Probes and chains are the same loop with other settings.
"""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from .engine_protocol_egrm import Branches, Decide, Drawn
from .engine_random_egrm import uniforms
from .engine_sampling_egrm import draw
from .engine_steps_egrm import Stepper
from .engine_vocabulary_egrm import OpenVocabulary, VerdictTrie


class BranchSampler:
    """The loop: draws a token per row, feeds it, until every row ended, was stopped, or ran out of budget or time.

    Args:
        branches: The rows.
        vocabulary: What may be drawn, and when a row ends.
        max_tokens: Budget of a row, at least 1.
        decide: Called after every step with what was drawn so far; returns [P] bool, prompts whose rows need not go on.
        deadlines: Per prompt, `time.monotonic()` at which its rows stop.
        want_log_probs: Whether to sum the drawn tokens' log-probabilities at temperature 1.
        pooling: Which hidden states to keep, one of `POOLINGS`; None: none.

    Attributes:
        tokens: [N, L] int64, 0 after a row's end.
        lengths: [N] int64, tokens drawn, the end token included.
        ended: [N] bool, rows that ended by themselves.
        stopped: [N] bool, rows that `decide` stopped, and rows that are not drawn at all.
        late: [N] bool, rows that their deadline stopped.
        broken: [N] bool, rows that met logits without a largest finite one (NaN, infinite).
        log_probs: [N] float32, 0 where not asked for.
        states: [N, H] pooled over the row's tokens, or None.
    """

    def __init__(
        self,
        branches: Branches,
        vocabulary: OpenVocabulary | VerdictTrie,
        max_tokens: int,
        *,
        decide: Decide | None = None,
        deadlines: Sequence[float] | None = None,
        want_log_probs: bool = False,
        pooling: str | None = None,
    ) -> None:
        num_rows, device = branches.item_ids.shape[0], branches.item_ids.device
        self.branches, self.max_tokens = branches, max_tokens
        self.vocabulary = vocabulary.walk(num_rows, device)
        self.per_prompt = branches.per_prompt
        self.decide, self.deadlines = decide, deadlines
        self.want_log_probs, self.pooling = want_log_probs, pooling
        self.tokens = torch.zeros(num_rows, max_tokens, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self.ended, self.stopped, self.late, self.broken = (
            torch.zeros(num_rows, dtype=torch.bool, device=device) for _ in range(4)
        )
        if branches.live is not None:
            self.stopped |= ~branches.live
        self.log_probs = torch.zeros(num_rows, dtype=torch.float32, device=device)
        self.states: Tensor | None = None
        self._rows = torch.arange(num_rows, device=device)  # rows the stepper holds
        self._step = 0
        self._fresh = torch.zeros_like(self.ended)  # rows whose last token has not been run yet

    @property
    def done(self) -> Tensor:
        """[N] bool, rows that draw no more."""
        return self.ended | self.stopped | self.late | self.broken

    @property
    def must_run(self) -> bool:
        """Whether the model is needed after the first draw."""
        return (self._step < self.max_tokens and not bool(self.done.all())) or (
            self.pooling is not None and bool(self._fresh.any())
        )

    @property
    def current(self) -> Tensor:
        """[n] int64, the last drawn token of every row the stepper holds."""
        return self.tokens[self._rows, (self.lengths[self._rows] - 1).clamp_min(0)]

    def draw(self, logits: Tensor) -> None:
        """Draw the next token of every row that goes on.

        Args:
            logits: [n, V or A] float32; at the first step [P, V or A], one row per prompt.
        """
        rows, branches = self._rows, self.branches
        limited = self.vocabulary.restrict(logits, rows)
        uniform = uniforms(branches.seed, branches.item_ids[rows], branches.branch_ids[rows], self._step)
        drawn = draw(limited, branches.temperatures[rows], branches.top_ps[rows], uniform)
        going = ~self.done[rows]
        finite = logits.amax(-1).isfinite().repeat_interleave(rows.shape[0] // logits.shape[0])
        self.broken[rows] |= ~finite & going
        if self.want_log_probs:
            scores = logits.log_softmax(-1).repeat_interleave(rows.shape[0] // logits.shape[0], 0)
            self.log_probs[rows] += torch.where(going, scores.gather(-1, drawn[:, None])[:, 0], 0.0)
        tokens, ends = self.vocabulary.advance(drawn, rows, self._step)
        self.tokens[rows, self._step] = torch.where(going, tokens, 0)
        self.lengths[rows] += going
        self.ended[rows] |= ends & going
        self._fresh[rows] = going
        self._step += 1
        if self.deadlines is not None:
            now = time.monotonic()
            late = torch.tensor([now > deadline for deadline in self.deadlines], device=rows.device)
            self.late |= late.repeat_interleave(self.per_prompt) & ~self.done
        if self.decide is not None and not bool(self.done.all()):
            self.stopped |= self.decide(self.drawn()).repeat_interleave(self.per_prompt) & ~self.done

    def drawn(self) -> Drawn:
        """What was drawn so far; its tensors go on changing while the sampler runs."""
        return Drawn(
            tokens=self.tokens,
            lengths=self.lengths,
            ended=self.ended,
            complete=self.ended | ~(self.done | self.must_run),
            late=self.late,
            broken=self.broken,
            log_probs=self.log_probs if self.want_log_probs else None,
            states=self.states,
        )

    def run(self, stepper: Stepper) -> None:
        """Go on from the first draw until nothing is left to do."""
        while self.must_run:
            if stepper.can_drop:
                self._drop_finished(stepper)
            logits, hidden = stepper.step(self.current, self.vocabulary.columns)
            if self.pooling is not None:
                self._keep_states(hidden)
            if self._step < self.max_tokens and not bool(self.done.all()):
                self.draw(logits)

    def _keep_states(self, hidden: Tensor) -> None:
        # Of tokens that were just run, each once.
        if self.states is None:
            self.states = hidden.new_zeros(self.done.shape[0], hidden.shape[-1], dtype=torch.float32)
        fresh = self._rows[self._fresh[self._rows]]
        own = hidden[self._fresh[self._rows]].float()
        if self.pooling == "mean":  # of so many tokens as are drawn by now
            own = self.states[fresh] + (own - self.states[fresh]) / self.lengths[fresh, None]
        self.states[fresh] = own
        self._fresh[fresh] = False

    def _drop_finished(self, stepper: Stepper) -> None:
        per_prompt = self.per_prompt
        needed = ~self.done[self._rows] | (self._fresh[self._rows] & (self.pooling is not None))
        needed = needed.view(-1, per_prompt).any(-1)
        # Moving keys and values costs about one step: only worth it when at least half of the rows go.
        if int(needed.sum()) * 2 <= needed.shape[0]:
            index = needed.nonzero()[:, 0]
            stepper.keep_prompts(index)
            self._rows = self._rows.view(-1, per_prompt)[index].flatten()


class PathSampler:
    """Feeds given token paths, the same ones after every prompt, and keeps the logits at their ends.

    Args:
        paths: Token ids of each path, none empty.
        num_prompts: P.
        columns: [A] int64, token ids whose logits are kept.

    Attributes:
        logits: [P, number of paths, A] float32.
    """

    def __init__(self, paths: Sequence[Sequence[int]], num_prompts: int, columns: Tensor) -> None:
        self.per_prompt, self.max_tokens = len(paths), max(map(len, paths), default=0)
        self.columns, self._lengths = columns, torch.tensor([len(path) for path in paths], device=columns.device)
        # Shorter paths are fed zeros after their end, which no one reads.
        padded = [[*path, *[0] * (self.max_tokens - len(path))] for path in paths]
        self._fed = torch.tensor(padded, device=columns.device).repeat(num_prompts, 1)
        self.logits = torch.zeros(num_prompts, len(paths), columns.shape[0], device=columns.device)

    @property
    def must_run(self) -> bool:
        """See `Sampler`."""
        return self.per_prompt > 0

    @property
    def current(self) -> Tensor:
        """See `Sampler`."""
        return self._fed[:, 0]

    def run(self, stepper: Stepper) -> None:
        """See `Sampler`."""
        for step in range(self.max_tokens):
            logits, _ = stepper.step(self._fed[:, step], self.columns)
            ends = self._lengths == step + 1
            self.logits[:, ends] = logits.view_as(self.logits)[:, ends].to(self.logits.device)


__all__ = ["BranchSampler", "PathSampler"]
