"""`torch.set_default_dtype` is the caller's business: no reward depends on it, and no record fails for it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from tiny import tiny_generator, tiny_scorer, tiny_scorer_tokenizer, tiny_tokenizer
from transformers import AutoModel

from transformers_egrm.judge import JudgeResult, RewardJudge
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel


QUICK = {"max_chain_tokens": 6, "num_chains": 2, "probe_vocabulary": "verdict", "consensus_threshold": 1.0, "seed": 3}
PAIR = {"kind": "pairwise"}
RECORDS = [
    {"id": number, "prompt": f"What is {number} + 3?", "response": f"It is {number + 3}."} for number in range(3)
]
PAIRS = [{"id": 1, "prompt": "What is 2 + 3?", "response_a": "5", "response_b": "6"}]
CASES = {
    "scorer": {"selection": "scorer"},
    "vote": {"selection": "vote", "probe_vocabulary": "full", "max_probe_tokens": 3},
    "likelihood": {"selection": "likelihood"},
    "exact": {"consensus": "exact", "reward": "expected", "path": "short"},
    "long": {"path": "long", "selection": "vote"},
    "expand": {"decoder": "expand"},
    "strict": {"strict": True},
    "words": {"drafting": "ngram", "selection": "likelihood"},
    "layers": {"drafting": "layers", "draft_length": 2, "selection": "likelihood"},
    "draft": {"drafting": "model", "draft_length": 2, "num_drafts": 1, "verification": "sd"},
    "drafts": {"drafting": "model", "draft_length": 2, "num_drafts": 2, "verification": "spectr_gbv"},
    "trial": {"drafting": "auto"},
}
DTYPES = [torch.float64, torch.bfloat16, torch.float16]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def rows(results: list[JudgeResult]) -> list[dict]:
    return [result.to_dict() for result in results]  # in which NaN is None


@pytest.fixture(scope="module")
def model() -> EGRMRewardModel:
    draft = tiny_generator(seed=5, num_hidden_layers=1)
    parts = (tiny_generator(), tiny_scorer(), tiny_tokenizer(), tiny_scorer_tokenizer())
    return EGRMRewardModel.from_components(*parts, draft=draft)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_a_reward_does_not_depend_on_the_default_dtype(model, case, dtype):
    options = {"drafting": "none", "selection": "vote"} | QUICK | CASES[case]
    expected = RewardJudge(model, explain=True, **options)(RECORDS)
    assert {result.status for result in expected} <= {"ok", "no_verdict"}, expected[0].error
    with default_dtype(dtype):
        assert rows(RewardJudge(model, explain=True, **options)(RECORDS)) == rows(expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pairs_and_conversations_do_not_depend_on_it_either(model, dtype):
    options = QUICK | {"drafting": "none"}
    pairs = RewardJudge(model, space=PAIR, **options)(PAIRS)
    text = "<|im_start|>user\n2 + 3?<|im_end|>\n<|im_start|>assistant\n5<|im_end|>\n"
    ids = tiny_tokenizer()(text, return_tensors="pt").input_ids
    seen = model(ids, **options)
    with default_dtype(dtype):
        assert rows(RewardJudge(model, space=PAIR, **options)(PAIRS)) == rows(pairs)
        again = model(ids, **options)
    assert all(torch.equal(again[name], seen[name]) and again[name].dtype == seen[name].dtype for name in seen)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["encoder", "generator_state"])
def test_a_checkpoint_saved_and_loaded_under_it_judges_as_before(kind, dtype, tmp_path):
    with default_dtype(torch.float32):
        generator, scorer = tiny_generator(), tiny_scorer() if kind == "encoder" else None
    tokenizers = (tiny_tokenizer(), tiny_scorer_tokenizer() if kind == "encoder" else None)
    with default_dtype(dtype):
        model = EGRMRewardModel.from_components(
            generator,
            scorer,
            *tokenizers,
            scorer_kind=kind,
            scorer_trained=True,
            **{k: QUICK[k] for k in QUICK if k != "seed"},
        )
        model.save_pretrained(tmp_path)
        loaded = AutoModel.from_pretrained(tmp_path, disable_mmap=True)
        inside = RewardJudge(loaded, seed=3)(RECORDS)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    assert inside == RewardJudge(model, seed=3)(RECORDS)
    assert {result.status for result in inside} <= {"ok", "no_verdict"}, inside[0].error
