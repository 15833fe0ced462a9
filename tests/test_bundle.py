"""The judge inside the package: it loads without a network, judges its world, and is as small as the repository allows."""

import ast
import re
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_tools import egrm, one_thread, read_jsonl, write_jsonl
from fresh import run_fresh
from transformers import AutoModel, pipeline

from transformers_egrm import EGRMRewardModel, RewardJudge
from transformers_egrm.bundle import MINI_FOLDER, MINI_NAME, folder_of, load_mini
from transformers_egrm.data.synthetic import examples
from transformers_egrm.modeling.configuration_egrm import EGRMConfig
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.hub_card_egrm import MARKER, render_card
from transformers_egrm.modeling.hub_saving_egrm import AUTO_MAP


WORLD = list(islice(examples("test", seed=4), 150))
RECORDS = [example.record() for example in WORLD]


@pytest.fixture(scope="module")
def results():
    with one_thread():
        return RewardJudge(load_mini())(RECORDS)


def test_rewards_of_unseen_questions_are_mostly_right(results):
    right = [result.reward == example.verdict for result, example in zip(results, WORLD, strict=True)]
    assert np.mean(right) > 0.7  # far below what is measured, far above the half that the commonest verdict would give


def test_both_routes_are_taken_and_the_short_one_is_the_surer(results):
    short = [result.route == "short" for result in results]
    right = [result.reward == example.verdict for result, example in zip(results, WORLD, strict=True)]
    assert 0.2 < np.mean(short) < 0.9
    assert np.mean(np.array(right)[short]) > 0.8


def test_it_is_small_and_its_code_is_the_packages():
    files = [path for path in MINI_FOLDER.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    pointers = {path.name: path.read_text() for path in files if path.suffix == ".py"}
    named = {reference.split(".")[0] + ".py" for reference in AUTO_MAP.values()} | {"pipeline_egrm.py"}
    assert pointers.keys() == named
    assert all(len(text) < 250 and "from transformers_egrm.modeling." in text for text in pointers.values())
    assert sum(path.stat().st_size for path in files) <= 4_000_000


LOADED_BY_PATH = """
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoProcessor, pipeline

assert not [name for name in sys.modules if name.split(".")[0] == "transformers_egrm"]
folder, record = given["folder"], given["record"]
loaders = {"config": AutoConfig, "processor": AutoProcessor, "model": AutoModel, "classifier": AutoModelForSequenceClassification}
loader = loaders.get(given["first"])
if loader is None:
    reward = pipeline("reward-scoring", model=folder, trust_remote_code=True)(record)["reward"]
else:
    loaded = loader.from_pretrained(folder, trust_remote_code=True)
    model = AutoModel.from_pretrained(folder, trust_remote_code=True)
    reward = float(model.judge(model.processor(record)).rewards)
    if given["first"] == "model":
        loaded.save_pretrained(given["save"])
print(json.dumps(reward))
"""


@pytest.mark.parametrize("first", ["config", "processor", "model", "classifier", "pipeline"])
def test_it_loads_by_its_path_where_the_package_was_not_imported(first, tmp_path: Path):
    record = {"id": 1, "prompt": "What is 3 + 4?", "response": "7"}
    given = {"folder": str(MINI_FOLDER), "record": record, "first": first, "save": str(tmp_path / "saved")}
    (expected,) = RewardJudge(load_mini())([record])
    assert run_fresh(LOADED_BY_PATH, given, tmp_path, package=True) == expected.reward
    if first == "model":
        assert len((tmp_path / "saved" / "modeling_egrm.py").read_text()) > 10_000, (
            "saved again it brings the code itself"
        )


def test_the_command_line_knows_it_by_name(tmp_path: Path, results):
    source = write_jsonl(tmp_path / "in.jsonl", RECORDS[:8])
    assert egrm("score", MINI_NAME, source, "-o", tmp_path / "out.jsonl") == 0
    assert [row["reward"] for row in read_jsonl(tmp_path / "out.jsonl")] == [r.reward for r in results[:8]]


def test_its_card_is_rendered_by_name(capsys):
    assert egrm("card", MINI_NAME) == 0
    assert "qwen3" in capsys.readouterr().out


WARNING = "A working example of the method, not a general judge."
CARDS = (MINI_FOLDER / "README.md", Path(__file__).parent.parent / "model_cards" / f"{MINI_NAME}.md")


@pytest.mark.parametrize("card", CARDS, ids=lambda path: path.name)
def test_the_cards_own_example_is_judged_rightly_and_a_wrong_answer_to_it_too(card):
    found = re.search(r"^judge\((.*)\)\[\"reward\"\]$", card.read_text("utf-8"), re.MULTILINE)
    assert found is not None
    example = ast.literal_eval(found[1])
    assert example == {"prompt": "Mia has 7 books, gets 5. How many books now?", "response": "It is 12."}  # 7 + 5
    judge = RewardJudge(load_mini())
    assert [result.reward for result in judge([example, {**example, "response": "It is 13."}])] == [10.0, 0.0]


def test_its_card_is_what_its_configuration_says(capsys):
    assert egrm("card", MINI_NAME) == 0
    assert capsys.readouterr().out == (MINI_FOLDER / "README.md").read_text("utf-8")
    measured = CARDS[1].read_text("utf-8").replace(f"# {MINI_NAME}", "# E-GRM judge")
    rendered = CARDS[0].read_text("utf-8").replace(f"{MARKER}\n\n", "")
    assert measured.startswith(rendered)


def test_warning_license_and_language_travel_with_the_weights(tmp_path: Path):
    model = load_mini()
    model.save_pretrained(tmp_path / "copy")
    EGRMRewardModel.from_pretrained(tmp_path / "copy").save_pretrained(tmp_path / "copy of the copy")
    for folder in ("copy", "copy of the copy"):
        card = (tmp_path / folder / "README.md").read_text("utf-8")
        assert f"> **Warning.** {WARNING}" in card
        assert "\nlicense: apache-2.0\nlanguage: en\n" in card.split("---")[1]
        assert '"It is 12."' in card
    model.config.card = None  # weights that were trained for something else
    model.save_pretrained(tmp_path / "trained on")
    card = (tmp_path / "trained on" / "README.md").read_text("utf-8")
    assert "Warning" not in card
    assert "license" not in card


def test_what_a_card_may_say_is_checked_and_lists_are_lists():
    with pytest.raises(
        ConfigError, match="`card` must be a mapping with keys out of warning, license, language, example"
    ):
        EGRMConfig(card={"licence": "mit"})
    config = load_mini().config
    config.card = {"language": ["en", "de"], "license": "mit"}
    assert "\nlicense: mit\nlanguage:\n- en\n- de\ntags:\n" in render_card(config, {})


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert folder_of(MINI_NAME) == str(MINI_FOLDER)
    (tmp_path / MINI_NAME).mkdir()
    assert folder_of(MINI_NAME) == MINI_NAME
    assert folder_of("another") == "another"


@pytest.mark.filterwarnings("ignore")
def test_the_pipeline_takes_it_by_default(results):
    found = pipeline("reward-scoring")(RECORDS[:4])
    assert [row["reward"] for row in found] == [result.reward for result in results[:4]]


def test_saved_again_it_brings_its_code(tmp_path: Path):
    load_mini().save_pretrained(tmp_path)
    assert (tmp_path / "modeling_egrm.py").is_file()
    again = AutoModel.from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(load_mini().parameters(), again.parameters(), strict=True))
