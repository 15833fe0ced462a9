"""`pipeline("reward-scoring")`: every form of input gives the same plain dicts, with and without this package."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from tiny import tiny_generator, tiny_scorer, tiny_scorer_tokenizer, tiny_tokenizer
from torch.utils.data import Dataset
from transformers import pipeline

from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel


RECORDS = [
    {"id": number, "prompt": f"What is {number} + 3?", "response": f"It is {number + 3}" + "." * number}
    for number in range(5)
]
# Verdicts come from the verdict space alone, so that a random model states some, on both routes.
OPTIONS = {"max_chain_tokens": 4, "num_chains": 2, "seed": 3, "probe_vocabulary": "verdict"}


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model() -> EGRMRewardModel:
    return EGRMRewardModel.from_components(tiny_generator(), tiny_scorer(), tiny_tokenizer(), tiny_scorer_tokenizer())


def reward_scoring(model: Any, **settings: Any) -> Any:
    """`pipeline` as its users call it; its overloads know the built-in tasks only."""
    build: Any = pipeline
    return build("reward-scoring", model=model, device="cpu", **settings)


@pytest.fixture(scope="module")
def scorer(model: EGRMRewardModel) -> Any:
    return reward_scoring(model, **OPTIONS)


@pytest.fixture(scope="module")
def expected(scorer: Any) -> list[dict[str, Any]]:
    return [scorer(record) for record in RECORDS]


@pytest.mark.parametrize(
    "settings",
    [{"batch_size": 0}, {"batch_size": "2"}, {"batch_size": True}, {"num_workers": -1}, {"num_workers": True},
     {"return_rationale": "no"}, {"explain": 1}, {"seed": None}, {"strict": "no"}, {"temperatures": 0.7}, {"rubric": 5}],
    ids=str,
)  # fmt: skip
def test_a_setting_of_a_wrong_type_is_refused_at_once(scorer, model, settings):
    with pytest.raises(ConfigError):
        scorer(RECORDS, **settings)
    with pytest.raises(ConfigError):
        reward_scoring(model, **settings)


# -- what comes out -------------------------------------------------------------------------------------------------------


def test_a_result_is_a_plain_dict_that_json_holds(expected):
    assert list(expected[0]) == [
        "id", "reward", "verdict", "consensus", "consensus_is_bound", "confidence", "route", "status", "tokens", "truncated",
        "truncated_tokens", "order", "seed", "stage", "support", "reward_mean", "reward_variance", "reward_risk_adjusted", "audited",
        "audit_verdict", "rationale", "error", "said", "fallback", "unfamiliar", "draft_rounds", "draft_tokens", "draft_kept",
    ]  # fmt: skip
    assert json.loads(json.dumps(expected, allow_nan=False)) == expected
    for record, result in zip(RECORDS, expected, strict=True):
        assert (result["id"], result["seed"], result["order"]) == (record["id"], 3, ["given"])
        assert result["status"] == "ok"
        assert result["reward"] == float(result["verdict"])
        assert result["tokens"] > 0
    assert {result["route"] for result in expected} == {"short", "long"}


def test_without_a_verdict_the_reward_is_none_and_the_result_says_why(scorer):
    result = scorer(RECORDS[0], probe_vocabulary="full", max_probe_tokens=1)
    assert (result["status"], result["reward"], result["verdict"]) == ("no_verdict", None, None)
    assert "stated a verdict" in result["error"]


def test_a_result_says_what_the_model_says(model, scorer, expected):
    output = model.judge(model.processor(RECORDS), **OPTIONS)
    for row, result in enumerate(expected):
        assert result["consensus"] == output.consensus[row].item()
        assert result["tokens"] == output.new_tokens[row].item()
        assert result["reward"] == output.rewards[row].item()
        assert result["verdict"] == output.verdict_texts[row]


def test_a_pair_is_judged_in_both_orders_and_its_reward_says_which_is_better(scorer):
    pair = {"prompt": "What is 2 + 3?", "response_a": "5", "response_b": "6"}
    result = scorer(pair, space={"kind": "pairwise"})
    assert result["order"] == ["ab", "ba"]
    assert {"A": 1.0, "B": 0.0, None: None}[result["verdict"]] == result["reward"]


def test_a_rationale_is_the_text_that_was_believed_and_comes_where_asked_for(model, scorer, expected):
    asked = scorer(RECORDS, return_rationale=True)
    output = model.judge(model.processor(RECORDS), return_texts=True, **OPTIONS)
    assert [result["rationale"] for result in asked] == output.rationales
    assert [isinstance(result["rationale"], str) for result in asked] == [r["route"] == "long" for r in expected]
    assert all(result["rationale"] is None for result in expected)


@pytest.mark.parametrize(
    ("kind", "fields", "verdicts"),
    [
        ("binary", {"response": "5"}, {"incorrect": 0.0, "correct": 1.0}),
        ("listwise", {"responses": ["5", "6"]}, {"1": 0.0, "2": 1.0}),
    ],
)
def test_every_verdict_space_has_results_of_the_same_form(scorer, expected, kind, fields, verdicts):
    result = scorer({"prompt": "What is 2 + 3?", **fields}, space={"kind": kind})
    assert list(result) == list(expected[0])
    assert (result["status"], result["order"]) == ("ok", ["given"])
    assert result["reward"] == verdicts[result["verdict"]]


def test_an_open_answer_is_its_own_verdict_and_has_a_reward_only_beside_a_reference(scorer, model, monkeypatch):
    monkeypatch.setattr(model, "decode_tokens", lambda token_ids, control=False: ["Answer: 5\nDone."] * len(token_ids))
    free = {"space": {"kind": "free"}, "probe_vocabulary": "full"}
    question = {"prompt": "What is 2 + 3?"}
    results = [scorer({**question, **known}, **free) for known in ({}, {"reference": "5"}, {"reference": "6"})]
    assert [result["verdict"] for result in results] == ["5"] * 3
    assert [result["reward"] for result in results] == [None, 1.0, 0.0]


# -- what goes in ---------------------------------------------------------------------------------------------------------


class RecordsByIndex(Dataset):
    def __len__(self) -> int:
        return len(RECORDS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return RECORDS[index]


FORMS = {
    "list": lambda: RECORDS,
    "tuple": lambda: tuple(RECORDS),
    "generator": lambda: (record for record in RECORDS),
    "iterator": lambda: iter(RECORDS),
    "torch dataset": RecordsByIndex,
    "datasets.Dataset": lambda: datasets.Dataset.from_list(RECORDS),
    "datasets.IterableDataset": lambda: datasets.Dataset.from_list(RECORDS).to_iterable_dataset(),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_every_form_of_input_gives_the_same(scorer, expected, form):
    assert list(scorer(form(), batch_size=3)) == expected


@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_every_batch_size_gives_the_same(scorer, expected, batch_size):
    assert scorer(RECORDS, batch_size=batch_size) == expected


def test_a_list_gives_a_list_and_a_stream_an_iterator_that_reads_a_batch_ahead(scorer, expected):
    read = []

    def source():
        for record in RECORDS:
            read.append(record["id"])
            yield record

    assert isinstance(scorer(RECORDS), list)
    stream = scorer(source(), batch_size=2)
    assert read == []
    assert next(stream) == expected[0]
    assert read == [0, 1]
    assert [next(stream), next(stream)] == expected[1:3]
    assert read == [0, 1, 2, 3]


def test_workers_encode_the_same(scorer, expected):
    assert scorer(RECORDS, batch_size=2, num_workers=1) == expected
    assert list(scorer((record for record in RECORDS), num_workers=2)) == expected


def test_a_conversation_is_one_record_and_a_list_of_them_several(scorer):
    chats = [
        [{"role": "user", "content": record["prompt"]}, {"role": "assistant", "content": record["response"]}]
        for record in RECORDS
    ]
    whole = [{key: record[key] for key in ("prompt", "response")} for record in RECORDS]
    expected = scorer(whole, batch_size=5)
    assert scorer(chats[0]) == expected[0]
    assert scorer(chats, batch_size=5) == expected
    assert list(scorer(iter(chats), batch_size=5)) == expected
    assert scorer([chats[0], whole[1]]) == expected[:2]


def test_nothing_in_gives_nothing_out(scorer):
    assert scorer([]) == []
    assert list(scorer(iter([]))) == []


def test_the_columns_that_a_table_leaves_empty_are_absent_fields(scorer, expected):
    table = datasets.Dataset.from_list([{**RECORDS[1], "system": "Be brief."}, RECORDS[0]])
    assert table[1]["system"] is None
    assert list(scorer(table, batch_size=2))[1] == expected[0]


# -- bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad", ["text", None, 3, {"prompt": "?"}, {"prompt": "", "response": "5"}, [{"role": "user"}]]
)
def test_a_bad_record_is_a_status_alone_and_in_a_batch(scorer, expected, bad):
    alone = scorer(bad)
    assert (alone["status"], alone["reward"]) == ("error", None)
    assert alone["error"]
    assert scorer([RECORDS[0], bad, RECORDS[1]], batch_size=3) == [expected[0], alone, expected[1]]


def test_a_record_that_breaks_the_model_does_not_spoil_its_batch(model, scorer, expected, monkeypatch):
    probe = model.probe

    def fragile(inputs, **options):
        if 2 in inputs.item_ids.tolist():
            raise RuntimeError("out of memory")
        return probe(inputs, **options)

    monkeypatch.setattr(model, "probe", fragile)
    results = scorer(RECORDS, batch_size=5)
    assert (results[2]["status"], results[2]["error"]) == ("error", "RuntimeError: out of memory")
    assert [*results[:2], *results[3:]] == [*expected[:2], *expected[3:]]


def test_logits_that_are_not_finite_are_an_error_and_no_reward():
    generator = tiny_generator()
    scorer = reward_scoring(EGRMRewardModel.from_components(generator, tokenizer=tiny_tokenizer()), **OPTIONS)
    assert scorer(RECORDS[0])["status"] == "ok"
    torch.nn.init.constant_(generator.lm_head.weight, torch.nan)
    result = scorer(RECORDS[0])
    assert (result["status"], result["reward"], result["verdict"]) == ("error", None, None)
    assert "not finite" in result["error"]
    json.dumps(result, allow_nan=False)


def test_an_unknown_or_wrong_option_is_an_error(model, scorer):
    with pytest.raises(ConfigError, match=r"Unknown option \['num_chain'\].*num_chains"):
        scorer(RECORDS[0], num_chain=3)
    with pytest.raises(ConfigError, match="consensus_threshold"):
        scorer((record for record in RECORDS), consensus_threshold=1.5)
    with pytest.raises(ConfigError, match="Unknown option"):
        reward_scoring(model, temperature=1.0)
    with pytest.raises(ConfigError, match="num_chains"):
        reward_scoring(model, num_chains=0)


def test_a_model_without_a_processor_says_so():
    bare = EGRMRewardModel.from_components(tiny_generator())
    with pytest.raises(ConfigError, match="no processor"):
        reward_scoring(bare)


# -- how it runs ----------------------------------------------------------------------------------------------------------


def test_a_tokenizer_without_pad_token_can_be_batched():
    tokenizer = tiny_tokenizer(chat_template=False)
    assert tokenizer.pad_token is None
    bare = EGRMRewardModel.from_components(tiny_generator(), tokenizer=tokenizer)
    scorer = reward_scoring(bare, **OPTIONS)
    assert scorer(RECORDS, batch_size=3) == [scorer(record) for record in RECORDS]


def test_options_of_a_call_replace_those_of_the_constructor(scorer, expected):
    again = scorer(RECORDS, seed=4)
    assert {result["seed"] for result in again} == {4}
    assert [result["consensus"] for result in again] != [result["consensus"] for result in expected]
    assert scorer(RECORDS) == expected


def test_judging_leaves_the_global_random_state_alone(scorer):
    before = torch.random.get_rng_state()
    scorer(RECORDS, batch_size=2)
    assert torch.equal(torch.random.get_rng_state(), before)


FRESH_PROCESS = """
    import json, sys

    class Block:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "transformers_egrm":
                raise ModuleNotFoundError(f"{name} is blocked")

    sys.meta_path.insert(0, Block())
    import datasets, torch
    from transformers import pipeline

    torch.set_num_threads(1)
    given = json.load(sys.stdin)
    found = {}
    for name, settings in given["loads"].items():
        scorer = pipeline(
            model=given[name], device="cpu", trust_remote_code=True, local_files_only=True,
            model_kwargs={"disable_mmap": True}, **settings,
        )
        found[name] = list(scorer(datasets.Dataset.from_list(given["records"]), batch_size=2, **given["options"]))
        bad = scorer([{"prompt": "?"}, given["records"][0]], batch_size=2, **given["options"])
        assert [bad[0]["status"], bad[1]] == ["error", found[name][0]], bad
        try:
            scorer(given["records"][0], num_chain=2)
        except ValueError as error:
            assert "Unknown option" in str(error)
        if name == "saved":
            scorer.save_pretrained(given["resaved"])
    assert not any(module.startswith("transformers_egrm") for module in sys.modules)
    print(json.dumps(found))
"""


def test_a_folder_alone_and_one_saved_again_by_the_pipeline_score_the_same(scorer, expected, tmp_path):
    saved, resaved = tmp_path / "saved", tmp_path / "resaved"
    scorer.save_pretrained(saved)
    given = {
        "saved": str(saved), "resaved": str(resaved), "records": RECORDS, "options": OPTIONS,
        "loads": {"saved": {"task": "reward-scoring"}, "resaved": {}},
    }  # fmt: skip
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FRESH_PROCESS)],
        input=json.dumps(given), cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1]) == {"saved": expected, "resaved": expected}
    assert {path.name for path in saved.glob("*.py")} == {path.name for path in resaved.glob("*.py")}


def test_a_folder_is_loaded_by_task_name_beside_the_installed_package(scorer, expected, tmp_path: Path):
    scorer.save_pretrained(tmp_path)
    loaded = reward_scoring(tmp_path, trust_remote_code=True)
    assert loaded(RECORDS, batch_size=4, **OPTIONS) == expected


def test_pushing_the_pipeline_pushes_the_checkpoint(model, scorer, monkeypatch):
    pushed = {}
    monkeypatch.setattr(model, "push_to_hub", lambda repo_id, **settings: pushed.update({repo_id: settings}))
    scorer.push_to_hub("acme/judge", private=True)
    assert pushed == {"acme/judge": {"private": True}}
