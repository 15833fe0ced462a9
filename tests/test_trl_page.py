"""Every block of `docs/trl.md` runs, with a policy of some thousand parameters and one step instead of a hundred."""

import re
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_generator, tiny_tokenizer

from transformers_egrm.integrations.trl import EGRMReward


PAGE = (Path(__file__).parent.parent / "docs" / "trl.md").read_text(encoding="utf-8")
SECTIONS: dict[str, str] = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
# Of trainers on a machine without accelerator, and of a name that Transformers changed.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:`\\w*gradient_checkpointing\\w*` is deprecated:FutureWarning"),
]


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> str:
    folder = str(tmp_path_factory.mktemp("policy"))
    tiny_generator().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def run_blocks(*blocks: str, policy: str) -> dict[str, Any]:
    """Run blocks one after the other and return what they defined."""
    start = [block for block in BLOCK.findall(PAGE) if "policy = " in block]
    assert len(start) == 1
    code = "\n".join([*start, *blocks]).replace("Qwen/Qwen3-0.6B", policy)
    code = re.sub(r"max_(completion_length|new_tokens)=256", r"max_\1=4", code).replace("max_steps=100", "max_steps=1")
    code = re.sub(r"(Config\(\"[\w/-]+\")", r'\1, use_cpu=True, bf16=False, report_to=[], save_strategy="no"', code)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/trl.md", "exec"), names)
    return names


def test_every_block_of_the_page_stands_in_a_tested_section():
    tested = {"GRPO", "RLOO", "Online DPO", "Best of N", "Filter preferences", "Compare answers with each other",
              "Command line", "What a trainer gets", "As a path or a module"}  # fmt: skip
    assert tested <= set(SECTIONS)
    untested = [title for title in SECTIONS if title not in tested and BLOCK.search(SECTIONS[title])]
    assert untested == []


# An untrained policy writes what the judge never saw.
@pytest.mark.filterwarnings("ignore::transformers_egrm.modeling.errors_egrm.UnfamiliarTextWarning")
@pytest.mark.slow
@pytest.mark.parametrize("section", ["GRPO", "RLOO", "Online DPO"])
def test_a_trainer_runs_with_the_judge(section, policy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = run_blocks(*BLOCK.findall(SECTIONS[section]), policy=policy)
    assert names["trainer"].state.global_step == 1


def test_best_of_n_keeps_the_right_answer(policy):
    names = run_blocks(*BLOCK.findall(SECTIONS["Best of N"]), policy=policy)
    (row,) = names["best"]
    assert row["completion"] == "It is 12."
    assert set(row) == {"prompt", "completion", "reward", "tied"}


def test_a_pair_stays_where_the_judge_agrees(policy):
    names = run_blocks(*BLOCK.findall(SECTIONS["Filter preferences"]), policy=policy)
    assert names["clear"]["prompt"] == ["What is 7 + 5?"]


# The page names a judge that was not trained on pairs, and says so.
@pytest.mark.filterwarnings("ignore::transformers_egrm.modeling.errors_egrm.UnfamiliarTextWarning")
def test_the_page_compares_answers(policy):
    names = run_blocks(*BLOCK.findall(SECTIONS["Compare answers with each other"]), policy=policy)
    assert (names["group"].judgements, names["group"].failed) == (3, 0)
    assert sum(names["group"].rewards) == 1.5, "three shares of two comparisons each"
    for reward in (names["by_pairs"], names["by_lists"]):
        told = reward(["What is 7 + 5?"] * 2, names["answers"][:2])
        assert len(told) == 2
        assert all(own is None or 0 <= own <= 1 for own in told)


def test_the_rewards_of_the_page_judge(policy):
    names = run_blocks(
        "first = ['What is 7 + 5?'], ['It is 12.']", *BLOCK.findall(SECTIONS["Command line"]),
        *BLOCK.findall(SECTIONS["What a trainer gets"]), policy=policy,
    )  # fmt: skip
    assert names["correctness"].__name__ == "correctness"
    assert names["correctness"].bounds == (0.0, 1.0)
    assert names["reward"].audit.audited == 0
    assert None not in names["reward"](*names["first"])
    careful = EGRMReward("egrm-mini", value=names["sure"])
    (result,) = careful.judge(*names["first"])
    assert careful.rewards([result]) == [names["sure"](result)]


def test_path_and_module_are_taken(policy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first_import = "from trl import GRPOConfig, GRPOTrainer\n"
    names = run_blocks(first_import, *BLOCK.findall(SECTIONS["As a path or a module"]), policy=policy)
    assert [names[form].reward_func_names for form in ("by_path", "by_module")] == [["egrm-mini"]] * 2
