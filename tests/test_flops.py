"""The cost model against PyTorch's own count of operations, and a judgement's cost against a sum by hand."""

import pytest
import torch
from engine_fixtures import LONG_SUFFIX, SHORT_SUFFIX, TinyJudge, some_prompts, tiny_inputs, tiny_task
from tiny import GENERATORS, tiny_generator, tiny_scorer
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3NextConfig

from transformers_egrm.modeling.engine_backbone_egrm import Backbone
from transformers_egrm.modeling.engine_flops_egrm import CostModel, cost_model


# Norms, which are weights to the model and no products to the counter, are the few percent that may differ.
CLOSE = 0.04


@torch.no_grad()
def counted(backbone: Backbone, prompt: int, new: int) -> tuple[float, float]:
    """Operations of running a prompt, and of running one token behind it, head included."""
    generator = backbone.generator
    ids, cache = torch.full((1, prompt + new), 7), backbone.new_cache()
    result = []
    for tokens in (ids[:, :prompt], ids[:, prompt:]):
        with FlopCounterMode(display=False) as counter:
            generator(input_ids=tokens, use_cache=True, logits_to_keep=1, **{backbone.cache_name: cache})
        result.append(float(counter.get_total_flops()))
    return result[0], result[1]


@pytest.mark.parametrize("family", GENERATORS)
def test_a_token_behind_a_prompt_costs_what_pytorch_counts(family):
    backbone = Backbone(tiny_generator(family, hidden_size=64, intermediate_size=128, attn_implementation="eager"))
    for prompt in (4, 30):  # below and above the windows of Gemma3 and Mistral
        _, step = counted(backbone, prompt, 1)
        assert backbone.cost.run(1, prompt) + backbone.cost.head(1) == pytest.approx(step, rel=CLOSE)


@pytest.mark.parametrize("family", GENERATORS)
def test_a_prompt_costs_what_pytorch_counts_without_the_masked_half(family):
    backbone = Backbone(tiny_generator(family, hidden_size=64, intermediate_size=128, attn_implementation="eager"))
    length = 30
    prefill, _ = counted(backbone, length, 1)
    # The counter sees whole squares of scores; a token sees itself and what is before it, at most the window.
    seen = [sum(min(token + 1, window or length) for token in range(length)) for window in backbone.windows]
    masked = sum(length * length - each for each in seen)
    useful = prefill - 4 * backbone.cost.attention_width * masked
    assert backbone.cost.run(length) + backbone.cost.head(1) == pytest.approx(useful, rel=CLOSE)


def test_only_the_experts_that_are_asked_count():
    config = Qwen3MoeConfig(
        vocab_size=400, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        moe_intermediate_size=128, intermediate_size=128, num_experts=8, num_experts_per_tok=2,
    )  # fmt: skip
    generator = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    cost = cost_model(generator)
    attention = 2 * (64 * 64 + 2 * 64 * 32 + 64 * 64)
    experts, router = 2 * 2 * (3 * 64 * 128), 2 * 64 * 8
    assert cost.body_weights == pytest.approx(attention + experts + router, rel=CLOSE)


def test_recurrent_layers_attend_to_nothing():
    config = Qwen3NextConfig(
        vocab_size=400, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=48, moe_intermediate_size=16, shared_expert_intermediate_size=16, num_experts=4,
        num_experts_per_tok=2, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
        linear_value_head_dim=8,
    )  # fmt: skip
    backbone = Backbone(AutoModelForCausalLM.from_config(config).eval())
    assert backbone.cost.windows == (None,)  # one layer in four


def test_an_encoder_costs_what_pytorch_counts():
    scorer = tiny_scorer()
    scorer.pooler = None  # the library's scorer reads the first token's state, and pools nothing
    scorer.set_attn_implementation("eager")
    ids = torch.full((1, 40), 7)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        scorer(input_ids=ids)
    assert cost_model(scorer).run(40) == pytest.approx(counter.get_total_flops(), rel=CLOSE)


def test_contexts_are_summed_token_by_token():
    cost = CostModel(
        body_weights=0.0, head_weights_per_token_id=3.0, vocab_size=10, attention_width=2, windows=(None, 4)
    )
    for context in (0, 1, 3, 4, 10):
        for new in (0, 1, 2, 5, 9):
            tokens = range(context + 1, context + new + 1)
            assert cost.run(new, context) == 4 * 2 * sum(seen + min(seen, 4) for seen in tokens)
    assert cost.head(5) == 2 * 3 * 10 * 5
    assert cost.head(5, 2) == 2 * 3 * 2 * 5
    assert cost.head(5, 0) == 0


# -- a judgement ------------------------------------------------------------------------------------------------------------


def test_probes_are_charged_for_the_tokens_they_were_fed():
    judge, task = TinyJudge(tiny_generator()), tiny_task()
    cost, inputs = judge.backbone.cost, tiny_inputs(task, some_prompts([20, 7]))
    output = judge.probe(inputs, max_probe_tokens=1).output
    for item, length in enumerate((20 + len(SHORT_SUFFIX), 7 + len(SHORT_SUFFIX))):
        assert float(output.flops[item]) == cost.run(length) + cost.head(1)  # the first token comes with the prompt
    # Both tokens of every verdict but "10" and "1", which take three: the last one is drawn and never fed.
    output = judge.probe(inputs, probe_vocabulary="verdict", early_stop=False).output
    columns = len({token for ids in task.verdict_token_ids for token in ids} | set(task.probe_stop_ids))
    for item, length in enumerate((20 + len(SHORT_SUFFIX), 7 + len(SHORT_SUFFIX))):
        total = cost.run(length) + cost.head(1, columns)
        for verdict in output.probe_verdicts[item].tolist():
            fed = 2 if verdict in (1, 10) else 1
            total += cost.run(fed, length) + cost.head(fed, columns)
        assert float(output.flops[item]) == pytest.approx(total)


def test_the_exact_distribution_is_charged_for_the_paths_it_reads():
    judge, task = TinyJudge(tiny_generator()), tiny_task()
    cost, inputs = judge.backbone.cost, tiny_inputs(task, some_prompts([20]))
    output = judge.probe(inputs, consensus="exact").output
    length = 20 + len(SHORT_SUFFIX)
    columns = len({token for ids in task.verdict_token_ids for token in ids} | set(task.probe_stop_ids))
    # After the space, and after space and 1.
    by_hand = cost.run(length) + cost.run(1, length) + cost.run(2, length) + 3 * cost.head(1, columns)
    assert float(output.flops[0]) == pytest.approx(by_hand)
    assert output.new_tokens.tolist() == [0]


def test_shared_tokens_are_charged_once():
    judge = TinyJudge(tiny_generator())
    question = some_prompts([15])[0]
    inputs = tiny_inputs(tiny_task(), [[*question, 5, 6], [*question, 7]])
    cost, short = judge.backbone.cost, len(SHORT_SUFFIX)
    grouped = judge.probe(
        type(inputs)(**{**vars(inputs), "shared_tokens": torch.tensor([15, 15]), "group_index": torch.tensor([0, 0])}),
        max_probe_tokens=1,
    ).output  # fmt: skip
    assert float(grouped.flops[0]) == cost.run(17 + short) + cost.head(1)
    assert float(grouped.flops[1]) == cost.run(1 + short, 15) + cost.head(1)


def test_chains_are_charged_from_the_kept_prefix():
    judge, inputs = TinyJudge(tiny_generator()), tiny_inputs(tiny_task(), some_prompts([20]))
    cost = judge.backbone.cost
    output = judge.judge(inputs, path="long", num_chains=2, max_chain_tokens=1)
    by_hand = cost.run(20) + cost.run(len(LONG_SUFFIX), 20) + cost.head(1)
    assert float(output.flops[0]) == pytest.approx(by_hand)
