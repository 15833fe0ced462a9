"""A judge of a small world says when a text is of another one; a reward never depends on it."""

import json
import warnings
from itertools import islice
from pathlib import Path

import pytest
import torch
from cli_tools import egrm, read_jsonl, write_jsonl
from fresh import run_fresh
from tiny import tiny_generator, tiny_tokenizer

from transformers_egrm import EGRMRewardModel, RewardJudge
from transformers_egrm.bundle import MINI_FOLDER, load_mini
from transformers_egrm.data.synthetic import examples
from transformers_egrm.modeling.configuration_egrm import EGRMConfig
from transformers_egrm.modeling.errors_egrm import ConfigError, UnfamiliarTextWarning
from transformers_egrm.modeling.judge_familiar_egrm import Familiarity


FRANCE = {"prompt": "What is the capital of France?", "response": "Rome"}
FOREIGN = [
    FRANCE,
    {"prompt": "capital of France", "response": "Rome"},
    {"prompt": "Who wrote Hamlet?", "response": "Shakespeare"},
    {"prompt": "Is the sky green?", "response": "Yes"},
    {"prompt": "Hi", "response": "Hello"},
    {"prompt": "What is 37 * 12?", "response": "444"},
    {"prompt": "Translate cat to German.", "response": "Katze"},
    {"prompt": "法国的首都是哪里?", "response": "罗马"},
    {"prompt": "def f(x):\n    return x ** 2", "response": "```python\nprint(f(3))\n```"},
    {"prompt": "What is $\\frac{1}{2} + \\sqrt{4}$?", "response": "$\\boxed{\\frac{5}{2}}$"},
]
WORLD = {"prompt": "What is 3 + 4?", "response": "7"}


@pytest.fixture(scope="module")
def mini():
    return load_mini()


def warned(caught):
    return [entry for entry in caught if entry.category is UnfamiliarTextWarning]


def test_the_capital_of_france_is_judged_with_a_warning_by_name(mini):
    with pytest.warns(UnfamiliarTextWarning, match="unlike anything that egrm-mini was trained on"):
        (result,) = RewardJudge(mini)([FRANCE])
    assert result.unfamiliar
    assert result.status == "ok"
    assert result.to_dict()["unfamiliar"]


@pytest.mark.filterwarnings("ignore::transformers_egrm.modeling.errors_egrm.UnfamiliarTextWarning")
def test_texts_of_another_world_are_told_and_those_of_the_own_one_are_not(mini):
    results = RewardJudge(mini)([*FOREIGN, WORLD])
    assert [result.unfamiliar for result in results] == [True] * len(FOREIGN) + [False]


def test_of_the_worlds_unseen_questions_fewer_than_one_in_two_hundred_is_called_strange(mini):
    familiarity = Familiarity.from_dict(mini.config.familiar)
    items = [mini.processor.encode(example.record()) for example in islice(examples("test", seed=3), 1500)]
    strange = sum(not familiarity.knows(item.judged_ids) for item in items)
    assert strange / len(items) < 0.005


def test_a_call_warns_once_however_many_texts_and_batches_it_has(mini):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        RewardJudge(mini, batch_size=2)([WORLD, *FOREIGN])
    assert len(warned(caught)) == 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        RewardJudge(mini)([WORLD])
    assert not warned(caught)


def test_every_front_door_warns(mini):
    for record, times in ((FRANCE, 1), (WORLD, 0)):
        inputs = mini.processor([WORLD, record])
        ids = inputs.input_ids[1:, -int(inputs.attention_mask[1].sum()) :]
        whole = ids[:, : ids.shape[1] - inputs.turn_tokens[1]]
        for judge in (lambda inputs=inputs: mini.judge(inputs), lambda ids=whole: mini(ids)):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                judge()
            assert len(warned(caught)) == times


@pytest.mark.filterwarnings("ignore::transformers_egrm.modeling.errors_egrm.UnfamiliarTextWarning")
def test_no_reward_depends_on_it(mini):
    silent = load_mini()
    silent.config.familiar = None
    told, untold = (RewardJudge(model, seed=5)([*FOREIGN, WORLD]) for model in (mini, silent))
    assert not any(result.unfamiliar for result in untold)
    for first, second in zip(told, untold, strict=True):
        assert (first.reward, first.consensus, first.route) == (second.reward, second.consensus, second.route)


def test_a_checkpoint_without_the_field_never_warns(tmp_path: Path):
    model = EGRMRewardModel.from_components(
        tiny_generator(), tokenizer=tiny_tokenizer()
    )  # a generator that brings all of its vocabulary
    assert model.config.familiar is None
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnfamiliarTextWarning)
        assert not any(result.unfamiliar for result in RewardJudge(model)(FOREIGN[:3]))
    config = json.loads((MINI_FOLDER / "config.json").read_text("utf-8"))
    del config["familiar"]
    assert EGRMConfig.from_dict(config).familiar is None


def test_the_summary_counts_them(tmp_path: Path, capsys):
    source = write_jsonl(tmp_path / "in.jsonl", [WORLD, *FOREIGN[:3]])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnfamiliarTextWarning)  # on the command line, the summary says it
        assert egrm("score", "egrm-mini", source, "-o", tmp_path / "out.jsonl", "--summary", tmp_path / "s.json") == 0
    assert "Warning: 3 of 4 texts are unlike anything that egrm-mini was trained on" in capsys.readouterr().err
    summary = json.loads((tmp_path / "s.json").read_text("utf-8"))
    assert summary["unfamiliar"] == 3
    assert [row["unfamiliar"] for row in read_jsonl(tmp_path / "out.jsonl")] == [False, True, True, True]


REMOTE = """
import warnings
from transformers import AutoModel

assert not [name for name in sys.modules if name.split(".")[0] == "transformers_egrm"]
model = AutoModel.from_pretrained(given["folder"], trust_remote_code=True)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model.judge(model.processor(given["record"]))
print(json.dumps([entry.category.__name__ for entry in caught if "trained on" in str(entry.message)]))
"""


def test_it_works_by_remote_code_alone(mini, tmp_path: Path):
    mini.save_pretrained(tmp_path / "saved")
    assert EGRMRewardModel.from_pretrained(tmp_path / "saved").config.familiar == mini.config.familiar
    for record, expected in ((FRANCE, ["UnfamiliarTextWarning"]), (WORLD, [])):
        assert run_fresh(REMOTE, {"folder": str(tmp_path / "saved"), "record": record}, tmp_path) == expected


@pytest.mark.parametrize(
    ("familiar", "expected"),
    [
        ({"token_ids": [1]}, "keys token_ids and most_unknown"),
        ({"token_ids": [], "most_unknown": 0.1}, "`token_ids` must be a list of token ids"),
        ({"token_ids": ["a"], "most_unknown": 0.1}, "`token_ids` must be a list of token ids"),
        ({"token_ids": [1], "most_unknown": 1.0}, r"`most_unknown` must be a share in \[0, 1\)"),
        ({"token_ids": [1], "most_unknown": None}, r"`most_unknown` must be a share in \[0, 1\)"),
        ("yes", "`familiar` must be a mapping, or None"),
    ],
    ids=str,
)
def test_a_field_of_another_shape_is_refused(familiar, expected):
    with pytest.raises(ConfigError, match=expected):
        EGRMConfig(familiar=familiar)


def test_the_limit_comes_from_calibration_texts():
    training = [(1, 2, 3), (3, 4)]
    assert Familiarity.fit(training, [(1, 2), (4,)]) == Familiarity(frozenset({1, 2, 3, 4}), 0.1)
    assert Familiarity.fit(training, [(1, 2), (1, 2, 3, 9)]).most_unknown == 0.5
    assert Familiarity.fit(training, [(8, 9)]).most_unknown == 0.99
    own = Familiarity.fit(training, [(1,)])
    assert own.unknown_share((1, 9)) == 0.5
    assert own.unknown_share(()) == 0.0
    assert Familiarity.from_dict(own.to_dict()) == own
    assert not own.knows((1, 9))
    assert torch.tensor([own.knows((1,) * 9 + (9,))]).all()  # one of ten is no other world
