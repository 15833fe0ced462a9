"""Three decoders, one distribution: each is compared with sampling by hand, row by row, without cache or padding."""

import threading
from dataclasses import replace

import pytest
import torch
from accelerate import cpu_offload
from engine_fixtures import (
    SEED,
    SHORT_SUFFIX,
    TEMPERATURES,
    TinyJudge,
    assert_same_draws,
    branches_by_hand,
    counted_tokens,
    draws_of,
    items_of,
    noise_explains,
    sample_branches,
    some_prompts,
    talkative_generator,
    tiny_inputs,
    tiny_task,
)
from tiny import GENERATORS, tiny_generator, tiny_scorer, tiny_scorer_tokenizer, tiny_tokenizer
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from transformers_egrm.modeling.engine_backbone_egrm import Backbone
from transformers_egrm.modeling.engine_local_egrm import LocalEngine
from transformers_egrm.modeling.engine_prefill_egrm import prefill
from transformers_egrm.modeling.engine_random_egrm import uniforms
from transformers_egrm.modeling.engine_steps_egrm import StarStepper
from transformers_egrm.modeling.engine_trials_egrm import continues_in_chunks, star_refusal
from transformers_egrm.modeling.engine_vocabulary_egrm import VerdictTrie
from transformers_egrm.modeling.errors_egrm import ConfigError, UnsupportedModelError
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.modeling.verdict_consensus_egrm import Route
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace


LENGTHS = (20, 7, 13)  # the windows of Gemma3 and Mistral hold 8 tokens: shorter and longer prompts than that
NOISE = 1e-4  # of float32 logits between two ways to compute them

SMALL = {
    "vocab_size": 400, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 4,
    "pad_token_id": 2, "initializer_range": 0.2,
}  # fmt: skip
OTHERS = {
    "gemma2": {"sliding_window": 8, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0},
    "gpt_oss": {"sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "granite": {"logits_scaling": 4.0},
    "cohere": {"logit_scale": 0.5},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512},
}
RECURRENT = {
    "qwen3_next": {
        "layer_types": ["linear_attention", "full_attention"], "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "mamba": {"state_size": 8},
    "mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 8, "expand": 2, "n_groups": 1, "chunk_size": 4},
}  # fmt: skip


def small_model(model_type: str, attention: str | None = None, **own):
    config_class = CONFIG_MAPPING[model_type]
    known = {**SMALL, **own}
    fields = set(getattr(config_class, "__dataclass_fields__", {})) | set(own)
    torch.manual_seed(0)
    config = config_class(**{name: value for name, value in known.items() if name in fields})
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


def check_against_hand(generator, decoders, inputs, max_tokens=8, most_noise=NOISE) -> int:
    """Decoders draw what sampling by hand draws; returns the rows that differ by explained noise."""
    prompts = [
        ids[mask.bool()].tolist() + list(SHORT_SUFFIX)
        for ids, mask in zip(inputs.input_ids, inputs.attention_mask, strict=True)
    ]
    by_hand = branches_by_hand(generator, prompts, inputs.item_ids.tolist(), max_tokens)
    backbone, differing = Backbone(generator), 0
    for decoder in decoders:
        sampler = sample_branches(backbone, inputs, decoder, max_tokens)
        differing += assert_same_draws(draws_of(sampler), by_hand, sampler, most_noise)
    return differing


# -- the same draws -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", GENERATORS)
def test_star_and_expand_draw_what_sampling_by_hand_draws(family):
    inputs = tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    # 12 new tokens cross the windows of Gemma3 and Mistral.
    assert check_against_hand(tiny_generator(family), ("star", "expand"), inputs, max_tokens=12) == 0


@pytest.mark.parametrize("family", GENERATORS)
def test_star_expand_and_first_token_give_the_same_probes(family):
    judge = TinyJudge(tiny_generator(family))
    task = tiny_task(verdict_token_ids=tuple((60 + score,) for score in range(11)))
    inputs = tiny_inputs(task, some_prompts(LENGTHS))
    for vocabulary in ("verdict", "full"):
        outputs = [
            judge.probe(inputs, decoder=decoder, probe_vocabulary=vocabulary, max_probe_tokens=1).output
            for decoder in ("star", "expand", "first_token", "auto")
        ]
        for other in outputs[1:]:
            assert torch.equal(outputs[0].probe_parsed, other.probe_parsed)
            assert torch.equal(outputs[0].probe_verdicts, other.probe_verdicts)
            assert torch.equal(outputs[0].routes, other.routes)


@pytest.mark.parametrize("family", GENERATORS)
def test_constrained_probes_of_several_tokens_agree_too(family):
    judge, inputs = TinyJudge(tiny_generator(family)), tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    star, expand = (
        judge.probe(inputs, decoder=decoder, probe_vocabulary="verdict", early_stop=False).output
        for decoder in ("star", "expand")
    )
    assert bool(star.probe_parsed.all())  # a constrained probe cannot fail to parse
    assert torch.equal(star.probe_verdicts, expand.probe_verdicts)


@pytest.mark.parametrize("family", GENERATORS)
def test_the_exact_distribution_is_the_same_from_both_decoders_and_by_hand(family):
    generator = tiny_generator(family)
    judge, task, prompts = TinyJudge(generator), tiny_task(), some_prompts(LENGTHS)
    inputs = tiny_inputs(task, prompts)
    star, expand = (
        judge.probe(inputs, decoder=decoder, consensus="exact", temperatures=(0.6, 1.0), top_ps=(0.95, 1.0)).output
        for decoder in ("star", "expand")
    )
    torch.testing.assert_close(star.verdict_probs, expand.verdict_probs, atol=1e-5, rtol=0)
    trie = VerdictTrie(task.verdict_token_ids, task.probe_stop_ids)
    ladder = torch.tensor([[0.6, 1.0], [0.95, 1.0]], dtype=torch.float64)
    for row, prompt in enumerate(prompts):
        nodes = []
        for path in trie.paths:
            with torch.no_grad():
                nodes.append(generator(input_ids=torch.tensor([[*prompt, *SHORT_SUFFIX, *path]])).logits[0, -1])
        by_hand = trie.verdict_probs(torch.stack(nodes)[None][:, :, trie.columns], *ladder).mean(1)[0]
        torch.testing.assert_close(star.verdict_probs[row], by_hand.float(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("options", [{"probe_vocabulary": "verdict"}, {"consensus": "exact"}, {}])
def test_verdicts_of_a_prompt_that_shows_its_candidates_reversed_are_mapped_back(options):
    judge = TinyJudge(talkative_generator({"A": 8.0, "B": 8.0, "\n": 7.0}))
    inputs = tiny_inputs(tiny_task(VerdictSpace.pairwise(allow_tie=True)), some_prompts(LENGTHS))
    plain = judge.probe(inputs, **options).output
    swapped = judge.probe(replace(inputs, swapped=torch.tensor([False, True, True])), **options).output
    mapped = torch.tensor([[0, 1, 2], [1, 0, 2], [1, 0, 2]])  # A and B change places, a tie stays
    if "consensus" in options:
        torch.testing.assert_close(swapped.verdict_probs, plain.verdict_probs.gather(1, mapped))
        return
    parsed = plain.probe_parsed
    assert bool(parsed[1:].any())
    assert torch.equal(swapped.probe_parsed, parsed)
    assert torch.equal(swapped.probe_verdicts[parsed], mapped.gather(1, plain.probe_verdicts)[parsed])


# -- what noise explains, and what it does not ---------------------------------------------------------------------------


def test_a_mismatch_far_from_every_boundary_is_not_excused():
    first = torch.tensor([0.0, 0.0])  # one boundary, at 0.5
    second = first + torch.tensor([1e-5, 0.0])
    assert noise_explains(first, second, 1.0, 1.0, 0.5 + 1e-6)
    assert noise_explains(first, second, 1.0, 1.0, 0.5 - 1e-6)
    assert not noise_explains(first, second, 1.0, 1.0, 0.51)
    # A lower temperature makes the same noise reach further.
    assert noise_explains(first, second, 1e-3, 1.0, 0.51)
    # 0.6, 0.3, 0.1 at top-p 0.9: the last token may come in or drop out, which moves the first boundary from 0.67 to 0.6.
    edge = torch.tensor([0.6, 0.3, 0.1]).log()
    assert noise_explains(edge, edge + torch.tensor([1e-5, 0.0, 0.0]), 1.0, 0.9, 0.63)
    assert not noise_explains(edge, edge + torch.tensor([1e-5, 0.0, 0.0]), 1.0, 0.8, 0.63)


def test_an_unexplained_mismatch_is_found():
    judge, inputs = TinyJudge(tiny_generator()), tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    sampler = sample_branches(judge.backbone, inputs, "star")
    tokens, logits = draws_of(sampler)
    other = [row.copy() for row in tokens]
    other[4][2] += 1
    with pytest.raises(AssertionError):
        assert_same_draws((tokens, logits), (other, logits), sampler, NOISE)


@pytest.mark.parametrize("family", GENERATORS)
def test_in_bfloat16_every_mismatch_is_explained_by_the_noise_of_its_logits(family):
    generator = tiny_generator(family).to(torch.bfloat16)
    inputs = tiny_inputs(tiny_task(), some_prompts([20, 7, 13, 16, 9, 11, 5, 18]))
    star, expand = (sample_branches(Backbone(generator), inputs, decoder) for decoder in ("star", "expand"))
    assert all(bool(logits[~logits.isnan().any(-1)].isfinite().all()) for logits in star.logits)
    assert not bool(star.broken.any() | expand.broken.any())
    # Logits of up to 5, in steps of 1/64 and 1/32: many draws differ, so that the excuse is put to the test.
    assert assert_same_draws(draws_of(star), draws_of(expand), star, 0.2) > 0


# -- a row is judged the same wherever it stands --------------------------------------------------------------------------


@pytest.mark.parametrize("decoder", ["star", "expand"])
@pytest.mark.parametrize("family", GENERATORS)
def test_a_row_alone_padded_reordered_or_in_another_batch_draws_the_same(family, decoder):
    backbone = Backbone(tiny_generator(family))
    inputs = tiny_inputs(tiny_task(), some_prompts([20, 7, 13, 9]))
    whole = sample_branches(backbone, inputs, decoder)
    tokens, logits = draws_of(whole)
    per_prompt = len(TEMPERATURES)
    for items in ([2], [3, 1], [3, 2, 1, 0], [1, 1]):
        part = sample_branches(backbone, items_of(inputs, items), decoder)
        rows = [item * per_prompt + m for item in items for m in range(per_prompt)]
        expected = [tokens[row] for row in rows], [logits[row] for row in rows]
        assert assert_same_draws(draws_of(part), expected, part, NOISE) == 0
    padded = replace(
        inputs,
        input_ids=torch.nn.functional.pad(inputs.input_ids, (5, 0), value=17),
        attention_mask=torch.nn.functional.pad(inputs.attention_mask, (5, 0)),
    )
    part = sample_branches(backbone, padded, decoder)
    assert assert_same_draws(draws_of(part), (tokens, logits), part, NOISE) == 0


def test_what_padding_holds_is_never_read():
    backbone, inputs = Backbone(tiny_generator("gemma3")), tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    other = replace(inputs, input_ids=inputs.input_ids.masked_fill(inputs.attention_mask == 0, 123))
    for decoder in ("star", "expand"):
        first, second = (sample_branches(backbone, each, decoder) for each in (inputs, other))
        assert torch.equal(first.tokens, second.tokens)


@pytest.fixture(scope="module")
def reward_model():
    return EGRMRewardModel.from_components(
        tiny_generator("gemma3"), tiny_scorer(), tiny_tokenizer(), tiny_scorer_tokenizer(), scorer_trained=True
    )


def test_a_judgement_does_not_depend_on_its_batch(reward_model):
    items = [reward_model.processor.encode({"prompt": p, "response": r, "id": i}) for i, (p, r) in enumerate(
        [("2 + 3?", "5"), ("Name a colour of the sky at noon.", "blue"), ("2 + 3?", "It is 6, I think."), ("Hi", "Yo")]
    )]  # fmt: skip
    options = {
        "selection": "scorer",
        "max_chain_tokens": 12,
        "consensus_threshold": 1.0,
        "probe_vocabulary": "verdict",
    }

    def judged(order):
        return reward_model.judge(reward_model.processor.collate([items[i] for i in order]), **options)

    together = judged([0, 1, 2, 3])
    assert Route.LONG in together.routes.tolist()
    assert bool(together.chain_scores.isfinite().any())
    for order in ([1], [3, 2], [2, 0, 3, 1]):
        part = judged(order)
        for name in ("verdicts", "routes", "statuses", "new_tokens"):
            assert part[name].tolist() == together[name][order].tolist(), name
        torch.testing.assert_close(part.rewards, together.rewards[order], equal_nan=True)
        scores = [together.chain_scores[together.chain_item_index == item] for item in order]
        torch.testing.assert_close(part.chain_scores, torch.cat(scores), atol=1e-5, rtol=0, equal_nan=True)


def test_a_strict_judgement_is_the_same_to_the_last_bit(reward_model):
    items = [reward_model.processor.encode({"prompt": p, "response": "5", "id": i}) for i, p in enumerate(
        ["2 + 3?", "A longer question, about 2 + 3, that pads the others: what is it?", "Is 5 right?"]
    )]  # fmt: skip
    options = {
        "strict": True, "consensus": "exact", "selection": "scorer", "max_chain_tokens": 8, "consensus_threshold": 1.0,
    }  # fmt: skip

    def judged(order):
        return reward_model.judge(reward_model.processor.collate([items[i] for i in order]), **options)

    together = judged([0, 1, 2])
    for order in ([0], [1], [2, 1], [2, 0, 1]):
        part = judged(order)
        assert torch.equal(part.verdict_probs, together.verdict_probs[order])
        assert torch.equal(part.consensus, together.consensus[order])
        scores = torch.cat([together.chain_scores[together.chain_item_index == item] for item in order])
        assert torch.equal(part.chain_scores.nan_to_num(-1), scores.nan_to_num(-1))
        assert torch.equal(part.rewards.nan_to_num(-1), together.rewards[order].nan_to_num(-1))


# -- what is run, and what is kept ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", GENERATORS)
@pytest.mark.parametrize("decoder", ["star", "expand"])
def test_prompt_tokens_are_run_exactly_once(family, decoder):
    judge, task = TinyJudge(tiny_generator(family)), tiny_task()
    inputs = tiny_inputs(task, some_prompts(LENGTHS))
    options = {"decoder": decoder, "early_stop": False, "max_probe_tokens": 3, "max_chain_tokens": 3}
    judge.probe(inputs, **options)  # trials come once per model, before any counting
    with counted_tokens(judge.backbone) as shapes:
        output = judge.judge(inputs, consensus_threshold=1.0, num_chains=2, **options)
    assert output.routes.tolist() == [Route.LONG] * 3
    rows, width = inputs.input_ids.shape
    prompts = [(n, t) for n, t in shapes if t > 1]
    short, long = len(SHORT_SUFFIX), len(task.long_suffix_ids)
    if decoder == "star":
        # Prompts and short suffix in one batch; for the chains, only the long suffix.
        assert prompts == [(rows, width + short), (rows, long)]
    else:
        assert prompts == [(rows, width), (rows, short), (1, long), (1, long), (1, long)]
    assert all(t == 1 for n, t in shapes if (n, t) not in prompts)  # and every step runs one token per branch
    assert output.prefill_tokens.tolist() == [length + short + long for length in LENGTHS]


def test_a_shared_prefix_costs_little_more_memory_than_one_decode():
    backbone, length, tokens = Backbone(tiny_generator()), 1024, 8
    ids = torch.randint(5, 300, (1, length - 8))
    sizes = {}
    with torch.no_grad():
        for branches in (1, 5):
            prefix, _ = prefill(backbone, ids, torch.ones_like(ids))
            stepper = StarStepper(backbone, prefix, branches, tokens)
            with backbone.star_attention():
                for _ in range(tokens):
                    stepper.step(torch.full((branches,), 7), None)
            sizes[branches] = stepper.num_bytes
    per_token = 3 * 2 * 2 * 8 * 4  # layers, keys and values, heads, head dimension, bytes
    assert sizes == {1: (length - 8 + tokens) * per_token, 5: (length - 8 + 5 * tokens) * per_token}
    assert sizes[5] <= 1.06 * sizes[1]


def test_a_suffix_longer_than_its_buffer_makes_the_buffer_grow():
    backbone = Backbone(tiny_generator())
    inputs = tiny_inputs(tiny_task(), some_prompts([5, 3]))
    prefix, _ = prefill(backbone, inputs.input_ids, inputs.attention_mask)
    fed = torch.randint(5, 300, (4, 7), generator=torch.Generator().manual_seed(0))
    states = []
    for capacity in (1, 7):
        stepper = StarStepper(backbone, prefix, 2, capacity)
        with torch.no_grad(), backbone.star_attention():
            states.append(torch.stack([stepper.step(fed[:, step], None)[0] for step in range(7)]))
    torch.testing.assert_close(states[0], states[1], atol=1e-5, rtol=0)


def grouped(inputs, shared: list[int], groups: list[int]):
    return replace(inputs, shared_tokens=torch.tensor(shared), group_index=torch.tensor(groups))


@pytest.mark.parametrize("family", GENERATORS)
def test_candidates_of_one_question_share_its_prefill(family):
    backbone = Backbone(tiny_generator(family))
    question, *own = some_prompts([15, 3, 9, 1])
    other = some_prompts([6, 12], seed=1)
    prompts = [other[0], *[question + answer for answer in own], other[1]]
    inputs = tiny_inputs(tiny_task(), prompts)
    engine, alike = LocalEngine(backbone), grouped(inputs, [0, 15, 15, 15, 0], [0, 1, 1, 1, 2])
    with torch.no_grad(), counted_tokens(backbone) as shapes:
        together = engine.start(alike, SHORT_SUFFIX)
    # The prompts that share nothing, the question once, its three answers padded to the longest.
    assert shapes == [(2, 12 + 3), (1, 15), (3, 9 + 3)]
    assert together.tokens_run == [9, 15 + 6, 12, 4, 15]
    apart = engine.start(inputs, SHORT_SUFFIX)
    torch.testing.assert_close(together.first_logits(None), apart.first_logits(None), atol=NOISE, rtol=0)
    for row in range(5):
        ours, alone = together.body(row).prefix, apart.body(row).prefix
        torch.testing.assert_close(ours.hidden, alone.hidden, atol=NOISE, rtol=0)
        assert ours.lengths.tolist() == alone.lengths.tolist() == [len(prompts[row])]
        window = 7 if family in ("gemma3", "mistral") else len(prompts[row])
        for a, b in zip(ours.layers, alone.layers, strict=True):
            torch.testing.assert_close(a.keys[:, :, -window:], b.keys[:, :, -window:], atol=NOISE, rtol=0)


@pytest.mark.parametrize("family", GENERATORS)
def test_sharing_a_prefill_changes_no_judgement(family):
    judge = TinyJudge(tiny_generator(family))
    question, *own = some_prompts([15, 3, 9, 1])
    inputs = tiny_inputs(tiny_task(), [question + answer for answer in own])
    options = {"probe_vocabulary": "verdict", "max_chain_tokens": 8, "consensus_threshold": 1.0}
    apart = judge.judge(inputs, **options)
    together = judge.judge(grouped(inputs, [15, 15, 15], [0, 0, 0]), **options)
    assert torch.equal(apart.probe_verdicts, together.probe_verdicts)
    assert torch.equal(apart.rewards.nan_to_num(-1), together.rewards.nan_to_num(-1))
    assert (apart.prefill_tokens - together.prefill_tokens).tolist() == [0, 15, 15]


def test_equal_candidates_and_candidates_that_are_all_question_are_judged():
    judge = TinyJudge(tiny_generator("gemma3"))
    question = some_prompts([15])[0]
    prompts = [question, question, [*question, 8]]
    inputs = tiny_inputs(tiny_task(), prompts)
    apart = judge.probe(inputs, consensus="exact").output
    together = judge.probe(grouped(inputs, [15, 15, 15], [0, 0, 0]), consensus="exact").output
    torch.testing.assert_close(apart.verdict_probs, together.verdict_probs, atol=1e-5, rtol=0)
    alike = grouped(inputs, [15, 15, 15], [0, 0, 0])
    for suffix in ((), SHORT_SUFFIX):
        with torch.no_grad():
            apart, together = (judge.engine.start(each, suffix) for each in (inputs, alike))
        for row in range(3):
            ours, alone = together.body(row).prefix, apart.body(row).prefix
            torch.testing.assert_close(ours.hidden, alone.hidden, atol=NOISE, rtol=0)


# -- other architectures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", OTHERS)
def test_soft_caps_sinks_experts_and_scaled_logits_are_decoded_exactly(model_type):
    generator = small_model(model_type, "eager", **OTHERS[model_type])
    inputs = tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    assert star_refusal(Backbone(generator)) is None
    assert check_against_hand(generator, ("star", "expand"), inputs, max_tokens=4) == 0


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_star_is_the_same_on_eager_attention(family):
    inputs = tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    generator = tiny_generator(family)
    sdpa = sample_branches(Backbone(generator), inputs, "star")
    generator.set_attn_implementation("eager")
    eager = sample_branches(Backbone(generator), inputs, "star")
    assert generator.config._attn_implementation == "eager"
    assert assert_same_draws(draws_of(sdpa), draws_of(eager), sdpa, NOISE) == 0


@pytest.mark.parametrize("model_type", RECURRENT)
def test_recurrent_models_are_expanded_and_draw_what_sampling_by_hand_draws(model_type):
    generator = small_model(model_type, **RECURRENT[model_type])
    judge, inputs = TinyJudge(generator), tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    assert check_against_hand(generator, ("expand",), inputs, max_tokens=4, most_noise=1e-3) == 0
    with pytest.raises(UnsupportedModelError, match="star"):
        judge.probe(inputs, decoder="star")
    output = judge.judge(inputs, probe_vocabulary="verdict", max_chain_tokens=4, consensus_threshold=1.0)
    assert output.statuses.tolist() == [0, 0, 0]


def test_a_model_that_forgets_its_state_between_chunks_is_fed_token_by_token():
    # Mamba starts every run of several tokens from an empty state.
    assert not continues_in_chunks(Backbone(small_model("mamba", **RECURRENT["mamba"])))
    assert continues_in_chunks(Backbone(small_model("lfm2", **RECURRENT["lfm2"])))
    assert continues_in_chunks(Backbone(tiny_generator("gemma3")))


def test_a_model_without_a_usable_cache_is_refused():
    rwkv = small_model("rwkv", hidden_size=32, num_hidden_layers=2, context_length=64)
    inputs = tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    with pytest.raises(UnsupportedModelError, match="RwkvForCausalLM cannot be continued"):
        TinyJudge(rwkv).probe(inputs)


def test_attention_that_is_not_what_its_configuration_says_is_found_by_trial(monkeypatch):
    generator = tiny_generator()
    assert Backbone(generator).star_refusal is None  # nothing in the configuration tells
    attention = type(generator.model.layers[0].self_attn)
    plain = attention.forward

    def sharpened(self, hidden_states, *args, **kwargs):
        # An architecture whose layers bend their output where their attention function was exchanged.
        output, weights = plain(self, hidden_states, *args, **kwargs)
        return output * (1.0 if self.config._attn_implementation == "sdpa" else 1.2), weights

    monkeypatch.setattr(attention, "forward", sharpened)
    refusal = star_refusal(Backbone(generator))
    assert refusal is not None
    assert "trial" in refusal
    judge, inputs = TinyJudge(generator), tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    auto, expand = (judge.probe(inputs, decoder=decoder).output for decoder in ("auto", "expand"))
    assert torch.equal(auto.probe_verdicts, expand.probe_verdicts)


def test_layers_that_take_no_shared_prefix_are_expanded():
    generator = small_model("diffllama")
    inputs = tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    assert "RuntimeError" in str(star_refusal(Backbone(generator)))
    assert check_against_hand(generator, ("expand",), inputs, max_tokens=4) == 0


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_offloaded_weights_are_fetched_for_every_decoder(family):
    inputs = tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    expected = sample_branches(Backbone(tiny_generator(family)), inputs, "star").tokens
    generator = tiny_generator(family)
    cpu_offload(generator, execution_device=torch.device("cpu"))
    backbone = Backbone(generator)
    assert generator.get_input_embeddings().weight.device.type == "meta"
    assert backbone.device.type == "cpu"
    for decoder in ("star", "expand"):
        assert torch.equal(sample_branches(backbone, inputs, decoder).tokens, expected)
    assert TinyJudge(generator).probe(inputs, probe_vocabulary="verdict").output.statuses.tolist() == [0, 0, 0]


def test_something_behind_the_head_that_is_not_known_is_refused():
    generator = tiny_generator()
    generator.lm_head.register_forward_hook(lambda module, args, output: output)  # harmless, and plain
    Backbone(generator).check_head()

    class Doubling(type(generator)):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.logits = output.logits * 2
            return output

    generator.__class__ = Doubling
    fresh = tiny_generator()
    fresh.__class__ = Doubling
    with pytest.raises(UnsupportedModelError, match="Doubling"):
        Backbone(fresh).check_head()


# -- what a caller may ask for --------------------------------------------------------------------------------------------


def test_a_decoder_that_is_not_exact_is_refused():
    judge, inputs = TinyJudge(tiny_generator()), tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    with pytest.raises(ConfigError, match="first_token"):
        judge.probe(inputs, decoder="first_token")
    with pytest.raises(ConfigError, match="max_probe_tokens"):
        judge.probe(inputs, probe_vocabulary="verdict", max_probe_tokens=1)
    free = tiny_inputs(tiny_task(VerdictSpace.free()), some_prompts(LENGTHS))
    with pytest.raises(ConfigError, match="cannot be listed"):
        judge.probe(free, consensus="exact")


@pytest.mark.parametrize(
    "settings",
    [{"num_beams": 4}, {"num_return_sequences": 3, "do_sample": True}, {"cache_implementation": "static"},
     {"stop_strings": ["a"]}, {"repetition_penalty": 5.0, "min_new_tokens": 5}],
)  # fmt: skip
def test_the_checkpoints_generation_settings_do_not_reach_the_probes(settings):
    judge, inputs = TinyJudge(tiny_generator()), tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    plain = judge.probe(inputs, decoder="expand").output
    own = judge.backbone.generator.generation_config
    for name, value in settings.items():
        setattr(own, name, value)
    assert torch.equal(judge.probe(inputs, decoder="expand").output.probe_verdicts, plain.probe_verdicts)
    assert judge.backbone.generator.generation_config is own


def test_a_checkpoint_with_its_own_generate_is_expanded_all_the_same():
    generator, inputs = tiny_generator(), tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    plain = sample_branches(Backbone(generator), inputs, "expand").tokens
    generator.generate = None  # a repository with a `custom_generate` folder replaces it on loading
    assert torch.equal(sample_branches(Backbone(generator), inputs, "expand").tokens, plain)


def test_threads_share_a_generator_without_disturbing_each_other():
    generator = tiny_generator("gemma3")
    inputs = [tiny_inputs(tiny_task(), some_prompts([12, 9], seed)) for seed in range(4)]
    alone = [sample_branches(Backbone(generator), each, "star").tokens for each in inputs]
    results: dict[int, torch.Tensor] = {}

    def work(index: int) -> None:
        results[index] = sample_branches(Backbone(generator), inputs[index], ("star", "expand")[index % 2]).tokens

    for _ in range(3):
        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert generator.config._attn_implementation == "sdpa"
        assert all(torch.equal(results[index], alone[index]) for index in range(4))


def test_a_failed_star_decode_gives_the_attention_back():
    backbone = Backbone(tiny_generator())

    def fail() -> None:
        with backbone.star_attention():
            assert backbone.config._attn_implementation == "egrm_star"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert backbone.config._attn_implementation == "sdpa"


def test_draws_are_keyed_by_item_not_by_row():
    backbone, prompt = Backbone(tiny_generator()), some_prompts([9])[0]
    inputs = tiny_inputs(tiny_task(), [prompt, prompt, prompt], item_ids=[5, 6, 5])
    tokens = sample_branches(backbone, inputs, "star").tokens.view(3, len(TEMPERATURES), -1)
    assert torch.equal(tokens[0], tokens[2])
    assert not torch.equal(tokens[0], tokens[1])
    first = uniforms(SEED, torch.tensor([5, 6, 5]), torch.tensor([0, 0, 0]), 0)
    assert first[0] == first[2] != first[1]
