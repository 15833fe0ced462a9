"""The files that OpenRLHF and verl load by path: what they answer, alone and under the trainers' own code."""

import asyncio
import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from serve_tools import listening, unpacked_wheel
from test_judge import ScriptedModel
from tiny import tiny_tokenizer

from transformers_egrm import RewardJudge
from transformers_egrm.serving import ServeOptions


FOLDER = Path(__file__).parent.parent / "transformers_egrm" / "integrations"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 3?"}]
PROMPT = "<|im_start|>user\nWhat is 2 + 3?<|im_end|>\n<|im_start|>assistant\n"
ANSWERS = ("5", "2 + 3 = 6")
KEYS = ["score", "judge_consensus", "judge_long_path", "judge_tokens", "judge_parse_failed"]


def loaded(name: str) -> Any:
    """A file as a trainer loads it."""
    spec = importlib.util.spec_from_file_location(f"custom_module_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_process(prompt, response: str) -> float:
    (result,) = RewardJudge(ScriptedModel())([{"prompt": prompt, "response": response}])
    assert result.reward is not None
    return result.reward


@pytest.fixture(scope="module")
def server():
    with listening(ScriptedModel(), ServeOptions(window_ms=0.0)) as (url, _):
        yield url


@pytest.fixture
def verl_module(monkeypatch):
    """The file beside a base class that takes what verl's takes."""

    class Base:
        def __init__(self, config, tokenizer, compute_score):
            self.config = config

    names = (
        "verl",
        "verl.experimental",
        "verl.experimental.reward_loop",
        "verl.experimental.reward_loop.reward_manager",
    )
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    base: Any = ModuleType(f"{names[-1]}.base")
    base.RewardManagerBase = Base
    monkeypatch.setitem(sys.modules, base.__name__, base)
    return loaded("verl")


class Samples(list):
    """As much of a `DataProto` as a reward manager reads."""

    def __getitem__(self, index):
        return Samples(super().__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)


def sample(answer: str) -> Any:
    ids = tiny_tokenizer()(answer, add_special_tokens=False)["input_ids"]
    padded = torch.tensor([*ids, 4, 2, 2])  # the end of the turn, then padding
    mask = torch.tensor([1] * 6 + [1] * (len(ids) + 1) + [0, 0])
    raw_prompt = np.array(MESSAGES, dtype=object)
    return SimpleNamespace(
        batch={"responses": padded, "attention_mask": mask}, non_tensor_batch={"raw_prompt": raw_prompt}
    )


def config(**settings: Any) -> Any:
    return SimpleNamespace(reward={"reward_kwargs": settings})


def test_verls_manager_judges_the_conversation_and_gives_every_sample_the_same_keys(server, verl_module):
    manager = verl_module.EGRMRewardManager(config(url=server), tiny_tokenizer(), None, reward_router_address=None)

    async def judged():
        return await asyncio.gather(
            *(manager.run_single(Samples([sample("?"), sample(answer)])) for answer in ANSWERS)
        )

    for answer, told in zip(ANSWERS, asyncio.run(judged()), strict=True):
        assert list(told) == ["reward_score", "reward_extra_info"]
        assert told["reward_score"] == told["reward_extra_info"]["score"] == in_process(MESSAGES, answer)
        assert list(told["reward_extra_info"]) == KEYS
        assert all(type(value) is float for value in told["reward_extra_info"].values())


def test_verls_function_reads_the_question_from_extra_info(server, verl_module, monkeypatch):
    monkeypatch.setenv("EGRM_URL", server)
    for question in ("What is 2 + 3?", MESSAGES, np.array(MESSAGES, dtype=object)):
        told = verl_module.compute_score(
            "gsm8k", "5", "5", {"question": question, "num_turns": 1}, reward_router_address="x"
        )
        assert told["score"] == in_process(question if isinstance(question, str) else MESSAGES, "5")
        assert list(told) == KEYS
    with pytest.raises(ValueError, match="extra_info"):
        verl_module.compute_score("gsm8k", "5", "5", {})


def test_an_answer_without_a_verdict_is_a_number_only_where_one_is_set(verl_module, server):
    record = {"extra_info": {"question": "What is 2 + 3?"}, "url": server}
    with pytest.raises(ValueError, match="Set `fallback`"):
        verl_module.compute_score("gsm8k", " ", "5", **record)
    told = verl_module.compute_score("gsm8k", " ", "5", fallback=-1.0, **record)
    assert (told["score"], told["judge_parse_failed"], list(told)) == (-1.0, 1.0, KEYS)


def test_openrlhfs_function_answers_what_the_url_does(server, monkeypatch):
    module = loaded("openrlhf")
    monkeypatch.setenv("EGRM_URL", server)
    told = [module.reward_func([f"{PROMPT}{answer}<|im_end|>"], [PROMPT], [None]) for answer in ANSWERS]
    for answer, own in zip(ANSWERS, told, strict=True):
        assert sorted(own) == ["extra_logs", "rewards", "scores"]
        assert own["rewards"] == [in_process(MESSAGES[1:], answer)]
        assert all(0 <= score <= 1 for score in own["scores"])
        assert all(len(values) == 1 and math.isfinite(values[0]) for values in own["extra_logs"].values())
        torch.tensor(own["rewards"])  # what OpenRLHF makes of them
    assert module.reward_func([], [], []) == {"rewards": [], "scores": [], "extra_logs": {}}


@pytest.mark.parametrize(("name", "call"), [
    ("openrlhf", lambda module: module.reward_func(["q"], ["p"], [None])),
    ("verl", lambda module: module.compute_score("d", "s", "g", {"question": "q"})),
])  # fmt: skip
def test_an_address_that_is_missing_is_said(name, call, monkeypatch):
    monkeypatch.delenv("EGRM_URL", raising=False)
    with pytest.raises((RuntimeError, ValueError), match="EGRM_URL"):
        call(loaded(name))


# The trainers' own code, from wheels without their dependencies.


@pytest.fixture(scope="module")
def wheel(request, tmp_path_factory):
    """The folder of an unpacked wheel."""
    return unpacked_wheel(request.param, tmp_path_factory.mktemp(request.param))


def run_trainer(script: str, wheel: Path, **given: Any) -> Any:
    """What a script in a process of its own prints last. Packages of the trainer are empty, files in them are the real ones."""
    start = f"""
import asyncio, importlib, importlib.util, json, sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
wheel, given = Path({str(wheel)!r}), json.loads({json.dumps(given)!r})
def package(name, **content):
    module = sys.modules[name] = ModuleType(name)
    module.__path__ = [str(wheel / name.replace(".", "/"))]
    module.__dict__.update(content)
    return module
"""
    done = subprocess.run([sys.executable, "-c", start + script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


OPENRLHF = """
package("openrlhf"); package("openrlhf.utils")
from openrlhf.utils.agent import SingleTurnAgentExecutor
from transformers import AutoTokenizer

class Engine:
    async def generate(self, prompt_ids, params, multi_modal_data=None):
        ids = tokenizer(given["answer"] + "<|im_end|>", add_special_tokens=False)["input_ids"]
        return SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids, finish_reason="stop", logprobs=None)])

tokenizer, found = AutoTokenizer.from_pretrained(given["tokenizer"]), []
for place in given["places"]:
    params = SimpleNamespace(max_tokens=16, logprobs=None)
    run = SingleTurnAgentExecutor(place).execute(given["prompt"], None, params, 512, tokenizer, Engine())
    told = asyncio.run(run)
    found.append([told["reward"], told["scores"], told["extra_logs"]])
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("wheel", ["openrlhf"], indirect=True)
def test_openrlhfs_own_executor_gets_the_same_from_the_file_and_from_the_url(wheel, server, tmp_path, monkeypatch):
    pytest.importorskip("aiohttp", reason="OpenRLHF's client is made of it")
    tiny_tokenizer().save_pretrained(tmp_path)
    monkeypatch.setenv("EGRM_URL", server)
    places = [str(FOLDER / "openrlhf.py"), f"{server}/get_reward"]
    from_file, from_url = run_trainer(
        OPENRLHF, wheel, places=places, tokenizer=str(tmp_path), prompt=PROMPT, answer="5"
    )
    assert from_file == from_url
    assert from_file[0] == [in_process(MESSAGES[1:], "5")]


VERL = """
package("omegaconf", DictConfig=dict); package("verl", DataProto=list); package("verl.experimental")
package("verl.experimental.reward_loop"); package("verl.experimental.reward_loop.reward_manager"); package("verl.utils")
package("verl.utils.ray_utils", get_event_loop=lambda: None)
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
from verl.utils.import_utils import load_extern_object

manager_class = load_extern_object(module_path=given["file"], object_name="EGRMRewardManager")
assert issubclass(manager_class, RewardManagerBase), manager_class.__mro__
config = SimpleNamespace(reward={"reward_kwargs": {"url": given["url"]}})
manager = manager_class(config=config, tokenizer=None, compute_score=None, reward_router_address=None, reward_model_tokenizer=None)
score = load_extern_object(module_path=given["file"], object_name="compute_score")
told = score(data_source="d", solution_str="5", ground_truth="5", extra_info={"question": "What is 2 + 3?"}, url=given["url"])
print(json.dumps([manager.url, told["score"]]))
"""


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("wheel", ["verl"], indirect=True)
def test_verls_own_base_class_and_loader_take_the_file(wheel, server):
    url, score = run_trainer(VERL, wheel, file=str(FOLDER / "verl.py"), url=server)
    assert (url, score) == (server, in_process("What is 2 + 3?", "5"))
