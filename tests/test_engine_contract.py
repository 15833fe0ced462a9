"""What every engine owes the stages, held by each of them alike; and a judge on an engine that only continues text."""

import math
from pathlib import Path
from typing import Any

import completion_engine
import pytest
import torch
from completion_engine import CompletionEngine, serve
from engine_contract import CHECKS, Case, check_ends, rows_of, sample
from engine_fixtures import EOS, some_prompts, talkative_generator
from http_engines import SERVERS, fake_engine
from tiny import tiny_generator, tiny_scorer, tiny_scorer_tokenizer, tiny_tokenizer

from transformers_egrm import EGRMRewardModel, RewardJudge, load_mini
from transformers_egrm.data.synthetic import examples
from transformers_egrm.engines.dialects import DIALECTS
from transformers_egrm.modeling.draft_chains_egrm import ChainDrafts
from transformers_egrm.modeling.engine_backbone_egrm import Backbone
from transformers_egrm.modeling.engine_local_egrm import LocalEngine
from transformers_egrm.modeling.errors_egrm import UnsupportedModelError


LOCAL = ("star", "expand")
ENGINES = (*LOCAL, "completions", *DIALECTS)


def make(kind: str, generator: Any) -> Any:
    backbone = Backbone(generator)
    if kind == "completions":
        return CompletionEngine(serve(generator), backbone.cost)
    if kind in DIALECTS:
        return fake_engine(kind, generator, backbone.cost)
    return LocalEngine(backbone, ChainDrafts(backbone, None))


def case_of(kind: str, generator: Any, lengths=(9, 3, 14), **settings: Any) -> Case:
    draws = 300 if kind in DIALECTS else 1500  # a request takes longer than a row
    decoder = kind if kind in LOCAL else "auto"
    return Case(make(kind, generator), generator, some_prompts(lengths), decoder=decoder, draws=draws, **settings)


@pytest.fixture(autouse=True)
def _no_server_is_left():
    yield
    while SERVERS:
        SERVERS.pop().kill()


@pytest.fixture(params=ENGINES)
def kind(request) -> str:
    return request.param


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_it_keeps_the_contract(kind, check):
    check(case_of(kind, tiny_generator()))


def test_rows_end_at_a_stop_token_or_at_their_budget_and_say_which(kind):
    check_ends(case_of(kind, talkative_generator({"7": 6.0, "": 6.0})))


def test_a_late_stop_token_ends_no_row_with_its_first_token(kind):
    (seven,) = tiny_tokenizer()("7", add_special_tokens=False).input_ids
    prompts = case_of(kind, talkative_generator({"7": 30.0})).start((0,))
    drawn = sample(prompts, (0.0,), late=(seven,))
    assert (rows_of(drawn), drawn.ended.tolist()) == ([[seven, seven]], [True])
    drawn = sample(prompts, (0.0,), stops=(EOS, seven))
    assert (rows_of(drawn), drawn.ended.tolist()) == ([[seven]], [True])


# -- a judge on an engine that only continues text -------------------------------------------------------------------------


def test_the_completion_engine_is_small():
    source = Path(completion_engine.__file__).read_text()
    lines = source[source.index("@dataclass(frozen=True)\nclass TextBody") : source.index("def serve(")].splitlines()
    assert len([line for line in lines if line.strip()]) < 60


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"consensus": "exact"}, "log-probabilities of named tokens"),
        ({"reward": "expected"}, "log-probabilities of named tokens"),
        ({"probe_vocabulary": "verdict"}, "a few tokens only"),
        ({"selection": "likelihood"}, "log-probability of what was drawn"),
        ({"drafting": "ngram"}, "verify drafts"),
        ({"decoder": "expand"}, "how branches are run"),
        ({"selection": "scorer"}, "hidden states"),
    ],
    ids=str,
)
def test_what_it_cannot_do_is_refused_before_anything_runs(options, said):
    model = EGRMRewardModel.from_components(
        tiny_generator(), tokenizer=tiny_tokenizer(), scorer_kind="generator_state", consensus="sampled"
    )
    asked = []

    def never(requests):
        asked.append(requests)
        return []

    model.engine = CompletionEngine(never, model.backbone.cost)
    inputs = model.processor({"prompt": "What is 2 + 3?", "response": "5"})
    with pytest.raises(UnsupportedModelError, match=said):
        model.judge(inputs, **options)
    assert not asked


def test_a_judge_with_a_text_scorer_runs_whole_on_it_and_back():
    model = EGRMRewardModel.from_components(
        talkative_generator({"7": 8.0, "\n": 8.0, "": 8.0}), tiny_scorer(), tiny_tokenizer(), tiny_scorer_tokenizer(),
        consensus_threshold=0.6, max_chain_tokens=12, selection="scorer",
    )  # fmt: skip
    records = [{"prompt": "What is 2 + 3?", "response": str(number)} for number in range(16)]
    own = RewardJudge(model)(records)
    model.engine = CompletionEngine(serve(model.generator), model.backbone.cost)
    results = RewardJudge(model, explain=True)(records)
    assert {result.route for result in results} == {"short", "long"} == {result.route for result in own}
    for result in results:
        if result.route == "long" and result.status == "ok":
            assert result.account.candidates[result.account.chosen].score > 0
    model.engine = None
    assert RewardJudge(model)(records) == own


def test_it_judges_the_world_of_egrm_mini_as_well_as_the_local_engine_does():
    model, count = load_mini(), 80
    space = model.processor.space
    drawn = [example for example, _ in zip(examples("calibration", 3), range(count), strict=False)]
    records = [{"id": number, "prompt": e.prompt, "response": e.response} for number, e in enumerate(drawn)]
    options = {"batch_size": 40, "consensus": "sampled", "selection": "vote", "probe_vocabulary": "full"}
    right = {}
    for name in ("local", "completions"):
        model.engine = None if name == "local" else CompletionEngine(serve(model.generator), model.backbone.cost)
        results = RewardJudge(model, **options)(records)
        right[name] = torch.tensor([r.verdict == str(e.verdict) for r, e in zip(results, drawn, strict=True)]).float()
        assert {result.route for result in results} == {"short", "long"}
    assert str(drawn[0].verdict) in space.labels
    difference = right["completions"] - right["local"]
    margin = 2.6 * float(difference.std()) / math.sqrt(count) + 1e-9
    assert float(right["local"].mean()) > 0.7
    assert abs(float(difference.mean())) <= margin
