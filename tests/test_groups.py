"""Records of one question share its prefill wherever they are judged, and nobody has to say so."""

from typing import Any

import pytest
import torch
from cli_tools import egrm, read_jsonl, write_jsonl
from engine_fixtures import counted_tokens
from tiny import tiny_generator, tiny_tokenizer
from transformers import pipeline

from transformers_egrm import EGRMRewardModel, RewardJudge
from transformers_egrm.modeling import hub_saving_egrm
from transformers_egrm.modeling.prompt_groups_egrm import begin_alike, common_prefix, find_groups


QUESTION = "What is 2 + 3? " + "Rate the response from 0 to 10. " * 60
ANSWERS = [f"The answer is {number}. 2 + 3 = {number}." for number in range(8)]
RECORDS = [{"id": number, "prompt": QUESTION, "response": answer} for number, answer in enumerate(ANSWERS)]


@pytest.fixture(scope="module")
def model() -> EGRMRewardModel:
    return EGRMRewardModel.from_components(
        tiny_generator(max_position_embeddings=4096), tokenizer=tiny_tokenizer(), probe_vocabulary="verdict",
        max_chain_tokens=4, num_chains=1,
    )  # fmt: skip


def prefilled(model: EGRMRewardModel, run) -> tuple[int, Any]:
    with counted_tokens(model.backbone) as shapes:
        result = run()
    return sum(rows * tokens for rows, tokens in shapes if tokens > 1), result


def ideal(model: EGRMRewardModel) -> int:
    """The question once, and everything after what the prompts share for each answer."""
    prompts = [model.processor.encode(record).prompts[0] for record in RECORDS]
    shared = common_prefix(prompts)
    assert shared > 512
    suffix = len(model.task.short_suffix_ids)
    return shared + len(prompts) * (max(map(len, prompts)) - shared + suffix)


def ways(model: EGRMRewardModel):
    options = {"path": "short", "early_stop": False}
    yield "RewardJudge", lambda: [r.reward for r in RewardJudge(model, batch_size=8, **options)(RECORDS)]
    scorer = pipeline("reward-scoring", model=model, batch_size=8)
    yield "pipeline", lambda: [r["reward"] for r in scorer(RECORDS, **options)]
    yield "judge", lambda: model.judge(model.processor(RECORDS), **options).rewards.tolist()


def test_eight_answers_to_a_long_question_cost_little_more_than_the_ideal(model):
    alone = [model.judge(model.processor(record), path="short").rewards.item() for record in RECORDS]
    for name, run in ways(model):
        tokens, rewards = prefilled(model, run)
        assert tokens <= 1.05 * ideal(model), name
        assert rewards == alone, name


def test_score_on_the_command_line_shares_it_too(model, tmp_path, monkeypatch):
    model.save_pretrained(tmp_path / "judge")
    records = write_jsonl(tmp_path / "in.jsonl", RECORDS)
    seen = []
    load = hub_saving_egrm.EGRMPreTrainedModel.from_pretrained.__func__

    def watched(cls, *args, **kwargs):
        loaded = load(cls, *args, **kwargs)
        loaded.backbone.body.register_forward_pre_hook(
            lambda module, a, kw: seen.append(tuple(kw["input_ids"].shape)), with_kwargs=True
        )
        return loaded

    monkeypatch.setattr(hub_saving_egrm.EGRMPreTrainedModel, "from_pretrained", classmethod(watched))
    assert egrm("score", tmp_path / "judge", records, "-o", tmp_path / "out.jsonl", "--path", "short") == 0
    assert len(read_jsonl(tmp_path / "out.jsonl")) == 8
    trials = 8 * 8  # what is tried out once per generator has a handful of tokens
    assert sum(rows * tokens for rows, tokens in seen if tokens > 1) <= 1.05 * ideal(model) + trials


def test_mates_are_judged_together_among_strangers_of_their_length(model):
    strangers = [{"id": 100 + n, "prompt": f"{n} is odd? " + "yes or no? " * 150, "response": "5"} for n in range(8)]
    mixed = [record for pair in zip(RECORDS, strangers, strict=True) for record in pair]
    tokens, results = prefilled(model, lambda: RewardJudge(model, batch_size=8, path="short")(mixed))
    assert [result.id for result in results] == [record["id"] for record in mixed]
    others, _ = prefilled(model, lambda: RewardJudge(model, batch_size=8, path="short")(strangers))
    assert tokens <= 1.05 * ideal(model) + others


def test_answers_of_a_trainer_share_their_question_in_forward(model):
    rows = [model.processor.encode(record).prompts[0] for record in RECORDS]
    turn = len(model.task.judge_turn_ids)
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows])[:, : width - turn]
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])[:, : width - turn]
    tokens, _ = prefilled(model, lambda: model(ids, mask, path="short"))
    assert tokens <= 1.05 * ideal(model)


@pytest.mark.parametrize(
    ("prompts", "groups"),
    [
        ([range(40), range(40), range(100, 140)], [0, 0, 2]),
        ([[*range(10), 50, *range(30)], [*range(10), 60, *range(30)]], [0, 0]),  # a quarter of 41 is 10
        ([[*range(9), 50, *range(31)], [*range(9), 60, *range(31)]], [0, 1]),
        ([range(6), range(6)], [0, 1]),  # shorter than what is worth a pass of its own
        ([range(100, 140), range(40), range(100, 150), range(41)], [0, 1, 0, 1]),
    ],
)
def test_prompts_that_begin_alike_are_of_one_group(prompts, groups):
    rows = [tuple(prompt) for prompt in prompts]
    assert find_groups(rows) == groups
    assert begin_alike(rows[0], rows[0]) == (len(rows[0]) >= 8)
