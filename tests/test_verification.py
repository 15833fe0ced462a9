"""Verification writes exactly what the target alone would write: by enumeration, by identities, by counting."""

import math
from itertools import product

import pytest
import torch
from enumeration import Pair, constant_pair, enumerate_law, markov_pair, random_pair

from transformers_egrm.modeling import draft_rules_egrm as rules
from transformers_egrm.modeling import draft_verification_egrm as v
from transformers_egrm.modeling.draft_nodes_egrm import Debts, Drafts, DraftView, follow, normalize, pick, shortfall
from transformers_egrm.modeling.engine_random_egrm import uniforms
from transformers_egrm.modeling.engine_sampling_egrm import warped_probs
from transformers_egrm.modeling.errors_egrm import ConfigError


SINGLE, MULTI = ("sd", "bv", "gbv"), ("spectr", "spectr_gbv", "md_bv", "md_bv_plus")
CASES = [(method, 1) for method in (*SINGLE, *MULTI)] + [(method, copies) for method in MULTI for copies in (2, 3)]
CONSTANT = constant_pair((2 / 3, 1 / 3), (1 / 3, 2 / 3))
MARKOV = markov_pair(
    ((0.3, 0.3, 0.4), (0.3, 0.1, 0.6), (0.5, 0.4, 0.1)), ((0.5, 0.3, 0.2), (0.1, 0.2, 0.7), (0.25, 0.25, 0.5))
)


def bias(pair: Pair, method: str, copies, length, num_tokens: int, **options) -> float:
    law = enumerate_law(method, pair, copies, length, num_tokens, **options)
    return float((law.probs - pair.law(num_tokens)).abs().max())


def warped_pair(vocab_size: int, seed: int, temperature: float, top_p: float) -> Pair:
    """Random logits through temperature and nucleus, as both models' are."""

    def table(kind: int):
        made: dict[int, torch.Tensor] = {}

        def probs(length: int) -> torch.Tensor:
            if length not in made:
                rows = vocab_size**length
                generator = torch.Generator().manual_seed(100 * seed + length)
                logits = 1.5 * torch.randn(rows, vocab_size, generator=generator)
                noise = torch.Generator().manual_seed(100 * seed + length + 50)
                logits += kind * torch.randn(rows, vocab_size, generator=noise)
                full = torch.full((rows,), temperature), torch.full((rows,), top_p)
                made[length] = warped_probs(logits, *full)
            return made[length]

        return probs

    return Pair(table(1), table(0), vocab_size)


# -- exactness ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "copies"), CASES)
@pytest.mark.parametrize(
    ("pair", "length", "num_tokens"),
    [
        (CONSTANT, 2, 5),
        (MARKOV, 3, 4),
        (random_pair(3, seed=1), 2, 4),
        (random_pair(2, seed=2), 3, 6),
        (random_pair(3, seed=3, zeros=0.4), 2, 4),
        (random_pair(3, seed=4, end=1), 2, 4),
        (warped_pair(4, seed=5, temperature=0.7, top_p=0.85), 2, 3),
    ],
    ids=["constant", "markov", "random", "binary", "zeros", "end", "nucleus"],
)
def test_every_method_writes_the_targets_own_law(method, copies, pair, length, num_tokens):
    assert bias(pair, method, copies, length, num_tokens) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(("method", "copies"), CASES)
@pytest.mark.parametrize("vocab_size", [2, 3, 4])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_every_method_writes_the_targets_own_law_on_a_grid(method, copies, vocab_size, length):
    num_tokens = {2: 7, 3: 5, 4: 4}[vocab_size] if length < 3 else {2: 6, 3: 4, 4: 4}[vocab_size]
    for seed in range(3):
        for zeros in (0.0, 0.35, 0.5):
            for end in (None, 0):
                pair = random_pair(vocab_size, seed=10 * length + seed, zeros=zeros, mix=0.3 * seed, end=end)
                assert bias(pair, method, copies, length, num_tokens) < 1e-12, (seed, zeros, end)


@pytest.mark.parametrize("method", MULTI)
def test_drafts_may_change_in_number_and_length_from_round_to_round(method):
    pair = random_pair(2, seed=6)
    assert bias(pair, method, lambda written: 1 + written % 3, 2, 5) < 1e-12
    # With the draft's probabilities after its last token a draft may even be shorter than a debt.
    assert bias(pair, method, 2, lambda written: 1 if written % 2 else 3, 6) < 1e-12


def test_a_debt_that_outlives_the_drafts_needs_the_drafts_next_distribution():
    debts = Debts(torch.tensor([[0.3]], dtype=torch.float64), torch.tensor([[2]]), torch.tensor([[1]]))
    probs = torch.full((1, 1, 2, 2), 0.5, dtype=torch.float64)
    drafts = Drafts.of(torch.zeros(1, 1, 1, dtype=torch.int64), probs[:, :, :1], probs)
    with pytest.raises(ConfigError, match="2 more tokens"):
        follow(drafts, debts)


def test_a_method_that_is_not_named_follows_from_the_number_of_drafts():
    assert [v.default_method(count) for count in (1, 2, 5, None)] == ["bv", "md_bv_plus", "md_bv_plus", "md_bv_plus"]
    assert v.default_method(1, looked_up=True) == v.default_method(None, looked_up=True) == "sd"
    assert v.rule_of(None, 1) is v.METHODS["bv"]
    assert v.rule_of(None, 2) is v.METHODS["md_bv_plus"]


# -- golden values and identities ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pair", "length", "num_tokens", "copies", "method", "accepted", "calls"),
    [
        (CONSTANT, 2, 5, 1, "sd", 10 / 9, 2.7283950617),
        (CONSTANT, 2, 5, 1, "bv", 11 / 9, 2.6543209877),
        (CONSTANT, 2, 5, 1, "gbv", 12 / 9, 2.7283950617),
        (CONSTANT, 2, 5, 2, "spectr", 1.4054865457, 2.4200004414),
        (CONSTANT, 2, 5, 2, "spectr_gbv", 1.5833333333, 2.3638740736),
        (CONSTANT, 2, 5, 2, "md_bv", 1.5277777778, 2.3418209877),
        (CONSTANT, 2, 5, 2, "md_bv_plus", 1.5277777778, 2.3418209877),
        (CONSTANT, 2, 5, 3, "spectr", 1.5933063621, 2.2437228901),
        (CONSTANT, 2, 5, 3, "spectr_gbv", 1.7291666667, 2.1850209144),
        (CONSTANT, 2, 5, 3, "md_bv", 1.7013888889, 2.1805073302),
        (CONSTANT, 2, 5, 3, "md_bv_plus", 1.7013888889, 2.1805073302),
        (MARKOV, 3, 4, 1, "sd", 1.8280, 1.7220),
        (MARKOV, 3, 4, 1, "bv", 1.8920, 1.6660),
        (MARKOV, 3, 4, 1, "gbv", 2.0100, 1.6786240602),
        (MARKOV, 3, 4, 2, "spectr", 2.1091586884, 1.5636948874),
        (MARKOV, 3, 4, 2, "spectr_gbv", 2.4193808571, 1.4092674062),
        (MARKOV, 3, 4, 2, "md_bv", 2.3590180000, 1.3984708571),
        (MARKOV, 3, 4, 2, "md_bv_plus", 2.3654465714, 1.3943994286),
        (MARKOV, 3, 4, 3, "spectr_gbv", 2.6249582324, 1.2789959800),
        (MARKOV, 3, 4, 3, "md_bv", 2.5918989100, 1.2759198498),
        (MARKOV, 3, 4, 3, "md_bv_plus", 2.5928172773, 1.2754220947),
    ],
)
def test_expected_lengths_and_rounds_are_the_published_ones(pair, length, num_tokens, copies, method, accepted, calls):
    law = enumerate_law(method, pair, copies, length, num_tokens)
    assert law.accepted == pytest.approx(accepted, abs=1e-9)
    assert law.calls == pytest.approx(calls, abs=1e-9)


@pytest.mark.parametrize("pair", [MARKOV, random_pair(3, seed=7), random_pair(3, seed=8, zeros=0.4)])
def test_with_one_draft_the_multi_draft_methods_are_their_counterparts(pair):
    for single in SINGLE:
        many = v.METHODS[single].many
        assert many is not None
        one, other = enumerate_law(single, pair, 1, 2, 4), enumerate_law(many, pair, 1, 2, 4)
        assert other.accepted == pytest.approx(one.accepted, abs=1e-13)
        assert other.calls == pytest.approx(one.calls, abs=1e-13)


def best_expected_length(pair: Pair, copies: int, length: int) -> float:
    """Theorem 5.3 of arXiv 2604.25925, term by term."""
    total, p, q = 0.0, torch.ones(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    for node in range(length):
        p, q = (p[:, None] * pair.draft(node)).flatten(), (q[:, None] * pair.target(node)).flatten()
        ratio = torch.where(q > 0, p / q, 0.0).nan_to_num(0.0).clamp_max(1)
        total += float((q * (1 - (1 - ratio) ** copies)).sum())
    return total


@pytest.mark.parametrize(
    "pair", [MARKOV, random_pair(3, seed=9), random_pair(3, seed=10, zeros=0.4), random_pair(4, seed=11)]
)
def test_spectr_gbv_reaches_the_expected_length_of_theorem_5_3(pair):
    found = [enumerate_law("spectr_gbv", pair, copies, 2, 3).accepted for copies in (1, 2, 3)]
    assert found == pytest.approx([best_expected_length(pair, copies, 2) for copies in (1, 2, 3)], abs=1e-12)
    assert found[0] < found[1] < found[2]


def test_drafts_of_one_token_make_clocked_and_greedy_blocks_alike():
    for pair in (MARKOV, random_pair(4, seed=12, zeros=0.3)):
        for copies in (1, 2, 3):
            greedy, plain = (enumerate_law(m, pair, copies, 1, 3).accepted for m in ("spectr_gbv", "md_bv"))
            assert greedy == pytest.approx(plain, abs=1e-12)


def test_a_shared_root_accepts_at_least_what_k_seq_and_greedy_blocks_do_on_one_token():
    for seed in range(40):
        pair = random_pair(4, seed=seed, zeros=0.4, mix=0.1)
        shared, k_seq, greedy = (
            enumerate_law(m, pair, 2, 1, 1).accepted for m in ("md_bv_plus", "spectr", "spectr_gbv")
        )
        assert shared >= max(k_seq, greedy) - 1e-12


def test_with_thousands_of_drafts_everything_the_draft_can_write_is_accepted():
    pair = markov_pair(((0.3, 0.3, 0.4),) * 3, ((0.5, 0.3, 0.2),) * 3)
    assert best_expected_length(pair, 2000, 2) == pytest.approx(2.0, abs=1e-3)
    view = follow(one_draft_each(pair, 2), Debts.none(9))
    keeps = rules.thinning(
        rules.descend(view, torch.full((9, 1), 2), torch.full((9, 1), 1e-4, dtype=torch.float64)), 2000
    )
    assert bool((keeps >= 0).all())
    assert bool((keeps[..., 0] == 1).all())


def one_draft_each(pair: Pair, length: int) -> Drafts:
    """All V ** L drafts from the empty context, one row each."""
    size = pair.vocab_size
    paths = torch.cartesian_prod(*[torch.arange(size)] * length).view(-1, 1, length)
    at, draft, target = torch.zeros(len(paths), dtype=torch.int64), [], []
    for node in range(length + 1):
        draft.append(pair.draft(node)[at])
        target.append(pair.target(node)[at])
        at = at * size + (paths[:, 0, node] if node < length else 0)
    return Drafts.of(paths, torch.stack(draft, 1)[:, None], torch.stack(target, 1)[:, None])


@pytest.mark.parametrize("pair", [MARKOV, random_pair(3, seed=13, zeros=0.3)])
@pytest.mark.parametrize("greedy", [True, False], ids=["greedy blocks", "blocks"])
def test_clocks_are_uniform_whatever_the_drafts_say(pair, greedy):
    drafts = one_draft_each(pair, 2)
    path_probs = drafts.draft_probs[:, 0, :2].gather(-1, drafts.tokens[:, 0, :, None])[..., 0].prod(-1)
    likely = path_probs > 0
    drafts = Drafts.of(drafts.tokens[likely], drafts.draft_probs[likely], drafts.target_probs[likely])
    view = follow(drafts, Debts.none(int(likely.sum())))
    weights = rules.block_weights(view, drafts.places)
    tests = (rules.greedy_block_tests(view) if greedy else rules.block_tests(view, weights))[:, 0]
    later = torch.nn.functional.pad((1 - tests).flip(-1).cumprod(-1).flip(-1), (0, 1), value=1.0)
    stop_probs = path_probs[likely, None] * torch.nn.functional.pad(tests, (1, 0), value=1.0) * later
    at = torch.linspace(0.01, 0.99, 33, dtype=torch.float64)
    below = torch.zeros_like(at)
    for stop in range(3):
        nodes = torch.full((len(tests), 1), stop)
        if greedy:
            lower, upper = (bound[:, 0, stop, None] for bound in rules.greedy_clock_bounds(view))
            ends = torch.cat([lower, upper], 1)
            # The clock at the root rises with the clock at the stop: invert it on a grid fine enough for its kinks.
            fine = ends[:, :1] + (ends[:, 1:] - ends[:, :1]) * torch.linspace(0, 1, 4001, dtype=torch.float64)
            wide = DraftView(*(getattr(view, name).expand(-1, 4001, *[-1] * (getattr(view, name).ndim - 2))
                            for name in ("draft", "target", "given_target", "log_ratios", "debt_log_ratios")))  # fmt: skip
            clocks = rules.descend(wide, nodes.expand(-1, 4001), fine)[..., 0]
            shares = (clocks[..., None] <= at).double().mean(1)
        else:
            law = rules.block_residual(view.each(nodes), weights[:, :, stop])[:, 0]
            shares = torch.zeros(len(tests), len(at), dtype=torch.float64)
            for token in range(pair.vocab_size):
                node = view.each(nodes)
                lower, upper = rules.block_clock_bounds(
                    node, rules.log_minima(view)[:, :, stop], torch.full_like(nodes, token)
                )
                share = ((at - lower) / (upper - lower).clamp_min(1e-300)).clamp(0, 1)
                shares += torch.where(law[:, token, None] > 0, law[:, token, None] * share, 0.0)
        stops_here = stop_probs[:, stop, None]
        below += torch.where(stops_here > 0, stops_here * shares, 0.0).sum(0)
    assert (below - at).abs().max() < (1e-3 if greedy else 1e-12)


# -- negative controls ----------------------------------------------------------------------------------------------------


def test_greedy_blocks_that_forget_their_debts_are_biased():
    assert bias(CONSTANT, "gbv", 1, 2, 3, forget_debts=True) > 3e-2
    assert bias(CONSTANT, "spectr_gbv", 2, 2, 3, forget_debts=True) > 1e-2
    assert bias(CONSTANT, "spectr_gbv", 3, 2, 3, forget_debts=True) > 3e-3


def test_debts_in_the_wrong_order_are_biased():
    assert bias(MARKOV, "gbv", 1, 3, 4, reverse_debts=True) > 1e-4
    assert bias(MARKOV, "spectr_gbv", 2, 3, 4, reverse_debts=True) > 1e-4


def test_a_residual_with_the_exponent_inside_is_biased(monkeypatch):
    def wrong(node, copies):
        covered = 1 - shortfall(node.target, node.draft, node.log_ratios)
        left = normalize(node.target * (1 - covered**copies), node.target)
        return torch.where(node.is_last[..., None], node.target, left)

    assert bias(MARKOV, "spectr_gbv", 2, 2, 3) < 1e-12
    monkeypatch.setattr(rules, "greedy_block_residual", wrong)
    assert bias(MARKOV, "spectr_gbv", 1, 2, 3) < 1e-12  # the same for one draft
    assert bias(MARKOV, "spectr_gbv", 2, 2, 3) > 1e-3


@pytest.mark.parametrize("method", ["sd", "bv"])
def test_the_longest_of_several_independent_verifications_is_biased(method):
    pair, copies, length = MARKOV, 3, 2
    drafts = one_draft_each(pair, length)
    view = follow(drafts, Debts.none(9))
    weights = rules.block_weights(view, drafts.places)
    path_probs = drafts.draft_probs[:, 0, :length].gather(-1, drafts.tokens[:, 0, :, None])[..., 0].prod(-1)
    if method == "sd":
        reach = torch.nn.functional.pad(rules.token_tests(view, drafts.places)[:, 0].cumprod(-1), (1, 0), value=1.0)
        stop_probs = reach - torch.nn.functional.pad(reach[:, 1:], (0, 1))
    else:
        tests = rules.block_tests(view, weights)[:, 0]
        later = torch.nn.functional.pad((1 - tests).flip(-1).cumprod(-1).flip(-1), (0, 1), value=1.0)
        stop_probs = torch.nn.functional.pad(tests, (1, 0), value=1.0) * later
    mass = (path_probs[:, None] * stop_probs).sum(0)
    reached = mass.cumsum(0)
    longest = reached**copies - torch.nn.functional.pad(reached[:-1], (1, 0)) ** copies
    for chosen, exact in ((mass, True), (longest, False)):
        first = torch.zeros(3, dtype=torch.float64)  # law of the first token
        for stop in range(length + 1):
            nodes = torch.full((9, 1), stop)
            law = (
                rules.token_residual(view.each(nodes))
                if method == "sd"
                else rules.block_residual(view.each(nodes), weights[:, :, stop])
            )[:, 0]
            share = path_probs * stop_probs[:, stop] * chosen[stop] / mass[stop]
            if stop == 0:
                first += (share[:, None] * law).sum(0)
            else:
                first.index_add_(0, drafts.tokens[:, 0, 0], share)
        error = float((first - pair.target(0)[0]).abs().max())
        assert (error < 1e-12) is exact
        assert exact or error > 2e-2


def released_rule(p, q, copies: int) -> list[float]:
    """The law of one token under the rule of github.com/junemily/SpecTr-GBV, commit e399f446, for drafts of one token."""
    covered = [min(a / b, 1.0) for a, b in zip(p, q, strict=True)]
    tests = [b * (1 - (1 - m) ** copies) / (1 - (1 - a) ** copies) for a, b, m in zip(p, q, covered, strict=True)]
    law, refused = [0.0] * len(p), 0.0
    for drafts in product(range(len(p)), repeat=copies):
        left = math.prod(p[token] for token in drafts)
        for token in dict.fromkeys(drafts):  # a prefix that was tested is not tested again
            law[token] += left * tests[token]
            left *= 1 - tests[token]
        refused += left
    residual = [b * (1 - m**copies) for b, m in zip(q, covered, strict=True)]
    return [mass + refused * share / sum(residual) for mass, share in zip(law, residual, strict=True)]


def test_the_rule_of_the_released_code_is_biased_for_two_drafts():
    p, q = (2 / 3, 1 / 3), (1 / 3, 2 / 3)
    assert released_rule(p, q, 1) == pytest.approx(q, abs=1e-12)
    assert released_rule(p, q, 2) == pytest.approx((0.2583333333, 0.7416666667), abs=1e-9)
    assert enumerate_law("spectr_gbv", CONSTANT, 2, 1, 1).probs.tolist() == pytest.approx(q, abs=1e-12)


# -- the code as it runs ---------------------------------------------------------------------------------------------------


def numbers(rows: int, drafts: int, length: int, seed: int, step: int, first_row: int = 0) -> v.Uniforms:
    size = drafts * (length + 2) + 1
    item_ids = torch.arange(first_row, first_row + rows).repeat_interleave(size)
    drawn = uniforms(seed, item_ids, torch.arange(size).repeat(rows), step).view(rows, size)
    tests, clocks, nexts, thin = drawn.split([drafts * length, drafts, drafts, 1], dim=1)
    return v.Uniforms(tests.reshape(rows, drafts, length), clocks, thin[:, 0], nexts)


def write(method: str, pair: Pair, copies: int, length: int, num_tokens: int, rows: int, seed: int = 0):
    """Contexts of `num_tokens` tokens that rounds wrote, row by row, and the debts' greatest number."""
    size = pair.vocab_size
    tables = range(num_tokens + length + 1)
    starts = torch.tensor([0, *(size**n for n in tables)]).cumsum(0)
    draft, target = (torch.cat([table(n) for n in tables]) for table in (pair.draft, pair.target))
    contexts, written = torch.zeros(rows, dtype=torch.int64), torch.zeros(rows, dtype=torch.int64)
    debts, step, most = Debts.none(rows), 0, 0
    result = torch.zeros(rows, dtype=torch.int64)
    alive = torch.arange(rows)
    while len(alive):
        draws = uniforms(seed + 1, torch.arange(rows).repeat_interleave(copies * length),
                         torch.arange(copies * length).repeat(rows), step).view(rows, copies, length)[alive]  # fmt: skip
        at, n = contexts[alive, None].expand(-1, copies), written[alive, None]
        p, q, tokens = [], [], []
        for node in range(length + 1):
            p.append(draft[starts[n + node] + at])
            q.append(target[starts[n + node] + at])
            if node < length:
                drawn = pick(p[-1].flatten(0, 1), draws[..., node].flatten()).view_as(at)
                tokens.append(drawn)
                at = at * size + drawn
        drafts = Drafts.of(torch.stack(tokens, 2), torch.stack(p[:length], 2), torch.stack(q, 2))
        numbered = numbers(rows, copies, length, seed, step)
        numbered = v.Uniforms(
            numbered.tests[alive], numbered.clocks[alive], numbered.thinning[alive], numbered.next_tokens[alive]
        )
        done = v.verify(method, drafts, debts, numbered)
        debts, step = done.debts, step + 1
        most = max(most, debts.remaining.shape[1])
        winning = drafts.tokens[torch.arange(len(alive)), done.winners]
        for node in range(length + 1):
            token = torch.where(done.accepted == node, done.next_tokens, winning[:, min(node, length - 1)])
            writes = (node <= done.accepted) & (written[alive] < num_tokens)
            contexts[alive] = torch.where(writes, contexts[alive] * size + token, contexts[alive])
            written[alive] += writes
        going = written[alive] < num_tokens
        result[alive[~going]] = contexts[alive[~going]]
        alive, debts = alive[going], debts.select(going)
    return result, most


def chi_square_p_value(counts: torch.Tensor, law: torch.Tensor) -> float:
    """Of observing at least this much deviation; outcomes of probability 0 must not occur, rare ones are pooled."""
    assert int(counts[law == 0].sum()) == 0
    expected = counts.sum() * law
    common = expected >= 5
    if float(expected[~common].sum()) < 5:  # too little for a cell of its own
        common[expected.masked_fill(~common, torch.inf).argmin()] = False
    pooled = [torch.cat([part[common], part[~common].sum()[None]]).double() for part in (counts, expected)]
    observed, expected = (part[pooled[1] > 0] for part in pooled)
    assert len(expected) >= 10, "too few outcomes to tell one law from another"
    statistic = ((observed - expected) ** 2 / expected).sum()
    return float(1 - torch.special.gammainc(torch.tensor((len(expected) - 1) / 2, dtype=torch.float64), statistic / 2))


@pytest.mark.parametrize(("method", "copies"), [*((m, 1) for m in SINGLE), *((m, 3) for m in MULTI)])
@pytest.mark.parametrize("pair", [MARKOV, random_pair(3, seed=14, zeros=0.35)], ids=["markov", "zeros"])
def test_batches_write_the_targets_law(method, copies, pair):
    written, most = write(method, pair, copies, length=3, num_tokens=4, rows=60_000)
    assert chi_square_p_value(torch.bincount(written, minlength=81), pair.law(4)) > 1e-3
    assert (most > 1) is (method in ("gbv", "spectr_gbv"))


def test_counting_would_notice_forgotten_debts(monkeypatch):
    monkeypatch.setattr(v, "next_debts", lambda debts, *_: Debts.none(debts.remaining.shape[0]))
    written, _ = write("gbv", MARKOV, 1, length=3, num_tokens=4, rows=60_000)
    assert chi_square_p_value(torch.bincount(written, minlength=81), MARKOV.law(4)) < 1e-9


@pytest.mark.parametrize(("method", "copies"), [("gbv", 1), ("spectr_gbv", 3), ("md_bv_plus", 3), ("spectr", 3)])
def test_a_row_is_verified_alike_alone_and_among_others(method, copies):
    generator = torch.Generator().manual_seed(5)

    def probs(*shape):
        weights = torch.rand(*shape, 6, generator=generator, dtype=torch.float64) ** 4
        return weights / weights.sum(-1, keepdim=True)

    rows, length = 7, 4
    p, q = probs(rows, copies, length), probs(rows, copies, length + 1)
    p, q = p.clone(), q.clone()
    p[:, :, 0], q[:, :, 0] = p[:, :1, 0], q[:, :1, 0]
    tokens = torch.randint(6, (rows, copies, length), generator=generator)
    debts = Debts.none(rows)
    if v.METHODS[method].leaves_debts:  # rows owe between none and two debts
        debts = Debts(
            torch.randn(rows, 2, generator=generator, dtype=torch.float64),
            torch.tensor([[0, 0], [2, 3], [0, 1], [3, 0], [0, 0], [1, 1], [0, 3]]),
            torch.full((rows, 2), copies),
        ).compact()
    numbered = numbers(rows, copies, length, seed=3, step=0)
    together = v.verify(method, Drafts.of(tokens, p, q), debts, numbered)
    for row in range(rows):
        one = slice(row, row + 1)
        alone = v.verify(
            method,
            Drafts.of(tokens[one], p[one], q[one]),
            debts.select(torch.tensor([row])).compact(),
            v.Uniforms(numbered.tests[one], numbered.clocks[one], numbered.thinning[one], numbered.next_tokens[one]),
        )
        assert (int(alone.winners), int(alone.accepted), int(alone.next_tokens)) == (
            int(together.winners[row]), int(together.accepted[row]), int(together.next_tokens[row]),
        )  # fmt: skip
        own = together.debts.select(torch.tensor([row])).compact()
        assert torch.equal(alone.debts.remaining, own.remaining)
        assert torch.allclose(alone.debts.log_ratios, own.log_ratios, atol=1e-12)


@pytest.mark.parametrize("method", [*SINGLE, *MULTI])
def test_a_greedy_target_keeps_exactly_the_longest_draft_that_agrees_with_it(method):
    copies, length, rows = (1 if method in SINGLE else 3), 4, 50
    generator = torch.Generator().manual_seed(2)
    # Both models are order-free here: equal prefixes need equal distributions.
    q = torch.zeros(rows, copies, length + 1, 3, dtype=torch.float64)
    best = torch.randint(3, (rows, length + 1), generator=generator)
    q.scatter_(-1, best[:, None, :, None].expand(-1, copies, -1, 1), 1.0)
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).expand(rows, copies, length, 3)
    tokens = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), rows * copies * length, True, generator=generator)
    tokens = tokens.view(rows, copies, length)
    done = v.verify(method, Drafts.of(tokens, p, q), Debts.none(rows), numbers(rows, copies, length, 0, 0))
    matches = (tokens == best[:, None, :length]).long().cumprod(-1).sum(-1)
    assert torch.equal(done.accepted, matches.amax(1))
    assert torch.equal(done.next_tokens, best.gather(1, done.accepted[:, None])[:, 0])
    assert torch.equal(matches.gather(1, done.winners[:, None])[:, 0], done.accepted)


def test_columns_may_be_a_part_of_the_vocabulary():
    generator = torch.Generator().manual_seed(4)
    weights = torch.rand(30, 2, 4, 6, generator=generator, dtype=torch.float64) ** 3
    weights[:, :, 0] = weights[:, :1, 0]
    probs = weights / weights.sum(-1, keepdim=True)
    p, q = probs[:, :, :3], probs.flip(-1)
    tokens = torch.randint(6, (30, 2, 3), generator=generator)
    numbered = numbers(30, 2, 3, 1, 0)
    whole = v.verify("spectr_gbv", Drafts.of(tokens, p, q), Debts.none(30), numbered)
    columns = torch.tensor([11, 14, 20, 21, 30, 99]).expand(30, 2, 4, 6)
    named = Drafts(columns[0, 0, 0][tokens], tokens, p, q, columns)
    part = v.verify("spectr_gbv", named, Debts.none(30), numbered)
    assert torch.equal(part.next_tokens, columns[0, 0, 0][whole.next_tokens])
    assert torch.equal(part.accepted, whole.accepted)


# -- numbers ----------------------------------------------------------------------------------------------------------------


def test_rounding_of_probabilities_moves_tests_by_rounding_only():
    generator = torch.Generator().manual_seed(6)
    logits = torch.randn(2, 8, 3, 7, 1000, generator=generator, dtype=torch.float64)
    exact = [(2 * part).softmax(-1) for part in logits]
    rounded = [part.float().double() / part.float().double().sum(-1, keepdim=True) for part in exact]
    tokens = torch.multinomial(exact[0][:, :, :6].flatten(0, 2), 1, generator=generator).view(8, 3, 6)
    tests = []
    for p, q in (exact, rounded):
        drafts = Drafts.of(tokens, p[:, :, :6], q)
        tests.append(rules.greedy_block_tests(follow(drafts, Debts.none(8))))
    assert (tests[0] - tests[1]).abs().max() < 1e-5


@pytest.mark.parametrize(("method", "copies"), [(m, 1) for m in SINGLE] + [(m, 3) for m in MULTI])
def test_large_vocabularies_and_tiny_probabilities_stay_finite(method, copies):
    size, length = 32_000, 3
    generator = torch.Generator().manual_seed(7)
    q = (4 * torch.randn(2, copies, length + 1, size, generator=generator, dtype=torch.float64)).softmax(-1)
    p = q[:, :, :length].clone()
    p[..., 0], q[..., 0] = 1e-30, 0.0  # the draft can write what the target cannot
    q /= q.sum(-1, keepdim=True)
    tokens = torch.randint(1, size, (2, copies, length), generator=generator)
    tokens[0, 0] = 0
    done = v.verify(method, Drafts.of(tokens, p, q), Debts.none(2), numbers(2, copies, length, 0, 0))
    assert bool((done.accepted >= 0).all())
    assert bool((done.next_tokens > 0).all())
    assert not bool(done.debts.log_ratios.isnan().any())


def test_drafts_that_are_far_less_probable_than_float_can_say_are_still_verified():
    size, length = 50, 24  # products near 1e-41
    even = torch.full((1, 1, length + 1, size), 1 / size, dtype=torch.float64)
    tokens = torch.zeros(1, 1, length, dtype=torch.int64)
    half = torch.ones(size, dtype=torch.float64)
    half[0] = 0.5
    target = even * half / (even * half).sum(-1, keepdim=True)
    view = follow(Drafts.of(tokens, even[:, :, :length], target), Debts.none(1))
    assert rules.greedy_block_tests(view)[0, 0, -1] == pytest.approx((0.5 * size / (size - 0.5)) ** length, rel=1e-9)


@pytest.mark.parametrize(
    ("method", "copies", "message"), [("sd", 2, "num_drafts=2"), ("gbv", 3, "spectr_gbv"), ("viterbi", 1, "viterbi")]
)
def test_methods_that_do_not_fit_are_refused(method, copies, message):
    with pytest.raises(ConfigError, match=message):
        v.rule_of(method, copies)


def test_methods_that_leave_no_debts_refuse_those_of_another_method():
    debts = Debts(torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.int64), torch.ones(1, 1))
    probs = torch.full((1, 1, 2, 2), 0.5, dtype=torch.float64)
    drafts = Drafts.of(torch.zeros(1, 1, 1, dtype=torch.int64), probs[:, :, :1], probs)
    with pytest.raises(ConfigError, match="debts"):
        v.verify("bv", drafts, debts, numbers(1, 1, 1, 0, 0))
