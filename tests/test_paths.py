"""Forcing a path, and conversations that do not fit: what a whole judgement does at its edges."""

import pytest
import torch
from tiny import tiny_generator, tiny_scorer, tiny_scorer_tokenizer, tiny_tokenizer

from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.judge_values_egrm import Status
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.modeling.verdict_consensus_egrm import Route


RECORDS = [{"prompt": "What is 2 + 3?", "response": "5"}, {"prompt": "Say hi, step by step", "response": "hi there"}]


@pytest.fixture(scope="module")
def model():
    return EGRMRewardModel.from_components(
        tiny_generator(), tiny_scorer(), tiny_tokenizer(), tiny_scorer_tokenizer(), max_chain_tokens=16,
        probe_vocabulary="verdict",
    )  # fmt: skip


def test_the_short_path_alone_believes_the_most_frequent_verdict_and_writes_no_chain(model):
    inputs = model.processor(RECORDS)
    output = model.judge(inputs, path="short", early_stop=False)
    assert output.routes.tolist() == [Route.SHORT] * 2
    for verdicts, reward in zip(output.probe_verdicts.tolist(), output.rewards.tolist(), strict=True):
        most = max(verdicts.count(verdict) for verdict in verdicts)
        assert reward == min(verdict for verdict in verdicts if verdicts.count(verdict) == most)
    assert int(output.new_tokens.max()) <= 10
    stopped = model.judge(inputs, path="short", early_stop=True, reuse_probes=False)
    assert torch.equal(stopped.rewards, output.rewards)


def test_the_short_path_alone_has_no_verdict_where_no_probe_states_one(model):
    output = model.judge(model.processor(RECORDS), path="short", probe_vocabulary="full", max_probe_tokens=1)
    silent = ~output.probe_parsed.any(-1)
    assert output.statuses[silent].tolist() == [Status.NO_VERDICT] * int(silent.sum())
    assert output.rewards[silent].isnan().all()
    assert output.rewards[~silent].isfinite().all()


def test_the_long_path_alone_draws_no_probe_and_runs_no_short_prompt(model):
    inputs = model.processor(RECORDS)
    output = model.judge(inputs, path="long", num_chains=2)
    assert output.routes.tolist() == [Route.LONG] * 2
    assert output.consensus.isnan().all()
    assert output.probe_verdicts is None
    suffix = len(model.task.long_suffix_ids)
    assert output.prefill_tokens.tolist() == [int(n) + suffix for n in inputs.attention_mask.sum(-1)]
    assert int(output.new_tokens.max()) <= 2 * 16


def test_a_conversation_that_does_not_fit_gets_a_status_and_leaves_its_neighbours_alone(model):
    ids = torch.full((2, 1100), 7)
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    together = model(ids, mask)
    assert together.statuses.tolist()[0] == Status.TOO_LONG
    assert together.logits[0].isnan().all()
    alone = model(ids[1:, :9])
    assert together.logits[1].equal(alone.logits[0])
    assert together.statuses[1] == alone.statuses[0]


def test_the_module_form_and_the_processor_agree_on_every_reward(model):
    tokenizer = model.processor.tokenizer
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": r["prompt"]}, {"role": "assistant", "content": r["response"]}], tokenize=False
        )
        for r in RECORDS
    ]
    batch = tokenizer(texts, padding=True, padding_side="right", add_special_tokens=False, return_tensors="pt")
    for options in ({}, {"selection": "scorer"}, {"path": "long", "selection": "scorer"}):
        judged = model.judge(model.processor(RECORDS), **options)
        assert torch.equal(model(**batch, **options).logits[:, 0].nan_to_num(-1), judged.rewards.nan_to_num(-1))


def test_options_that_differ_between_the_two_paths_are_refused_with_the_remedy(model):
    items = model.probe(model.processor(RECORDS), path="long").long_items()
    with pytest.raises(ConfigError, match="same options to `probe` and `deliberate`"):
        model.deliberate(items, path="long", selection="scorer")
