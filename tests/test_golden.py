"""What was judged stays judged: rewards, routes, tokens and texts of every way to judge, held against saved rows.

A difference is a mistake, unless rewards are meant to change: then `tests/golden/write.py` writes the rows anew.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest
from fresh import run_fresh
from golden.cases import CASES, FIXTURES, MINI, differences, mini_hash, read_rows, rows_of
from golden.checkpoints import load


MINI_HASH, GOLDEN = read_rows()


@pytest.fixture(scope="module")
def mini_is_the_one_judged():
    if mini_hash() != MINI_HASH:
        pytest.fail(
            f"The golden rows hold for egrm-mini with the weights {MINI_HASH[:12]}, the package has {mini_hash()[:12]}. "
            "If it was retrained on purpose, run `python tests/golden/write.py`."
        )


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_judged_as_it_was(name, request):
    case = CASES[name]
    if case.checkpoint == MINI:
        request.getfixturevalue("mini_is_the_one_judged")
    found = differences(case, GOLDEN[case.rows_of or name], rows_of(load(case.checkpoint), case))
    assert not found, "\n" + "\n".join(found)


def test_every_row_belongs_to_a_case():
    assert set(GOLDEN) == {case.name for case in CASES.values() if case.rows_of is None}


# -- the package absent -------------------------------------------------------------------------------------------------


JUDGED_BY_OLD_CODE = """
sys.path.insert(0, given["tests"])
from golden.cases import CASES, rows_of
from transformers import AutoModel

found = {}
for name, folder in given["folders"].items():
    model = AutoModel.from_pretrained(folder, trust_remote_code=True, disable_mmap=True)
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    for case in CASES.values():
        if case.name in given["cases"] and case.checkpoint == name:
            found[case.name] = rows_of(model, case)
assert not [name for name in sys.modules if name.split(".")[0] == "transformers_egrm"]
print(json.dumps(found))
"""
# Of every checkpoint, cases whose rewards no later version changed.
BY_OLD_CODE = (
    "llama", "llama-exact", "gemma-expected-pair", "mistral-five", "qwen-five", "draft-stored", "draft-likelihood",
    "stored-pointwise",
)  # fmt: skip


def test_an_old_checkpoint_is_judged_alike_by_the_code_it_brought(tmp_path: Path):
    folders = {}
    for checkpoint in sorted({CASES[name].checkpoint for name in BY_OLD_CODE}):
        folder = shutil.copytree(FIXTURES / checkpoint, tmp_path / checkpoint)
        with ZipFile(FIXTURES / "sources.zip") as archive:
            archive.extractall(folder)
        folders[checkpoint] = str(folder)
    given = {"tests": str(Path(__file__).parent), "folders": folders, "cases": BY_OLD_CODE}
    found = run_fresh(JUDGED_BY_OLD_CODE, given, tmp_path)
    assert set(found) == set(BY_OLD_CODE)
    assert not [line for name in BY_OLD_CODE for line in differences(CASES[name], GOLDEN[name], found[name])]


def test_the_comparison_sees_a_changed_option():
    case = replace(CASES["llama"], options={"temperatures": (0.6, 0.7, 0.8, 0.9, 1.1)})
    found = differences(case, GOLDEN["llama"], rows_of(load(case.checkpoint), case))
    assert any("chain_scores" in line for line in found), found
    assert all(line.startswith("llama, item ") and " before, " in line for line in found)
