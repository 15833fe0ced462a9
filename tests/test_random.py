"""Random numbers of an item: the definition in plain integers, and independence in every argument."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from transformers_egrm.modeling.engine_random_egrm import item_id_of_tokens, uniforms


MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
BINS = 64
# A chi-square with 63 degrees of freedom exceeds this once in ten thousand times (scipy.stats.chi2.isf(1e-4, 63)).
CHI_SQUARE_LIMIT = 113.5


def splitmix(state: int) -> int:
    """SplitMix64 as published: add the golden ratio, then mix."""
    state = (state + GOLDEN) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def uniform_by_hand(seed: int, item_id: int, branch: int, step: int) -> float:
    state = splitmix(seed & MASK)
    for key in (item_id, branch, step):
        state = splitmix(state ^ (key & MASK))
    return ((state >> 12) + 0.5) / 2**52


def uniform(seed: int, item_id: int, branch: int, step: int) -> float:
    return float(uniforms(seed, torch.tensor([item_id]), torch.tensor([branch]), step)[0])


def chi_square(values: torch.Tensor) -> float:
    counts = torch.bincount((values * BINS).long(), minlength=BINS).double()
    expected = values.numel() / BINS
    return float(((counts - expected) ** 2 / expected).sum())


def test_splitmix_is_the_published_one():
    # First outputs of SplitMix64 with seed 0, as in its authors' reference program.
    assert splitmix(0) == 0xE220A8397B1DCDAF
    assert splitmix(GOLDEN) == 0x6E789E6AA1B965F4


@given(
    st.integers(-(2**70), 2**70), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40), st.integers(0, 10**6)
)  # fmt: skip
def test_a_uniform_is_the_hash_of_seed_item_branch_and_step(seed, item_id, branch, step):
    value = uniform(seed, item_id, branch, step)
    assert value == uniform_by_hand(seed, item_id, branch, step)
    assert 0 < value < 1


def test_the_largest_hash_stays_below_one():
    # 53 bits and a half step would round to 1.0, and a draw would then fall beyond the last token.
    assert ((2**52 - 1) + 0.5) * 2.0**-52 < 1
    assert (float(2**53 - 1) + 0.5) * 2.0**-53 == 1


def test_numbers_do_not_depend_on_their_neighbours():
    items, branches = torch.arange(1000), torch.arange(1000) % 7
    together = uniforms(3, items, branches, 5)
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(uniforms(3, items[order], branches[order], 5), together[order])
    assert [uniform(3, i, i % 7, 5) for i in range(0, 1000, 100)] == together[::100].tolist()


def test_numbers_are_uniform_along_every_argument():
    count = 20_000
    counter, zeros = torch.arange(count), torch.zeros(count, dtype=torch.int64)
    along = {
        "item": uniforms(0, counter, zeros, 0),
        "large item": uniforms(0, counter << 40, zeros, 0),
        "branch": uniforms(0, zeros, counter, 0),
        "chain branch": uniforms(0, zeros, counter + (1 << 20), 0),
        "step": torch.cat([uniforms(0, zeros[:1], zeros[:1], step) for step in range(2000)]),
        "seed": torch.cat([uniforms(seed, zeros[:1], zeros[:1], 0) for seed in range(2000)]),
    }
    for name, values in along.items():
        assert chi_square(values) < CHI_SQUARE_LIMIT, name


def test_numbers_next_to_each_other_are_independent():
    # Pairs fill an 8 x 8 grid evenly, whichever argument moves by one.
    count = 20_000
    counter, zeros = torch.arange(count), torch.zeros(count, dtype=torch.int64)
    here = uniforms(0, counter, zeros, 0)
    pairs = {
        "item": (here, uniforms(0, counter + 1, zeros, 0)),
        "branch": (here, uniforms(0, counter, zeros + 1, 0)),
        "step": (here, uniforms(0, counter, zeros, 1)),
        "seed": (here, uniforms(1, counter, zeros, 0)),
        "item and branch exchanged": (here[1:], uniforms(0, zeros, counter, 0)[1:]),
        "branch and step exchanged": (uniforms(0, counter, zeros + 5, 3), uniforms(0, counter, zeros + 3, 5)),
    }
    for name, (first, second) in pairs.items():
        cell = (first * 8).long() * 8 + (second * 8).long()
        assert chi_square((cell + 0.5) / BINS) < CHI_SQUARE_LIMIT, name


def test_the_default_item_id_is_a_hash_of_the_tokens_in_their_order():
    state = 0
    for token in (5, 6, 7):
        state = splitmix(state ^ token)
    assert item_id_of_tokens([5, 6, 7]) == state >> 1
    assert item_id_of_tokens(torch.tensor([5, 6, 7])) == state >> 1
    ids = {item_id_of_tokens(tokens) for tokens in ([], [0], [0, 0], [5, 6], [6, 5], [5, 6, 0])}
    assert len(ids) == 6
    assert all(0 <= value < 2**63 for value in ids)
