"""What every engine owes the stages, held by each of them alike; and a judge on an engine that only continues text."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import completion_engine
import pytest
import torch
from completion_engine import CompletionEngine, serve
from engine_fixtures import EOS, some_prompts, talkative_generator, tiny_inputs, tiny_task
from http_engines import SERVERS, fake_engine
from tiny import tiny_generator, tiny_scorer, tiny_scorer_tokenizer, tiny_tokenizer

from transformers_egrm import EGRMRewardModel, RewardJudge, load_mini
from transformers_egrm.data.synthetic import examples
from transformers_egrm.engines.dialects import DIALECTS
from transformers_egrm.modeling.draft_chains_egrm import ChainDrafts
from transformers_egrm.modeling.engine_backbone_egrm import Backbone
from transformers_egrm.modeling.engine_local_egrm import LocalEngine
from transformers_egrm.modeling.engine_protocol_egrm import ABILITIES, Branches, Drawn, PromptRows, need_abilities
from transformers_egrm.modeling.engine_sampling_egrm import warped_probs
from transformers_egrm.modeling.engine_vocabulary_egrm import OpenVocabulary
from transformers_egrm.modeling.errors_egrm import UnsupportedModelError


SUFFIX, OTHER_SUFFIX = (7, 8), (9, 10, 11)
LOCAL = ("star", "expand")
ENGINES = (*LOCAL, "completions", *DIALECTS)


def make(kind: str, generator: Any) -> Any:
    backbone = Backbone(generator)
    if kind == "completions":
        return CompletionEngine(serve(generator), backbone.cost)
    if kind in DIALECTS:
        return fake_engine(kind, generator, backbone.cost)
    return LocalEngine(backbone, ChainDrafts(backbone, None))


@pytest.fixture(autouse=True)
def _no_server_is_left():
    yield
    while SERVERS:
        SERVERS.pop().kill()


@torch.no_grad()
def start(kind: str, engine: Any, prompts: list[list[int]], suffix=SUFFIX) -> Any:
    inputs = tiny_inputs(tiny_task(), prompts)
    rows = PromptRows.of(inputs.input_ids, inputs.attention_mask)
    return engine.start(rows, suffix, decoder=kind if kind in LOCAL else "auto")


@torch.no_grad()
def sample(
    prompts: Any, temperatures, top_p=1.0, max_tokens=6, stops=(EOS,), late=(), seed=0, live=None, **asked
) -> Drawn:
    count, rungs = len(prompts.lengths), len(temperatures)
    branches = Branches(
        temperatures=torch.tensor(temperatures, dtype=torch.float64).repeat(count),
        top_ps=torch.full((count * rungs,), top_p, dtype=torch.float64),
        item_ids=torch.arange(count).repeat_interleave(rungs),
        branch_ids=torch.arange(rungs).repeat(count),
        per_prompt=rungs,
        seed=seed,
        live=live,
    )
    return prompts.sample(branches, OpenVocabulary(tuple(stops), tuple(late)), max_tokens, **asked)


def greedy(generator: Any, prompt: list[int], max_tokens: int, stops=(EOS,), late=()) -> list[int]:
    ids = list(prompt)
    while len(ids) - len(prompt) < max_tokens:
        with torch.no_grad():
            ids.append(int(generator(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        if ids[-1] in stops or (len(ids) - len(prompt) > 1 and ids[-1] in late):
            break
    return ids[len(prompt) :]


def rows_of(drawn: Drawn) -> list[list[int]]:
    return [ids[:n] for ids, n in zip(drawn.tokens.tolist(), drawn.lengths.tolist(), strict=True)]


@pytest.fixture(params=ENGINES)
def kind(request) -> str:
    return request.param


def test_it_says_what_it_can_do_and_is_asked_for_nothing_else(kind):
    engine = make(kind, tiny_generator())
    assert engine.can <= set(ABILITIES)
    need_abilities(engine, engine.can)
    for ability in set(ABILITIES) - engine.can:
        with pytest.raises(UnsupportedModelError, match="It can: "):
            need_abilities(engine, {ability})


def test_greedy_rows_are_the_models_own_whatever_they_are_padded_with(kind):
    generator, prompts = tiny_generator(), some_prompts([9, 3, 14])
    drawn = sample(start(kind, make(kind, generator), prompts), (0.0, 0.0))
    for row, ids in enumerate(rows_of(drawn)):
        assert ids == greedy(generator, [*prompts[row // 2], *SUFFIX], 6)


def test_rows_end_at_a_stop_token_or_at_their_budget_and_say_which(kind):
    generator, prompts = talkative_generator({"7": 6.0, "": 6.0}), some_prompts([9, 3, 14])
    drawn = sample(start(kind, make(kind, generator), prompts), (1.0,) * 8, max_tokens=4)
    assert 0 < int(drawn.ended.sum()) < len(drawn.ended)
    for ids, ended, complete in zip(rows_of(drawn), drawn.ended.tolist(), drawn.complete.tolist(), strict=True):
        assert ended == (ids[-1] == EOS)
        assert EOS not in ids[:-1]
        assert complete
        assert ended or len(ids) == 4
    after = torch.arange(4) >= drawn.lengths[:, None]
    assert not bool(drawn.tokens[after].any())


def test_a_late_stop_token_ends_no_row_with_its_first_token(kind):
    generator, (prompt,) = talkative_generator({"7": 30.0}), some_prompts([9])
    (seven,) = tiny_tokenizer()("7", add_special_tokens=False).input_ids
    prompts = start(kind, make(kind, generator), [prompt])
    drawn = sample(prompts, (0.0,), late=(seven,))
    assert (rows_of(drawn), drawn.ended.tolist()) == ([[seven, seven]], [True])
    drawn = sample(prompts, (0.0,), stops=(EOS, seven))
    assert (rows_of(drawn), drawn.ended.tolist()) == ([[seven]], [True])


def test_each_row_has_the_models_distribution_at_its_own_temperature_and_nucleus(kind):
    generator, (prompt,) = tiny_generator(), some_prompts([5])
    count = 300 if kind in DIALECTS else 1500  # a request takes longer than a row
    temperatures = (0.6, 1.4)
    prompts = start(kind, make(kind, generator), [prompt])
    drawn = sample(prompts, temperatures * count, top_p=0.5, max_tokens=1)
    with torch.no_grad():
        logits = generator(input_ids=torch.tensor([[*prompt, *SUFFIX]])).logits[:, -1]
    for rung, temperature in enumerate(temperatures):
        expected = (
            warped_probs(logits.float(), torch.tensor([temperature]).double(), torch.tensor([0.5]).double())[0] * count
        )
        seen = Counter(drawn.tokens[rung::2, 0].tolist())
        likely = [token for token in range(len(expected)) if float(expected[token]) >= 5]
        rest = count - sum(seen[token] for token in likely), float(count - expected[likely].sum())
        cells = [(seen[token], float(expected[token])) for token in likely] + ([rest] if rest[1] >= 5 else [])
        statistic = sum((got - meant) ** 2 / meant for got, meant in cells)
        # Chi-square with so many degrees, by the Wilson-Hilferty approximation, at 1e-4.
        degrees = len(cells) - 1
        bound = degrees * (1 - 2 / (9 * degrees) + 3.72 * math.sqrt(2 / (9 * degrees))) ** 3
        assert degrees > 1
        assert statistic < bound, temperature


def test_draws_repeat_with_their_seed_and_differ_between_branches(kind):
    generator, prompts = tiny_generator(), some_prompts([9, 3])
    ready = start(kind, make(kind, generator), prompts)
    first, again, other = (sample(ready, (1.0,) * 4, seed=seed) for seed in (1, 1, 2))
    assert rows_of(first) == rows_of(again) != rows_of(other)
    assert len({tuple(row) for row in rows_of(first)}) > 4


def test_rows_that_are_not_live_draw_nothing(kind):
    generator, prompts = tiny_generator(), some_prompts([9, 3])
    ready = start(kind, make(kind, generator), prompts)
    live = torch.tensor([True, True, False, True, False, False])
    drawn, whole = (sample(ready, (1.0,) * 3, live=rows) for rows in (live, None))
    assert (drawn.lengths > 0).tolist() == live.tolist()
    assert not bool(drawn.complete[~live].any())
    assert [row for row, own in zip(rows_of(drawn), live.tolist(), strict=True) if own] == [
        row for row, own in zip(rows_of(whole), live.tolist(), strict=True) if own
    ]


def test_a_deadline_that_has_passed_stops_its_prompts_rows_only(kind):
    generator, prompts = tiny_generator(), some_prompts([9, 3])
    drawn = sample(start(kind, make(kind, generator), prompts), (0.0,) * 2, stops=(), deadlines=[0.0, math.inf])
    assert drawn.late.tolist() == [True, True, False, False]
    assert drawn.complete.tolist() == [False, False, True, True]


def test_a_body_goes_on_with_another_suffix_as_if_it_had_been_run_alone(kind):
    generator, prompts = tiny_generator(), some_prompts([9, 3, 14])
    engine = make(kind, generator)
    begun = start(kind, engine, prompts)
    bodies = [begun.body(row) for row in (2, 0)]
    assert [body.num_tokens for body in bodies] == [14, 9]
    batches = [bodies] if bodies[0].joins else [[body] for body in bodies]
    rows = []
    for batch in batches:
        with torch.no_grad():
            resumed = engine.resume(batch, OTHER_SUFFIX)
        assert resumed.lengths == [body.num_tokens + len(OTHER_SUFFIX) for body in batch]
        rows += rows_of(sample(resumed, (0.0,)))
    assert rows == [greedy(generator, [*prompts[row], *OTHER_SUFFIX], 6) for row in (2, 0)]


def test_what_it_offers_beyond_text_is_right(kind):
    generator, (prompt,) = tiny_generator(), some_prompts([9])
    engine = make(kind, generator)
    ready = start(kind, engine, [prompt])
    wanted = {"log_probs": "log_probs" in engine.can, "pooling": "mean" if "states" in engine.can else None}
    drawn = sample(ready, (1.0,), stops=(), max_tokens=4, **wanted)
    with torch.no_grad():
        ids = torch.tensor([[*prompt, *SUFFIX, *drawn.tokens[0].tolist()]])
        out = generator(input_ids=ids, output_hidden_states=True)
    scores = out.logits[0].log_softmax(-1)
    if wanted["log_probs"]:
        by_hand = sum(
            float(scores[len(prompt) + 1 + step, token]) for step, token in enumerate(drawn.tokens[0].tolist())
        )
        assert float(drawn.log_probs[0]) == pytest.approx(by_hand, abs=1e-3)
    if wanted["pooling"]:
        states = out.hidden_states[-1][0, -4:].mean(0)
        torch.testing.assert_close(drawn.states[0], states, atol=1e-4, rtol=1e-4)
    if "logits" in engine.can:
        columns, path = torch.tensor([5, 6, 7]), tuple(drawn.tokens[0, :2].tolist())
        with torch.no_grad():
            read = ready.read([path, ()], columns)[0]
        for ours, place in zip(read, (len(prompt) + 3, len(prompt) + 1), strict=True):
            expected = out.logits[0, place, columns]
            torch.testing.assert_close(ours - ours[0], expected - expected[0], atol=1e-4, rtol=1e-4)


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
