"""Checkpoints of version 0.1, judged where the package is absent: by the code they brought, and saved again by today's."""

import shutil
from pathlib import Path
from zipfile import ZipFile

import pytest
from fresh import run_fresh
from golden.cases import CASES, FIXTURES, differences, read_rows
from hub_server import LocalHub

from transformers_egrm import EGRMRewardModel


_, GOLDEN = read_rows()
# Of every checkpoint, cases whose rewards no later version changed.
SINCE_0_1 = (
    "llama", "llama-exact", "gemma-expected-pair", "mistral-five", "qwen-five", "draft-stored", "draft-likelihood",
    "stored-pointwise",
)  # fmt: skip
CHECKPOINTS = sorted({CASES[name].checkpoint for name in SINCE_0_1})

JUDGE = """
sys.path.insert(0, given["tests"])
from golden.cases import CASES, rows_of
from transformers import AutoModel

found = {}
for checkpoint, place in given["places"]:
    model = AutoModel.from_pretrained(place, trust_remote_code=True, disable_mmap=True)
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    for case in CASES.values():
        if case.name in given["cases"] and case.checkpoint == checkpoint:
            found.setdefault(case.name, []).append(rows_of(model, case))
assert not [name for name in sys.modules if name.split(".")[0] == "transformers_egrm"]
print(json.dumps(found))
"""


def with_the_code_it_brought(checkpoint: str, folder: Path) -> None:
    shutil.copytree(FIXTURES / checkpoint, folder)
    with ZipFile(FIXTURES / "sources.zip") as archive:
        archive.extractall(folder)


def saved_again(checkpoint: str, folder: Path) -> None:
    EGRMRewardModel.from_pretrained(FIXTURES / checkpoint, disable_mmap=True).save_pretrained(folder)


@pytest.mark.parametrize("written", [with_the_code_it_brought, saved_again])
def test_an_old_checkpoint_is_judged_as_it_was_from_its_folder_and_from_the_hub(written, tmp_path):
    with LocalHub() as hub:
        for checkpoint in CHECKPOINTS:
            written(checkpoint, tmp_path / checkpoint)
            hub.publish(f"acme/{checkpoint}", tmp_path / checkpoint)
        places = [(name, place) for name in CHECKPOINTS for place in (str(tmp_path / name), f"acme/{name}")]
        given = {"tests": str(Path(__file__).parent), "places": places, "cases": SINCE_0_1}
        found = run_fresh(JUDGE, given, tmp_path, **hub.environment)
    assert {name: len(judged) for name, judged in found.items()} == dict.fromkeys(SINCE_0_1, 2)
    for name in SINCE_0_1:
        for rows in found[name]:
            assert not differences(CASES[name], GOLDEN[name], rows)
