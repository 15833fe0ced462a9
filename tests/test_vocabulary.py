"""What a branch may draw: tries of verdicts with split and whole digits, their exact distribution, and stop tokens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transformers_egrm.modeling.engine_sampling_egrm import draw, warped_probs
from transformers_egrm.modeling.engine_vocabulary_egrm import OpenVocabulary, VerdictTrie
from transformers_egrm.modeling.errors_egrm import ConfigError


CPU = torch.device("cpu")
SPLIT = [tuple(100 + int(digit) for digit in str(score)) for score in range(11)]  # "10" is 1 and 0
CPU = torch.device("cpu")
WHOLE = [(200 + score,) for score in range(11)]  # "10" is a token of its own
STOPS = (4, 9)


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def node_logits(trie: VerdictTrie, prompts: int = 2, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(prompts, *trie.next_state.shape, generator=generator) * 2


def enumerate_verdicts(sequences, stop_ids, trie, logits, temperature, top_p) -> list[float]:
    """Probability of each verdict: the product, over its tokens and its end, of what may be drawn at each point."""

    def node_probs(path: tuple[int, ...]) -> dict[int, float]:
        allowed = {seq[len(path)] for seq in sequences if seq[: len(path)] == path and len(seq) > len(path)}
        if path in sequences:
            allowed |= set(stop_ids)
        if path not in trie.paths:  # one token is left, and it is not drawn
            (token,) = allowed
            return {token: 1.0}
        own = torch.full((1, len(trie.columns)), -torch.inf)
        for column, token in enumerate(trie.columns.tolist()):
            if token in allowed:
                own[0, column] = logits[trie.paths.index(path), column]
        probs = warped_probs(own, f64(temperature), f64(top_p))[0].tolist()
        return dict(zip(trie.columns.tolist(), probs, strict=True))

    result = []
    for sequence in map(tuple, sequences):
        mass = 1.0
        for position, token in enumerate(sequence):
            mass *= node_probs(sequence[:position])[token]
        if any(other[: len(sequence)] == sequence and other != sequence for other in sequences):
            going_on = {other[len(sequence)] for other in sequences if other[: len(sequence)] == sequence != other}
            mass *= sum(prob for token, prob in node_probs(sequence).items() if token in {*stop_ids} - going_on)
        result.append(mass)
    return result


def test_tokens_that_choose_nothing_are_not_drawn():
    trie = VerdictTrie([(10, 11, 12), (10, 13, 14), (15, 16)], STOPS)
    assert (trie.max_steps, trie.paths) == (2, [(), (10,)])
    assert trie.columns.tolist() == [10, 11, 13, 15]
    walk = trie.walk(1, CPU)
    token, ended = walk.advance(torch.tensor([3]), torch.tensor([0]), 0)
    assert ended.item()
    assert trie.verdicts_of(token[:, None]).tolist() == [2]
    assert trie.verdicts_of(torch.tensor([[10, 13], [10, 15], [10, 0], [7, 7], [15, 0]])).tolist() == [
        1,
        -1,
        -1,
        -1,
        2,
    ]


def test_split_digits_make_two_states_and_whole_numbers_one():
    split, whole = VerdictTrie(SPLIT, STOPS), VerdictTrie(WHOLE, STOPS)
    assert (split.num_states, split.max_steps, split.paths) == (2, 2, [(), (101,)])
    assert split.columns.tolist() == [4, 9, *range(100, 110)]  # the stop tokens end "1"
    assert (whole.num_states, whole.max_steps, whole.paths) == (1, 1, [()])
    assert whole.columns.tolist() == list(range(200, 211))  # nothing has to be ended
    # Behind "1" there is "10" (a 0) or the end (either stop token), and nothing else.
    assert [c for c, state in enumerate(split.next_state[1].tolist()) if state >= 0] == [0, 1, 2]
    assert split.next_state[1, :3].tolist() == [2 + 1, 2 + 1, 2 + 10]


def test_the_tokens_of_a_walk_tell_its_verdict():
    trie = VerdictTrie(SPLIT, STOPS)
    walk = trie.walk(4, CPU)
    rows, columns = torch.arange(4), walk.columns.tolist()

    def feed(*tokens: int, step: int) -> list[bool]:
        drawn, ended = walk.advance(torch.tensor([columns.index(token) for token in tokens]), rows, step)
        assert drawn.tolist() == list(tokens)
        return ended.tolist()

    assert feed(107, 101, 101, 101, step=0) == [True, False, False, False]
    assert trie.verdicts_of(torch.tensor([[107, 0], [101, 0]])).tolist() == [7, -1]
    allowed = walk.restrict(torch.zeros(4, len(columns)), rows) > -torch.inf
    assert allowed[1:].sum(-1).tolist() == [3, 3, 3]
    assert feed(105, 100, 4, 9, step=1) == [True, True, True, True]  # the first one is over, whatever it is fed
    assert trie.verdicts_of(torch.tensor([[107, 105], [101, 100], [101, 4], [101, 9]])).tolist() == [7, 10, 1, 1]


@pytest.mark.parametrize(
    "sequences", [SPLIT, WHOLE, [(5,), (5, 6), (5, 6, 7), (8,)], [(1, 2), (1, 3), (2, 2, 2)], [(5,), (5, 4)]]
)
@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.6, 0.95), (0.8, 0.5), (0.0, 0.95)])
def test_the_exact_distribution_is_the_enumerated_one(sequences, temperature, top_p):
    trie = VerdictTrie(sequences, STOPS)
    logits = node_logits(trie)
    exact = trie.verdict_probs(logits, f64(temperature), f64(top_p))
    by_hand = [enumerate_verdicts(sequences, STOPS, trie, own, temperature, top_p) for own in logits]
    torch.testing.assert_close(exact[:, 0], torch.tensor(by_hand, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(exact.sum(-1), torch.ones_like(exact.sum(-1)))


@given(
    st.sets(st.lists(st.integers(10, 13), min_size=1, max_size=4).map(tuple), min_size=1, max_size=12),
    st.sampled_from([(0.6, 0.95), (1.0, 1.0), (1.3, 0.7)]),
    st.integers(0, 1000),
)
def test_every_set_of_sequences_has_its_exact_distribution(sequences, rung, seed):
    sequences = sorted(sequences)
    trie = VerdictTrie(sequences, STOPS)
    logits = node_logits(trie, 1, seed)
    exact = trie.verdict_probs(logits, f64(rung[0]), f64(rung[1]))[0, 0]
    by_hand = enumerate_verdicts(sequences, STOPS, trie, logits[0], *rung)
    torch.testing.assert_close(exact, f64(*by_hand), atol=1e-12, rtol=0)


@pytest.mark.parametrize("sequences", [SPLIT, [(5,), (5, 6), (5, 6, 7), (8,)]])
def test_sampled_walks_have_the_exact_distribution_in_the_long_run(sequences):
    trie, count = VerdictTrie(sequences, STOPS), 20_000
    logits = node_logits(trie, 1)
    for temperature, top_p in ((0.6, 0.95), (1.0, 1.0)):
        walk, rows = trie.walk(count, CPU), torch.arange(count)
        tokens, ended = [], torch.zeros(count, dtype=torch.bool)
        generator = torch.Generator().manual_seed(0)
        for step in range(trie.max_steps):
            here = logits[0][walk.states.clamp_max(trie.num_states - 1)]
            uniform = torch.rand(count, dtype=torch.float64, generator=generator)
            # In parts: the search for the nucleus keeps a thousand numbers per row.
            parts = zip(walk.restrict(here, rows).split(1000), uniform.split(1000), strict=True)
            drawn = torch.cat([draw(logs, f64(temperature).expand(len(u)), f64(top_p).expand(len(u)), u)
                               for logs, u in parts])  # fmt: skip
            token, ended = walk.advance(drawn, rows, step)
            tokens.append(token)
        assert bool(ended.all())
        seen = torch.bincount(trie.verdicts_of(torch.stack(tokens, 1)), minlength=len(sequences)).double()
        expected = trie.verdict_probs(logits, f64(temperature), f64(top_p))[0, 0] * count
        assert seen[expected == 0].sum() == 0
        likely = expected > 5
        assert ((seen - expected) ** 2 / expected.clamp_min(1e-9))[likely].sum() < 35.6  # isf(1e-4), 10 degrees


def test_ladders_and_prompts_do_not_mix_in_the_exact_distribution():
    trie = VerdictTrie(SPLIT, STOPS)
    logits = node_logits(trie, 3)
    temperatures, top_ps = f64(0.6, 1.0), f64(0.9, 1.0)
    together = trie.verdict_probs(logits, temperatures, top_ps)
    for prompt in range(3):
        for rung in range(2):
            alone = trie.verdict_probs(
                logits[prompt : prompt + 1], temperatures[rung : rung + 1], top_ps[rung : rung + 1]
            )
            torch.testing.assert_close(together[prompt, rung], alone[0, 0], atol=1e-15, rtol=0)


def test_a_walk_repeats_first_logits_for_every_branch_of_a_prompt():
    walk = VerdictTrie(WHOLE, STOPS).walk(6, CPU)
    logits = torch.arange(22.0).view(2, 11)
    limited = walk.restrict(logits, torch.arange(6))
    assert torch.equal(limited, logits.repeat_interleave(3, 0))


def test_verdicts_that_the_tokenizer_does_not_tell_apart_are_refused():
    with pytest.raises(ConfigError, match="verdict 1"):
        VerdictTrie([(5, 6), (5, 6)], STOPS)
    with pytest.raises(ConfigError, match="verdict 1"):
        VerdictTrie([(5,), ()], STOPS)
    with pytest.raises(ConfigError, match="stop token"):
        VerdictTrie([(5,), (5, 6)], ())
    assert VerdictTrie([(5,), (6,)], ()).max_steps == 1  # nothing has to be ended, so nothing is missing


def test_a_thousand_verdicts_are_listed_exactly():
    sequences = [tuple(100 + int(digit) for digit in str(score)) for score in range(1001)]
    trie = VerdictTrie(sequences, STOPS)
    # The root; 1..9 and 10..99, which can go on; and 100, because of 1000.
    assert trie.num_states == 1 + 9 + 90 + 1
    probs = trie.verdict_probs(node_logits(trie, 1), f64(1.0), f64(1.0))[0, 0]
    assert float(probs.sum()) == pytest.approx(1)
    assert bool((probs > 0).all())


def test_a_stop_token_ends_a_branch_and_a_line_break_only_behind_the_first_token():
    vocabulary = OpenVocabulary((4,), (4, 30)).walk(3, CPU)
    drawn = torch.tensor([4, 30, 7])
    rows = torch.arange(3)
    assert vocabulary.advance(drawn, rows, 0)[1].tolist() == [True, False, False]
    assert vocabulary.advance(drawn, rows, 1)[1].tolist() == [True, True, False]
    assert OpenVocabulary(()).walk(3, CPU).advance(drawn, rows, 0)[1].tolist() == [False] * 3
    logits = torch.zeros(1, 5)
    assert vocabulary.restrict(logits, rows) is logits
