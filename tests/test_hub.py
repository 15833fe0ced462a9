"""Pushed, loaded back, pinned and pushed again: the Hub's own API, served on this machine."""

import json
from pathlib import Path

import pytest
from fresh import run_fresh
from hub_server import LocalHub, Repository

from transformers_egrm.modeling.hub_card_egrm import MARKER
from transformers_egrm.modeling.hub_saving_egrm import AUTO_MAP


SOURCES = {path.name for path in Path(__file__).parent.parent.glob("modeling/*.py")}
RECORDS = [
    {"prompt": "What is 2 + 3?", "response": "The answer is 5."}, {"prompt": "Rate the reply.", "response": "B"},
]  # fmt: skip

PUBLISH = """
sys.path.insert(0, given["tests"])
from tiny import tiny_generator, tiny_scorer, tiny_scorer_tokenizer, tiny_tokenizer
from transformers_egrm import EGRMRewardModel

torch.manual_seed(0)
model = EGRMRewardModel.from_components(tiny_generator(), tiny_scorer(), tiny_tokenizer(), tiny_scorer_tokenizer())
pushed = model.push_to_hub("acme/judge", commit_message="First judge", tags=["maths"])
model.save_pretrained("copy", push_to_hub=True, repo_id="acme/copy", max_shard_size="40KB")
model.push_to_hub("acme/hand-written")
print(json.dumps({"commit": pushed.oid, "values": measure(model, given["records"])}))
"""

LOAD = """
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoProcessor, pipeline

found = {}
for name, options in given["loads"]:
    model = AutoModel.from_pretrained(name, trust_remote_code=True, disable_mmap=True, **options)
    module = sys.modules[type(model).__module__]
    found[name] = {
        "values": measure(model, given["records"]), "code": module.__name__.split(".")[-2],
        "mark": getattr(module, "MARK", None), "processor": sys.modules[type(model.processor).__module__].__name__,
    }
if given["again"]:
    AutoProcessor.from_pretrained(name, trust_remote_code=True, **options)
    AutoModelForSequenceClassification.from_pretrained(name, trust_remote_code=True, num_labels=1, **options)
    judge = pipeline("reward-scoring", model=name, trust_remote_code=True, device="cpu", **options)
    assert judge(given["records"][0])["status"] in ("ok", "no_verdict")
    model.push_to_hub(given["again"])
assert not [name for name in sys.modules if name.split(".")[0] == "transformers_egrm"]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def hub():
    with LocalHub() as hub:
        hub.repositories["acme/hand-written"] = Repository()
        hub.repositories["acme/hand-written"].commit({"README.md": b"---\nlicense: mit\n---\n# Mine\n"})
        yield hub


@pytest.fixture(scope="module")
def published(hub, tmp_path_factory) -> dict:
    folder = tmp_path_factory.mktemp("publisher")
    given = {"records": RECORDS, "tests": str(Path(__file__).parent)}
    return run_fresh(PUBLISH, given, folder, package=True, **hub.environment)


def load(hub: LocalHub, folder: Path, loads: list, again: str | None = None) -> dict:
    return run_fresh(LOAD, {"records": RECORDS, "loads": loads, "again": again}, folder, **hub.environment)


def test_a_pushed_repository_holds_everything(hub, published):
    files = hub.head("acme/judge")
    assert files.keys() >= SOURCES | {"config.json", "model.safetensors", "README.md", "processor_config.json"}
    assert files.keys() >= {"tokenizer.json", "scorer_tokenizer/tokenizer.json", "scorer_tokenizer/config.json"}
    assert json.loads(files["config.json"])["auto_map"] == AUTO_MAP
    card = files["README.md"].decode()
    assert MARKER in card
    assert "\n- maths\n" in card
    assert hub.repositories["acme/judge"].branches["main"] == published["commit"]
    # Saving with an upload sends the same, in shards as asked for.
    copied = hub.head("acme/copy").keys()
    assert copied >= files.keys() - {"model.safetensors"}
    assert len([name for name in copied if name.startswith("model-")]) > 2


def test_the_hub_gives_back_the_same_bits_and_pinned_code_stays_what_it_was(hub, published, tmp_path):
    repository, first = hub.repositories["acme/judge"], published["commit"]
    code = repository.commits[first]["modeling_egrm.py"]
    second = repository.commit({"modeling_egrm.py": code + b'\n\nMARK = "changed"\n'})
    loads = [["acme/copy", {}], ["acme/judge", {"code_revision": first}]]
    found = load(hub, tmp_path, loads, again="acme/again")
    pinned = found["acme/judge"]
    assert (pinned["code"], pinned["mark"]) == (first, None)
    assert pinned["processor"].split(".")[-2] == first, "the processor that the model brings is pinned with it"
    assert pinned["values"] == found["acme/copy"]["values"] == published["values"]

    # What remote code pushed is complete, and refers to itself, not to where it came from.
    again = hub.head("acme/again")
    assert again.keys() >= SOURCES
    assert json.loads(again["config.json"])["auto_map"] == AUTO_MAP

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    found = load(hub, elsewhere, [["acme/judge", {}], ["acme/again", {"revision": "main"}]])
    assert (found["acme/judge"]["code"], found["acme/judge"]["mark"]) == (second, "changed")
    assert found["acme/again"]["mark"] is None
    assert found["acme/again"]["values"] == published["values"]


def test_a_card_written_by_hand_survives_a_push(hub, published):
    files = hub.head("acme/hand-written")
    assert "model.safetensors" in files
    card = files["README.md"].decode()
    assert card.startswith("---\nlicense: mit\n")
    assert card.endswith("# Mine\n")
    assert "- maths" in card, "tags are added to it, as Transformers does"
