"""The scorer reads whole chains, the same in every batch and dtype; its loss has the gradients it should have."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_generator, tiny_scorer, tiny_scorer_tokenizer
from torch.autograd import gradcheck
from transformers import AutoModel, DistilBertConfig, ElectraConfig, ModernBertConfig, RobertaConfig, T5Config

from transformers_egrm.modeling.configuration_egrm import EGRMConfig
from transformers_egrm.modeling.errors_egrm import ConfigError, UnsupportedModelError
from transformers_egrm.modeling.judge_scorer_egrm import EGRMScorer, encode_pairs
from transformers_egrm.training.loss import HybridLoss, hybrid_loss


LONG_PROMPT = "Question: what is 2 + 3? " * 40
PROMPTS = ["Rate the response.", LONG_PROMPT, "Which response is better, A or B?", "user assistant"]
CHAINS = ["2 + 3 = 5. Verdict: 10", "The answer is 42. Verdict: 0", "B", "think step by step and then judge the reply"]
SIZES = {
    "vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64,
}  # fmt: skip


def scorer_with(encoder, **config) -> EGRMScorer:
    torch.manual_seed(3)
    return EGRMScorer(EGRMConfig(scorer_config=encoder.config, **config), encoder).eval()


@pytest.fixture(scope="module")
def scorer() -> EGRMScorer:
    return scorer_with(tiny_scorer())


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_scorer_tokenizer()


def ids_of(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_a_pair_that_fits_is_prompt_separator_chain(tokenizer):
    (pair,) = encode_pairs(["2 + 3"], ["5"], tokenizer, 128)
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert list(pair.input_ids) == [cls, *ids_of(tokenizer, "2 + 3"), sep, *ids_of(tokenizer, "5"), sep]
    assert list(pair.token_type_ids) == [0] * 5 + [1] * 2
    assert pair.trimmed_tokens == 0


@given(limit=st.integers(24, 128))
def test_a_long_prompt_loses_its_middle_and_the_chain_stays_whole(limit):
    tokenizer = tiny_scorer_tokenizer()
    (pair,) = encode_pairs([LONG_PROMPT], [CHAINS[0]], tokenizer, limit)
    prompt, chain = ids_of(tokenizer, LONG_PROMPT), ids_of(tokenizer, CHAINS[0])
    kept = limit - len(chain) - 3
    head, tail = (kept + 1) // 2, kept // 2
    expected = [*prompt[:head], *prompt[len(prompt) - tail :]]
    assert list(pair.input_ids[1 : 1 + kept]) == expected
    assert list(pair.input_ids[2 + kept : -1]) == chain
    assert pair.trimmed_tokens == len(prompt) - kept


def test_a_chain_that_fills_the_limit_alone_keeps_both_ends(tokenizer):
    (pair,) = encode_pairs(["2 + 3"], ["A B 1 2 3 4 5"], tokenizer, 7)
    chain = ids_of(tokenizer, "A B 1 2 3 4 5")
    assert list(pair.input_ids[2:-1]) == [*chain[:2], *chain[-2:]]  # [CLS] [SEP] … [SEP] leave four places
    assert pair.trimmed_tokens == 3 + 3


def test_control_tokens_in_judged_text_do_not_reach_the_encoder(tokenizer):
    (pair,) = encode_pairs(["a [SEP] [CLS]"], ["[SEP] [PAD]"], tokenizer, 128)
    controls = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id}
    assert [token for token in pair.input_ids if token in controls] == [2, 3, 3]


def test_a_score_does_not_depend_on_its_batch(scorer, tokenizer):
    alone = torch.cat([scorer.score_texts([p], [c], tokenizer) for p, c in zip(PROMPTS, CHAINS, strict=True)])
    together = scorer.score_texts(PROMPTS, CHAINS, tokenizer)
    reversed_ = scorer.score_texts(PROMPTS[::-1], CHAINS[::-1], tokenizer).flip(0)
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(reversed_, alone, atol=1e-5, rtol=0)
    assert len(set(alone.tolist())) == len(alone), "the scores must differ, or this test sees nothing"
    assert torch.equal(scorer.score_texts(PROMPTS, CHAINS, tokenizer, strict=True), alone)


def test_a_large_batch_is_scored_in_small_calls(scorer, tokenizer, monkeypatch):
    whole = scorer.score_texts(PROMPTS * 3, CHAINS * 3, tokenizer)
    shapes = []
    hook = scorer.encoder.register_forward_pre_hook(
        lambda _, __, kwargs: shapes.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    monkeypatch.setattr("transformers_egrm.modeling.judge_scorer_egrm.MICRO_BATCH_TOKENS", 256)
    small = scorer.score_texts(PROMPTS * 3, CHAINS * 3, tokenizer)
    hook.remove()
    torch.testing.assert_close(small, whole, atol=1e-5, rtol=0)
    assert sum(rows for rows, _ in shapes) == 12
    assert max(rows * width for rows, width in shapes) <= 256
    assert shapes == sorted(shapes, key=lambda shape: shape[1])  # length-sorted: little padding


def test_no_chains_have_no_scores(scorer, tokenizer):
    assert scorer.score_texts([], [], tokenizer).shape == (0,)


def test_a_score_agrees_with_the_definition_done_by_hand(scorer, tokenizer):
    (pair,) = encode_pairs(PROMPTS[:1], CHAINS[:1], tokenizer, 128)
    ids, types = torch.tensor([pair.input_ids]), torch.tensor([pair.token_type_ids])
    hidden = scorer.encoder(input_ids=ids, token_type_ids=types).last_hidden_state[0, 0]
    by_hand = torch.sigmoid((scorer.score_head.weight[0] * hidden).sum() + scorer.score_head.bias[0])
    torch.testing.assert_close(scorer.score_texts(PROMPTS[:1], CHAINS[:1], tokenizer)[0], by_hand, atol=1e-6, rtol=0)


def test_the_scorer_stays_float32_when_the_model_is_narrowed(tokenizer):
    scorer = scorer_with(tiny_scorer())
    before = scorer.score_texts(PROMPTS, CHAINS, tokenizer)
    for narrow in (lambda s: s.to(torch.bfloat16), lambda s: s.half(), lambda s: torch.nn.ModuleList([s]).bfloat16()):
        narrow(scorer)
    assert {parameter.dtype for parameter in scorer.parameters()} == {torch.float32}
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(scorer.score_texts(PROMPTS, CHAINS, tokenizer), before)


@pytest.mark.parametrize(
    "config",
    [
        RobertaConfig(**SIZES | {"max_position_embeddings": 66}, pad_token_id=1),
        ElectraConfig(**SIZES, embedding_size=16),
        ModernBertConfig(**SIZES, pad_token_id=0, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3),
        DistilBertConfig(vocab_size=300, dim=32, n_layers=1, n_heads=4, hidden_dim=48, max_position_embeddings=64),
    ],
    ids=lambda config: config.model_type,
)
def test_any_encoder_scores_up_to_its_last_position(config, tokenizer):
    torch.manual_seed(0)
    scorer = scorer_with(AutoModel.from_config(config).eval())
    assert scorer.token_limit(tokenizer) == 64
    scores = scorer.score_texts(PROMPTS, CHAINS, tokenizer)
    assert ((scores > 0) & (scores < 1)).all()
    torch.testing.assert_close(scores, scorer.score_texts(PROMPTS, CHAINS, tokenizer, strict=True), atol=1e-5, rtol=0)


def test_an_encoder_decoder_is_refused():
    config = T5Config(vocab_size=300, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(UnsupportedModelError, match="needs an encoder"):
        EGRMScorer(EGRMConfig(scorer_config=config))


def test_a_tokenizer_of_another_model_is_refused(tokenizer):
    scorer = scorer_with(tiny_scorer(vocab_size=20))
    with pytest.raises(ConfigError, match=f"ids up to {tokenizer.vocab_size - 1}, but the scorer knows 20"):
        scorer.score_texts(["a"], ["b"], tokenizer)


def test_states_of_the_generator_are_scored_in_float32():
    config = EGRMConfig(generator_config=tiny_generator().config, scorer_kind="generator_state")
    scorer = EGRMScorer(config)
    hidden = torch.randn(5, 32, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        scores = scorer.score_states(hidden)
    wide = hidden.float()
    normed = (wide - wide.mean(-1, keepdim=True)) / (wide.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    by_hand = torch.sigmoid(normed @ scorer.score_head.weight[0] + scorer.score_head.bias)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, by_hand, atol=1e-6, rtol=0)


def test_the_hybrid_loss_is_the_weighted_sum_written_out():
    # Errors 0.05 and 0.5 with delta 0.1: 0.05²/2 and 0.1 * (0.5 - 0.05). Gaps 0.45 and -0.45 with margin 0.1.
    scores, targets = torch.tensor([0.95, 0.5]), torch.tensor([1.0, 0.0])
    better, worse = torch.tensor([0, 1]), torch.tensor([1, 0])
    huber, hinge = (0.00125 + 0.045) / 2, (0.0 + 0.55) / 2
    loss = hybrid_loss(scores, targets, better, worse, regression_weight=0.3, huber_delta=0.1, hinge_margin=0.1)
    assert loss.item() == pytest.approx(0.3 * huber + 0.7 * hinge, abs=1e-7)
    module = HybridLoss(EGRMConfig(regression_weight=0.3, huber_delta=0.1, hinge_margin=0.1))
    assert torch.equal(module(scores, targets, better, worse), loss)
    assert repr(module) == "HybridLoss(regression_weight=0.3, huber_delta=0.1, hinge_margin=0.1)"


def test_without_pairs_only_the_regression_counts():
    nothing = torch.empty(0, dtype=torch.int64)
    weights = {"regression_weight": 0.5, "huber_delta": 1.0, "hinge_margin": 0.1}
    loss = hybrid_loss(torch.tensor([0.5]), torch.tensor([1.0]), nothing, nothing, **weights)
    assert loss.item() == pytest.approx(0.5 * 0.125)


def test_the_loss_is_float32_for_scores_in_bfloat16():
    scores = torch.tensor([0.5, 0.25], dtype=torch.bfloat16)
    weights = {"regression_weight": 0.5, "huber_delta": 0.1, "hinge_margin": 0.1}
    assert hybrid_loss(scores, scores, torch.tensor([0]), torch.tensor([1]), **weights).dtype == torch.float32


def test_the_loss_refuses_batches_that_do_not_match():
    index, weights = torch.tensor([0]), {"regression_weight": 0.5, "huber_delta": 0.1, "hinge_margin": 0.1}
    with pytest.raises(ValueError, match=r"one target .* got \(2,\) and \(3,\)"):
        hybrid_loss(torch.zeros(2), torch.zeros(3), index, index, **weights)


@given(
    scores=st.lists(st.integers(0, 100), min_size=2, max_size=6, unique=True),
    regression_weight=st.floats(0, 1), delta=st.floats(0.05, 0.5), margin=st.floats(0, 0.5), seed=st.integers(0, 99),
)  # fmt: skip
def test_the_gradient_of_the_loss_agrees_with_finite_differences(scores, regression_weight, delta, margin, seed):
    rng = torch.Generator().manual_seed(seed)
    x = (torch.tensor(scores, dtype=torch.float64) / 100).requires_grad_()
    # Away from the kinks: errors off ±delta, gaps off the margin.
    targets = (
        x.detach() + delta * torch.tensor([-1.5, -0.5, 0.5, 1.5])[torch.randint(4, (len(scores),), generator=rng)]
    )
    better = torch.randint(len(scores), (4,), generator=rng)
    worse = torch.randint(len(scores), (4,), generator=rng)
    gaps = margin - (x.detach()[better] - x.detach()[worse])
    better, worse = better[gaps.abs() > 1e-4], worse[gaps.abs() > 1e-4]
    weights = {"regression_weight": regression_weight, "huber_delta": delta, "hinge_margin": margin}
    assert gradcheck(lambda s: hybrid_loss(s, targets, better, worse, **weights), (x,), eps=1e-6, atol=1e-6)


def test_the_gradient_reaches_every_weight_of_the_scorer(tokenizer):
    scorer = scorer_with(tiny_scorer()).double()
    batch = scorer.collate(encode_pairs(PROMPTS[:2], CHAINS[:2], tokenizer, 24), tokenizer)
    loss = HybridLoss(EGRMConfig(huber_delta=10.0, hinge_margin=1.0))
    targets, better, worse = torch.tensor([1.0, 0.0]).double(), torch.tensor([0]), torch.tensor([1])

    def loss_with(head: torch.Tensor) -> torch.Tensor:
        scores = torch.func.functional_call(scorer, {"score_head.weight": head}, kwargs=batch)
        return loss(scores, targets, better, worse)

    assert gradcheck(loss_with, (scorer.score_head.weight,), eps=1e-6, atol=1e-7)
    loss_with(scorer.score_head.weight).backward()
    last = scorer.encoder.encoder.layer[-1]
    reached = [scorer.encoder.embeddings.word_embeddings.weight, last.output.dense.weight, scorer.score_head.bias]
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in reached)
