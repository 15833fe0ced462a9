"""The exact law of what verification writes, by enumeration of all drafts and decisions over the production functions.

Contexts of equal length are run as one batch. Decisions are weighted with the probabilities that the code computes for
them; clocks are integrated piece by piece between their kinks, where integrands are polynomials and Gauss's rule is
exact.
"""

from dataclasses import dataclass, replace
from itertools import product
from math import comb

import torch
from torch import Tensor

from transformers_egrm.modeling import draft_rules_egrm as rules
from transformers_egrm.modeling.draft_nodes_egrm import Debts, Drafts, Node, follow, next_debts, normalize


GAUSS_NODES = (0.5 + 0.5 * torch.tensor([-0.861136311594052575224, -0.339981043584856264803,
                                         0.339981043584856264803, 0.861136311594052575224], dtype=torch.float64))  # fmt: skip
GAUSS_WEIGHTS = 0.5 * torch.tensor([0.347854845137453857373, 0.652145154862546142627,
                                    0.652145154862546142627, 0.347854845137453857373], dtype=torch.float64)  # fmt: skip


class Pair:
    """A draft and a target that are tables: next-token probabilities by context.

    Args:
        draft: Called with a context's length; [V ** length, V] float64, contexts as numbers in base V.
        target: The same.
    """

    def __init__(self, draft, target, vocab_size: int) -> None:
        self.draft, self.target, self.vocab_size = draft, target, vocab_size

    def law(self, num_tokens: int) -> Tensor:
        """[V ** num_tokens] the target's own law."""
        law = torch.ones(1, dtype=torch.float64)
        for length in range(num_tokens):
            law = (law[:, None] * self.target(length)).flatten()
        return law


def constant_pair(draft, target) -> Pair:
    """The same two distributions at every context."""
    p, q = (torch.tensor(probs, dtype=torch.float64) for probs in (draft, target))
    size = len(p)
    return Pair(lambda n: p.expand(size**n, -1), lambda n: q.expand(size**n, -1), size)


def markov_pair(draft, target) -> Pair:
    """Rows by last token; row 0 at the start."""
    p, q = (torch.tensor(rows, dtype=torch.float64) for rows in (draft, target))
    size = len(p)

    def table(rows):
        return lambda n: rows[:1] if n == 0 else rows.repeat(size ** (n - 1), 1)

    return Pair(table(p), table(q), size)


def random_pair(vocab_size: int, seed: int, zeros: float = 0.0, mix: float = 0.5, end: int | None = None) -> Pair:
    """Independent tables of every context; a share of entries is exactly 0 in either.

    Args:
        vocab_size: V.
        seed: Of the tables.
        zeros: Share of zeros.
        mix: How much of the target is in the draft.
        end: A token after which both models repeat it for ever.
    """
    made: dict[tuple[str, int], Tensor] = {}

    def drawn(kind: int, length: int) -> Tensor:
        generator = torch.Generator().manual_seed(1000 * seed + 10 * length + kind)
        shape = (vocab_size**length, vocab_size)
        weights = torch.rand(shape, generator=generator, dtype=torch.float64) ** 3 + 1e-3
        weights *= torch.rand(shape, generator=generator) >= zeros
        weights[weights.sum(-1) == 0, kind] = 1.0
        probs = weights / weights.sum(-1, keepdim=True)
        if end is not None and length:
            contexts = torch.arange(shape[0])
            ended = torch.zeros(shape[0], dtype=torch.bool)
            for _ in range(length):
                ended |= contexts % vocab_size == end
                contexts //= vocab_size
            probs[ended] = torch.nn.functional.one_hot(torch.tensor(end), vocab_size).double()
        return probs

    def target(length):
        return made.setdefault(("target", length), drawn(0, length))

    def draft(length):
        if ("draft", length) not in made:
            own = drawn(1, length)
            keep = own > 0
            mixed = torch.where(keep, mix * target(length) + (1 - mix) * own, 0.0)
            made["draft", length] = mixed / mixed.sum(-1, keepdim=True)
        return made["draft", length]

    return Pair(draft, target, vocab_size)


@dataclass(frozen=True)
class Law:
    """What enumeration found."""

    probs: Tensor
    """[V ** N], the law of the first N tokens."""
    accepted: float
    """Expected accepted tokens of the first round."""
    calls: float
    """Expected rounds until N tokens are written."""


@dataclass
class _Outcomes:
    contexts: Tensor
    weights: Tensor
    debts: Debts


def enumerate_law(
    method: str, pair: Pair, copies, length, num_tokens: int, *, forget_debts: bool = False, reverse_debts: bool = False,
) -> Law:  # fmt: skip
    """Run rounds from the empty context until at least N tokens are written.

    Args:
        method: Key of `METHODS`.
        pair: The models.
        copies: S, or a function of the number of tokens written before the round.
        length: L, or such a function.
        num_tokens: N.
        forget_debts: Leave out the debts of `gbv` and `spectr_gbv`.
        reverse_debts: Apply them newest first.
    """
    size = pair.vocab_size
    pending: list[list[_Outcomes]] = [[] for _ in range(num_tokens)]
    pending[0].append(_Outcomes(torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.float64), Debts.none(1)))
    law, accepted, calls = torch.zeros(size**num_tokens, dtype=torch.float64), 0.0, 0.0
    for written in range(num_tokens):
        nodes = _merged(pending[written], size**written)
        if nodes is None:
            continue
        calls += float(nodes.weights.sum())
        debts = Debts.none(len(nodes.contexts)) if forget_debts else nodes.debts
        if reverse_debts:
            debts = Debts(*(value.flip(1) for value in (debts.log_ratios, debts.remaining, debts.copies)))
        count = copies(written) if callable(copies) else copies
        depth = length(written) if callable(length) else length
        round_ = _Round(pair, written, replace(nodes, debts=debts), count, depth)
        for stop, outcomes in round_.outcomes(method):
            if written == 0:
                accepted += stop * float(outcomes.weights.sum())
            if written + stop + 1 < num_tokens:
                pending[written + stop + 1].append(outcomes)
            else:
                beyond = written + stop + 1 - num_tokens
                law.index_add_(0, outcomes.contexts // size**beyond, outcomes.weights)
    return Law(law, accepted, calls)


def _merged(parts: list[_Outcomes], num_contexts: int) -> _Outcomes | None:
    if not parts:
        return None
    width = max(part.debts.remaining.shape[1] for part in parts)

    def padded(name):
        values = [getattr(part.debts, name) for part in parts]
        return torch.cat([torch.nn.functional.pad(value, (0, width - value.shape[1])) for value in values])

    debts = Debts(padded("log_ratios"), padded("remaining"), padded("copies")).compact()
    contexts, weights = torch.cat([part.contexts for part in parts]), torch.cat([part.weights for part in parts])
    if debts.remaining.shape[1] == 0:  # nothing else tells them apart
        weights = torch.zeros(num_contexts, dtype=torch.float64).index_add_(0, contexts, weights)
        contexts = torch.arange(num_contexts)
        debts = Debts.none(num_contexts)
    likely = weights > 0
    return _Outcomes(contexts[likely], weights[likely], debts.select(likely))


class _Round:
    # One round from N contexts: all V ** L drafts of each, one draft at a time; S enters as a number.
    def __init__(self, pair: Pair, written: int, nodes: _Outcomes, copies: int, length: int) -> None:
        size = pair.vocab_size
        self.pair, self.written, self.nodes, self.copies, self.length, self.size = (
            pair, written, nodes, copies, length, size
        )  # fmt: skip
        paths = torch.tensor(list(product(range(size), repeat=length)))  # [P, L]
        self.num_paths, count = len(paths), len(nodes.contexts)
        self.tokens = paths.repeat(count, 1)[:, None]  # [N * P, 1, L]
        at = nodes.contexts.repeat_interleave(len(paths))
        draft, target = [], []
        for node in range(length + 1):
            draft.append(pair.draft(written + node)[at])
            target.append(pair.target(written + node)[at])
            if node < length:
                at = at * size + self.tokens[:, 0, node]
        repeated = Debts(*(value.repeat_interleave(len(paths), 0) for value in
                              (nodes.debts.log_ratios, nodes.debts.remaining, nodes.debts.copies)))  # fmt: skip
        draft_probs = torch.stack(draft, 1)[:, None]
        on_path = draft_probs[:, 0, :length].gather(-1, self.tokens[:, 0, :, None])[..., 0].prod(-1)
        keep = on_path > 0
        self.rows = torch.arange(count).repeat_interleave(len(paths))[keep]
        self.tokens, self.debts = self.tokens[keep], repeated.select(keep)
        self.weights = on_path[keep] * nodes.weights[self.rows]
        drafts = Drafts.of(self.tokens, draft_probs[keep], torch.stack(target, 1)[:, None][keep])
        self.view = follow(drafts, self.debts)

    def outcomes(self, method: str):
        """(accepted tokens, contexts with weights and debts) of everything that may happen."""
        if method == "spectr":
            yield from self._k_seq()
        elif method == "sd":
            tests = rules.token_tests(self.view, self.tokens)[:, 0]
            reach = torch.nn.functional.pad(tests.cumprod(-1), (1, 0), value=1.0)
            stop_probs = reach - torch.nn.functional.pad(reach[:, 1:], (0, 1))
            for stop in range(self.length + 1):
                yield stop, self._written(stop, stop_probs[:, stop], rules.token_residual(self._at(stop)))
        elif method in ("gbv", "spectr_gbv"):
            yield from self._greedy_blocks()
        else:
            yield from self._blocks(method)

    def _at(self, node: int) -> Node:
        nodes = torch.full((len(self.weights),), node)
        return self.view.of(torch.zeros_like(nodes), nodes)

    def _written(self, stop: int, shares: Tensor, law: Tensor, debts=None) -> _Outcomes:
        # All next tokens of every draft: [rows * V] outcomes.
        contexts = self.nodes.contexts[self.rows]
        for node in range(stop):
            contexts = contexts * self.size + self.tokens[:, 0, node]
        contexts = (contexts[:, None] * self.size + torch.arange(self.size)).flatten()
        weights = ((self.weights * shares)[:, None] * law).flatten()
        debts = Debts.none(len(contexts)) if debts is None else debts
        keep = weights > 0
        found = _Outcomes(contexts[keep], weights[keep], debts.select(keep))
        return self._pooled(found, stop)

    def _pooled(self, found: _Outcomes, stop: int) -> _Outcomes:
        # Drafts that agree up to the stop lead to the same state.
        width = found.debts.remaining.shape[1]
        if width == 0:
            size = self.size ** (self.written + stop + 1)
            weights = torch.zeros(size, dtype=torch.float64).index_add_(0, found.contexts, found.weights)
            return _Outcomes(torch.arange(size), weights, Debts.none(size))
        keys = torch.cat([found.contexts[:, None].double(), found.debts.log_ratios, found.debts.remaining.double(),
                          found.debts.copies.double()], 1)  # fmt: skip
        _, index = keys.unique(dim=0, return_inverse=True)
        count = int(index.max()) + 1 if len(index) else 0
        weights = torch.zeros(count, dtype=torch.float64).index_add_(0, index, found.weights)
        first = torch.full((count,), len(index)).scatter_reduce(0, index, torch.arange(len(index)), "amin")
        return _Outcomes(found.contexts[first], weights, found.debts.select(first))

    def _stop_probs(self, tests: Tensor) -> Tensor:
        # [rows, L + 1]: the last test passed is that of node i.
        passed = torch.nn.functional.pad(tests, (1, 0), value=1.0)
        later = (1 - passed).flip(-1).cumprod(-1).flip(-1)
        return passed * torch.nn.functional.pad(later[:, 1:], (0, 1), value=1.0)

    def _greedy_blocks(self):
        stop_probs = self._stop_probs(rules.greedy_block_tests(self.view)[:, 0])
        kept = self._thinned(stop_probs)
        for node in range(self.length + 1):
            at = self._at(node)
            law = rules.greedy_block_residual(at, self.copies)
            nodes = torch.full((len(self.weights),), node)
            spread = [
                next_debts(self.debts, self.view, torch.zeros_like(nodes), nodes, torch.full_like(nodes, token), self.copies)
                for token in range(self.size)
            ]  # fmt: skip
            width = max(part.remaining.shape[1] for part in spread)

            def stacked(name, spread=spread, width=width):
                values = [getattr(part, name) for part in spread]
                values = [torch.nn.functional.pad(value, (0, width - value.shape[1])) for value in values]
                return torch.stack(values, 1).flatten(0, 1)

            debts = Debts(stacked("log_ratios"), stacked("remaining"), stacked("copies"))
            yield node, self._written(node, kept[:, node], law, debts)

    def _thinned(self, stop_probs: Tensor) -> Tensor:
        # [rows, L + 1]: the draft wins among S and node i is kept, all clocks averaged.
        if self.copies == 1:
            return stop_probs
        lower, upper = (bound[:, 0] for bound in rules.greedy_clock_bounds(self.view))
        kept = torch.zeros_like(stop_probs)
        for stop in range(self.length + 1):
            points = self._kinks(stop, lower[:, stop], upper[:, stop])
            levels, parts = self._integrate(stop, points)  # [rows, n, L + 1], [rows, n]
            keeps = rules.thinning(levels, self.copies)
            keeps[..., stop + 1 :] = 0
            here = keeps - torch.nn.functional.pad(keeps[..., 1:], (0, 1))
            # The other clocks are uniform on [0, 1], whatever their drafts say (tested by itself).
            wins = self.copies * (1 - levels[..., 0]) ** (self.copies - 1)
            kept += stop_probs[:, stop, None] * ((parts * wins)[..., None] * here).sum(1)
        return kept

    def _levels(self, stop: int, points: Tensor) -> Tensor:
        wide = points.shape[1]
        view = replace(self.view, **{name: getattr(self.view, name).expand(-1, wide, *[-1] * (getattr(self.view, name).ndim - 2))
                                     for name in ("draft", "target", "given_target", "log_ratios", "debt_log_ratios")})  # fmt: skip
        return rules.descend(view, torch.full(points.shape, stop), points)

    def _kinks(self, stop: int, lower: Tensor, upper: Tensor) -> Tensor:
        points = torch.stack([lower, upper], 1)
        for node in range(stop - 1, -1, -1):
            values = self._levels(stop, points)[..., node + 1].contiguous()
            draft, target = self.view.draft[:, 0, node], self.view.target[:, 0, node]
            bends = torch.where(target > 0, self.view.log_ratios[:, 0, node, None].exp() * draft / target, 0.0)
            bends = bends.nan_to_num(0.0).clamp(values[:, :1], values[:, -1:])
            right = torch.searchsorted(values, bends).clamp(1, points.shape[1] - 1)
            x0, x1 = points.gather(1, right - 1), points.gather(1, right)
            y0, y1 = values.gather(1, right - 1), values.gather(1, right)
            share = torch.where(y1 > y0, (bends - y0) / (y1 - y0).clamp_min(1e-300), 0.0).clamp(0, 1)
            points = torch.cat([points, x0 + share * (x1 - x0)], 1).sort(1).values
        return points

    def _integrate(self, stop: int, points: Tensor) -> tuple[Tensor, Tensor]:
        # Clock levels and their shares of the interval, at Gauss's nodes between the points.
        gaps = points.diff(dim=1)
        at = (points[:, :-1, None] + gaps[..., None] * GAUSS_NODES).flatten(1)
        whole = points[:, -1:] - points[:, :1]
        parts = (gaps[..., None] * GAUSS_WEIGHTS).flatten(1)
        even = torch.full_like(parts, 1 / parts.shape[1])
        return self._levels(stop, at), torch.where(whole > 0, parts / whole.clamp_min(1e-300), even)

    def _blocks(self, method: str):
        weights = rules.block_weights(self.view, self.tokens)
        stop_probs = self._stop_probs(rules.block_tests(self.view, weights)[:, 0])
        minima = rules.log_minima(self.view)[:, 0]
        shared = method == "md_bv_plus"
        root_draft = self.pair.draft(self.written)[self.nodes.contexts]
        root_target = self.pair.target(self.written)[self.nodes.contexts]
        limit, shares = rules.share_root(root_draft, root_target, self.copies)
        p, q, end = root_draft[self.rows], root_target[self.rows], limit[self.rows]
        for stop in range(self.length + 1):
            node = self._at(stop)
            law = rules.block_residual(node, weights[:, 0, stop])
            if self.copies == 1 and not shared:
                yield stop, self._written(stop, stop_probs[:, stop], law)
                continue
            if shared and stop == 0:
                continue
            wins = torch.zeros_like(law)
            for token in range(self.size):
                places = torch.full((len(law),), token)
                lower, upper = rules.block_clock_bounds(node, minima[:, stop], places)
                points = torch.stack([lower, torch.maximum(lower, upper)], 1).nan_to_num(0.0)
                if shared:
                    bends = torch.cat([torch.where(q > 0, p / q, 0.0).nan_to_num(0.0), end[:, None]], 1)
                    points = torch.cat([points, bends.clamp(points[:, :1], points[:, 1:])], 1).sort(1).values
                gaps = points.diff(dim=1)
                at = (points[:, :-1, None] + gaps[..., None] * GAUSS_NODES).flatten(1)
                whole = points[:, -1:] - points[:, :1]
                parts = (gaps[..., None] * GAUSS_WEIGHTS).flatten(1)
                parts = torch.where(whole > 0, parts / whole.clamp_min(1e-300), 1 / parts.shape[1])
                slower = 1 - at  # probability that another draft's clock is later
                if shared:
                    slower = 1 - torch.minimum(p[:, None], at[..., None] * q[:, None]).sum(-1)
                    parts = parts * (at < end[:, None])
                wins[:, token] = self.copies * (parts * slower ** (self.copies - 1)).sum(-1)
            yield stop, self._written(stop, stop_probs[:, stop], law * wins)
        if shared:
            supplied = root_target * shares
            left = normalize((root_target * (1 - shares)).clamp_min(0), root_target)
            no_one = (1 - supplied.sum(-1)).clamp_min(0)
            contexts = (self.nodes.contexts[:, None] * self.size + torch.arange(self.size)).flatten()
            weights = ((self.nodes.weights * no_one)[:, None] * left).flatten()
            yield 0, _Outcomes(contexts, weights, Debts.none(len(contexts)))

    def _k_seq(self):
        # Drafts that agree so far are again independent: only their number matters.
        contexts, weights = self.nodes.contexts, {self.copies: self.nodes.weights}
        for node in range(self.length):
            draft, target = (
                self.pair.draft(self.written + node)[contexts],
                self.pair.target(self.written + node)[contexts],
            )
            stopped = torch.zeros_like(draft)
            following: dict[int, Tensor] = {}
            for count, weight in weights.items():
                counts = torch.full((len(contexts),), count)
                ratio = rules.best_ratio(draft, target, counts)
                tests = rules.k_seq_tests(draft, target, ratio[:, None]).nan_to_num(0.0)
                refused = draft * (1 - tests)
                rest = refused.sum(-1, keepdim=True) - refused
                stopped += (weight * refused.sum(-1) ** count)[:, None] * rules.k_seq_residual(
                    draft, target, ratio, counts
                )
                for first in range(count):  # drafts refused before the first that is kept
                    for before in range(first + 1):  # ... of them with the same token
                        for after in range(count - first):  # later ones with the same token
                            share = (
                                comb(first, before) * refused**before * rest ** (first - before) * draft * tests
                                * comb(count - first - 1, after) * draft**after * (1 - draft) ** (count - first - 1 - after)
                            )  # fmt: skip
                            number = 1 + before + after
                            following.setdefault(number, torch.zeros_like(draft)).add_(weight[:, None] * share)
            longer = (contexts[:, None] * self.size + torch.arange(self.size)).flatten()
            yield node, _Outcomes(longer, stopped.flatten(), Debts.none(len(longer)))
            contexts, weights = longer, {count: value.flatten() for count, value in following.items()}
        target = self.pair.target(self.written + self.length)[contexts]
        total = sum(weights.values())
        longer = (contexts[:, None] * self.size + torch.arange(self.size)).flatten()
        yield self.length, _Outcomes(longer, (total[:, None] * target).flatten(), Debts.none(len(longer)))
