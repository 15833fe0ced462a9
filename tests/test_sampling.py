"""Drawing a token: the warped distribution by its definition, and its inversion however few tokens are ranked."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import TemperatureLogitsWarper, TopPLogitsWarper

from transformers_egrm.modeling import engine_sampling_egrm
from transformers_egrm.modeling.engine_sampling_egrm import draw, warped_probs


# Halves make many ties; -inf is a token that may not be drawn.
LOGITS = st.lists(st.one_of(st.integers(-8, 8).map(lambda i: i / 2), st.just(-math.inf)), min_size=1, max_size=24).filter(
    lambda logits: max(logits) > -math.inf
)  # fmt: skip
TEMPERATURES = st.one_of(st.just(0.0), st.sampled_from([0.3, 0.6, 0.8, 1.0, 2.0]))
TOP_PS = st.one_of(st.just(1.0), st.floats(0.01, 0.99))
UNIFORMS = st.floats(1e-9, 1 - 1e-9)


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float32)


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def warped_by_hand(logits: list[float], temperature: float, top_p: float) -> list[float]:
    """Keep the most probable tokens until their mass reaches top-p, and all tokens that equal the least of them."""
    if temperature == 0:
        return [float(index == logits.index(max(logits))) for index in range(len(logits))]
    weights = [math.exp((logit - max(logits)) / temperature) for logit in logits]
    floor, mass = math.inf, 0.0
    for weight in sorted(weights, reverse=True):
        if mass >= top_p * math.fsum(weights) - 1e-7 and top_p < 1:
            break
        floor, mass = weight, mass + weight
    kept = [weight if weight >= floor - 1e-12 else 0.0 for weight in weights]
    return [weight / math.fsum(kept) for weight in kept]


def invert(probs: torch.Tensor, uniform: float) -> int:
    """The first token, in vocabulary order, whose cumulated probability exceeds the uniform number."""
    mass = 0.0
    for token, prob in enumerate(probs.tolist()):
        mass += prob
        if prob > 0 and mass > uniform:
            return token
    return int(probs.nonzero()[-1])


def distance_to_a_boundary(probs: torch.Tensor, uniform: float) -> float:
    return float((probs.cumsum(-1) - uniform).abs().min())


def test_the_nucleus_is_the_smallest_set_that_reaches_its_mass():
    logits = row(math.log(0.5), math.log(0.3), math.log(0.2))
    # 0.5 alone is below 0.6, 0.5 + 0.3 reaches it.
    expected = torch.tensor([[0.5 / 0.8, 0.3 / 0.8, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(warped_probs(logits, f64(1.0), f64(0.6)), expected, atol=1e-7, rtol=0)
    # Temperature 1/2 squares the probabilities: 25, 9, 4 of 38.
    expected = torch.tensor([[25 / 38, 9 / 38, 4 / 38]], dtype=torch.float64)
    torch.testing.assert_close(warped_probs(logits, f64(0.5), f64(1.0)), expected, atol=1e-7, rtol=0)


def test_equal_logits_are_kept_or_dropped_together():
    assert warped_probs(row(0.0, 0.0, 0.0, 0.0), f64(1.0), f64(0.3)).tolist() == [[0.25] * 4]
    kept = warped_probs(row(1.0, 0.0, 0.0, -9.0), f64(1.0), f64(0.6))[0] > 0
    assert kept.tolist() == [True, True, True, False]  # 1.0 holds 0.58, so one 0.0 is needed, and both stay


def test_temperature_zero_takes_the_first_largest_logit_whatever_the_uniform():
    logits = row(1.0, 3.0, 3.0, 2.0)
    for uniform in (1e-12, 0.5, 1 - 1e-12):
        assert draw(logits, f64(0.0), f64(0.95), f64(uniform)).tolist() == [1]


def test_a_single_allowed_token_is_always_drawn():
    logits = row(-math.inf, -math.inf, -50.0, -math.inf)
    for temperature, top_p, uniform in ((0.0, 0.95, 0.9), (1.0, 1.0, 1e-16), (0.6, 0.1, 1 - 2**-53), (2.0, 0.95, 0.5)):
        assert draw(logits, f64(temperature), f64(top_p), f64(uniform)).tolist() == [2]


def test_tokens_outside_the_nucleus_are_out_of_reach_of_extreme_uniforms():
    logits = row(-20.0, 0.0, 0.1, -20.0)
    assert draw(logits, f64(1.0), f64(0.95), f64(2**-53)).tolist() == [1]
    assert draw(logits, f64(1.0), f64(0.95), f64(1 - 2**-53)).tolist() == [2]


@given(LOGITS, TEMPERATURES, TOP_PS)
def test_warped_probabilities_follow_the_definition(logits, temperature, top_p):
    ours = warped_probs(row(*logits), f64(temperature), f64(top_p))[0]
    by_hand = f64(*warped_by_hand(logits, temperature, top_p))
    assert float(ours.sum()) == pytest.approx(1)
    # Where the mass hits top-p to within rounding, either cut is right.
    weights = sorted((math.exp((x - max(logits)) / temperature) for x in logits), reverse=True) if temperature else []
    masses = [math.fsum(weights[:count]) / math.fsum(weights) for count in range(len(weights))]
    if all(abs(mass - top_p) > 1e-6 for mass in masses):
        torch.testing.assert_close(ours, by_hand, atol=1e-6, rtol=0)


@pytest.mark.parametrize("candidates", [1, 5, 256])
@settings(max_examples=60)
@given(LOGITS, st.lists(st.tuples(TEMPERATURES, TOP_PS, UNIFORMS), min_size=1, max_size=4))
def test_a_draw_inverts_the_warped_distribution_however_few_tokens_are_ranked(candidates, logits, draws):
    temperatures, top_ps, uniform = (f64(*values) for values in zip(*draws, strict=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_sampling_egrm, "TOP_CANDIDATES", candidates)
        drawn = draw(row(*logits), temperatures, top_ps, uniform).tolist()
    probs = warped_probs(row(*logits).expand(len(draws), -1), temperatures, top_ps)
    for token, own, number in zip(drawn, probs, uniform.tolist(), strict=True):
        assert own[token] > 0
        assert token == invert(own, number) or distance_to_a_boundary(own, number) < 1e-12


@pytest.mark.parametrize("sorted_columns", [0, 1024])
@settings(max_examples=60)
@given(
    st.lists(st.floats(-40, 0, width=32), min_size=1, max_size=40),
    st.lists(st.integers(-2, 2), min_size=1, max_size=40),
    st.floats(0.01, 1),
)
def test_the_nucleus_is_found_to_the_last_bit(sorted_columns, logits, steps, top_p):
    # Neighbours that differ in the last bits only are where a search over bits could go wrong.
    values = [0.0, *logits]
    for base, step in zip(logits, steps, strict=False):
        value = torch.tensor(base, dtype=torch.float32)
        for _ in range(abs(step)):
            value = torch.nextafter(value, torch.tensor(math.copysign(math.inf, step)))
        values.append(min(0.0, float(value)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_sampling_egrm, "SORTED_COLUMNS", sorted_columns)  # 0: search the bits
        probs = warped_probs(row(*values), f64(1.0), f64(top_p))[0]
    weights = torch.tensor(values, dtype=torch.float32).exp().double()  # what the definition weighs tokens with
    total = float(weights.sum())
    for weight, prob in zip(weights, probs, strict=True):
        above = math.fsum(weights[weights > weight].tolist())
        if abs(above - top_p * total) > 1e-12:
            assert (prob > 0) == (above < top_p * total)


def test_a_number_on_a_boundary_belongs_to_the_token_after_it():
    assert draw(row(0.0, 0.0), f64(1.0), f64(1.0), f64(0.5)).tolist() == [1]
    assert draw(row(0.0, 0.0), f64(1.0), f64(1.0), f64(0.5 - 2**-40)).tolist() == [0]


@pytest.mark.parametrize("top_p", [0.3, 0.5, 0.62, 0.8, 0.9, 0.96])
def test_the_top_candidates_hold_the_whole_nucleus_and_nothing_else(monkeypatch, top_p):
    # Twelve tokens of 0.35, 0.2, 0.12, ... in no order; four are ranked first.
    logits = torch.tensor([-2.7, 0.0, -1.6, -4.0, -0.56, -5.0, -1.07, -6.0, -3.2, -2.2, -7.0, -3.6])[None]
    count = 200
    uniform = torch.linspace(0.0025, 0.9975, count, dtype=torch.float64)
    whole = draw(logits, f64(1.0).expand(count), f64(top_p).expand(count), uniform)
    monkeypatch.setattr(engine_sampling_egrm, "TOP_CANDIDATES", 4)
    drawn = draw(logits, f64(1.0).expand(count), f64(top_p).expand(count), uniform)
    probs = warped_probs(logits, f64(1.0), f64(top_p))[0]
    assert drawn.tolist() == whole.tolist() == [invert(probs, number) for number in uniform.tolist()]
    assert set(drawn.tolist()) == set(probs.nonzero()[:, 0].tolist())


def test_a_token_out_of_all_proportion_is_never_drawn():
    logits = row(-70.0, 0.0, -68.0)
    probs = warped_probs(logits, f64(1.0), f64(1.0))[0]
    assert probs[0] == 0
    assert probs[2] == pytest.approx(math.exp(-68))
    assert draw(logits, f64(1.0), f64(1.0), f64(2**-53)).tolist() == [1]


def test_a_large_vocabulary_is_drawn_as_a_small_one_would_be():
    generator = torch.Generator().manual_seed(0)
    flat, peaked = torch.randn(4, 5000, generator=generator) * 0.3, torch.randn(4, 5000, generator=generator) * 4
    for logits in (flat, peaked):  # a nucleus of thousands of tokens, and one of dozens
        temperatures, top_ps = f64(0.0, 0.6, 0.8, 1.0).repeat(4), f64(0.95, 0.9, 0.95, 0.99).repeat(4)
        uniform = torch.rand(16, dtype=torch.float64, generator=generator)
        drawn = draw(logits, temperatures, top_ps, uniform)
        probs = warped_probs(logits.repeat_interleave(4, 0), temperatures, top_ps)
        assert drawn.tolist() == [invert(own, number) for own, number in zip(probs, uniform.tolist(), strict=True)]


def test_a_row_is_drawn_the_same_alone_and_beside_others():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 3000, generator=generator)
    temperatures, top_ps = f64(0.6, 0.8, 1.0, 0.0, 2.0, 0.9), f64(0.95, 0.5, 1.0, 0.9, 0.99, 0.1)
    uniform = torch.rand(6, dtype=torch.float64, generator=generator)
    together = draw(logits, temperatures, top_ps, uniform).tolist()
    alone = [
        int(draw(logits[i : i + 1], temperatures[i : i + 1], top_ps[i : i + 1], uniform[i : i + 1])) for i in range(6)
    ]
    assert together == alone


def test_nan_logits_do_not_break_a_draw():
    logits = torch.full((2, 1000), torch.nan)
    assert draw(logits, f64(0.8, 0.0), f64(0.95, 0.95), f64(0.5, 0.5)).shape == (2,)


def test_drawn_frequencies_match_the_warped_distribution():
    logits, count = row(2.0, 1.5, 0.0, 0.5, -1.0, 1.0, -3.0), 40_000
    uniform = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for temperature, top_p in ((0.6, 0.95), (1.0, 1.0), (1.0, 0.8)):
        # In parts: the search for the nucleus keeps a thousand numbers per row.
        drawn = torch.cat([draw(logits, f64(temperature).expand(len(u)), f64(top_p).expand(len(u)), u)
                           for u in uniform.split(1000)])  # fmt: skip
        expected = warped_probs(logits, f64(temperature), f64(top_p))[0] * count
        seen = torch.bincount(drawn, minlength=7).double()
        assert seen[expected == 0].sum() == 0
        chi_square = ((seen - expected) ** 2 / expected.clamp_min(1e-9))[expected > 0].sum()
        assert chi_square < 27.9  # isf(1e-4) with 6 degrees of freedom


@pytest.mark.parametrize(("temperature", "top_p"), [(0.6, 0.95), (0.8, 0.5), (1.0, 1.0), (1.3, 0.99), (0.7, 0.05)])
def test_the_ladder_warps_each_row_as_transformers_would(temperature, top_p):
    scores = torch.randn(5, 300, generator=torch.Generator().manual_seed(2)) * 3
    others = f64(0.9, 1.1, 0.5, 2.0)
    rows = torch.cat([f64(temperature), others]), torch.cat([f64(top_p), others.clamp_max(1)])
    ours = warped_probs(scores, *rows)[:1].log().float()
    theirs = TemperatureLogitsWarper(temperature)(None, scores[:1]) if temperature != 1 else scores[:1]
    theirs = TopPLogitsWarper(top_p)(None, theirs) if top_p < 1 else theirs
    torch.testing.assert_close(ours, theirs.log_softmax(-1), atol=1e-5, rtol=0)


def test_a_greedy_row_of_the_ladder_leaves_one_token():
    ours = warped_probs(row(1.0, 4.0, 2.0).repeat(2, 1), f64(0.0, 1.0), f64(0.95, 1.0))
    assert ours[0].tolist() == [0.0, 1.0, 0.0]
    assert bool((ours[1] > 0).all())
