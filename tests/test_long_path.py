"""The long path: chains from the kept prefix, the choice among candidates, deadlines, broken numbers, cut answers."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine_fixtures import (
    EOS,
    LONG_SUFFIX,
    SHORT_SUFFIX,
    RecordingSampler,
    ScriptedStepper,
    TinyJudge,
    branches_by_hand,
    counted_tokens,
    sample_branches,
    score_text,
    some_prompts,
    talkative_generator,
    tiny_inputs,
    tiny_task,
)
from tiny import GENERATORS, tiny_generator, tiny_tokenizer

from transformers_egrm.modeling import engine_sampler_egrm, judge_long_egrm, judge_plan_egrm, judge_short_egrm
from transformers_egrm.modeling.configuration_egrm import JudgeOptions
from transformers_egrm.modeling.engine_backbone_egrm import Backbone
from transformers_egrm.modeling.engine_local_egrm import LocalEngine, PrefixBody
from transformers_egrm.modeling.engine_sampler_egrm import BranchSampler
from transformers_egrm.modeling.engine_steps_egrm import StarStepper
from transformers_egrm.modeling.engine_vocabulary_egrm import OpenVocabulary
from transformers_egrm.modeling.judge_long_egrm import CHAIN_OFFSET, choose
from transformers_egrm.modeling.judge_probes_egrm import ORDER_STRIDE, branches_of
from transformers_egrm.modeling.judge_reading_egrm import answer_of, verdict_of
from transformers_egrm.modeling.judge_rows_egrm import join_outputs
from transformers_egrm.modeling.judge_values_egrm import Candidate, EGRMOutput, LongItems, Status
from transformers_egrm.modeling.verdict_consensus_egrm import Route
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace


LENGTHS = (20, 7, 13)
# Probes that agree on everything are not enough here: every item goes on to its chains.
LONG = {
    "consensus_threshold": 1.0,
    "max_chain_tokens": 10,
    "num_chains": 3,
    "temperatures": (0.6, 1.0),
    "top_ps": (0.95,) * 2,
}


def distinct(rows: list[list[int]]) -> list[tuple[int, ...]]:
    return list(dict.fromkeys(map(tuple, rows)))


def talkative() -> TinyJudge:
    return TinyJudge(talkative_generator({"7": 7.0, "8": 7.0, "\n": 6.0, "": 5.0}))


# -- chains -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decoder", ["star", "expand"])
@pytest.mark.parametrize("family", GENERATORS)
def test_chains_from_the_kept_prefix_are_those_of_the_whole_long_prompt(family, decoder):
    generator, prompts = tiny_generator(family), some_prompts(LENGTHS)
    judge, inputs = TinyJudge(generator), tiny_inputs(tiny_task(), prompts)
    stage = judge.probe(inputs, decoder=decoder, **LONG)
    assert stage.long_index == (0, 1, 2)
    judge.decoded.clear()
    output = judge.deliberate(stage.long_items(), decoder=decoder, **LONG)
    by_hand, _ = branches_by_hand(
        generator, [[*prompt, *LONG_SUFFIX] for prompt in prompts], inputs.item_ids.tolist(), max_tokens=10,
        temperatures=(0.8,) * 3, seed=0, first_branch=CHAIN_OFFSET,
    )  # fmt: skip
    assert distinct(judge.decoded) == distinct(by_hand)
    lengths = torch.tensor([len(tokens) for tokens in by_hand]).view(3, 3).sum(-1)
    assert (output.new_tokens - stage.output.new_tokens).tolist() == lengths.tolist()
    assert (output.prefill_tokens - stage.output.prefill_tokens).tolist() == [len(LONG_SUFFIX)] * 3


def test_both_orders_of_a_pair_think_and_their_verdicts_are_mapped_back():
    generator = talkative_generator({"A": 8.0, "\n": 6.0, "": 8.0})
    judge, prompts = TinyJudge(generator), some_prompts([9, 8, 12, 11])
    inputs = tiny_inputs(tiny_task(VerdictSpace.pairwise()), prompts, orders=2)
    options = LONG | {"num_chains": 4, "path": "long", "selection": "scorer"}
    stage = judge.probe(inputs, **options)
    judge.decoded.clear()
    output = judge.deliberate(stage.long_items(), **options)
    by_hand = [
        branches_by_hand(generator, [[*prompt, *LONG_SUFFIX]], [100 + row // 2], max_tokens=10, temperatures=(0.8,) * 2,
                         seed=0, first_branch=CHAIN_OFFSET + row % 2 * ORDER_STRIDE)[0]
        for row, prompt in enumerate(prompts)
    ]  # fmt: skip
    assert distinct(judge.decoded) == distinct([tokens for rows in by_hand for tokens in rows])  # K = 4: two per order
    for item in range(2):
        candidates = []
        for row in (2 * item, 2 * item + 1):
            for tokens in by_hand[row]:
                text = tiny_tokenizer().decode(tokens, skip_special_tokens=True)
                verdict = VerdictSpace.pairwise().parse(tiny_tokenizer().decode(tokens), reasoning=True)
                if verdict is not None:
                    candidates.append((score_text(text), verdict if row % 2 == 0 else 1 - verdict))
        if candidates:
            best = max(candidates, key=lambda pair: pair[0])
            assert int(output.verdicts[item]) == best[1]
            assert float(output.rewards[item]) == 1.0 - best[1]  # A, the first response, is id 0 and worth 1
    assert bool((output.statuses == Status.OK).any())


def test_a_chain_about_candidates_shown_reversed_is_mapped_back():
    judge = TinyJudge(talkative_generator({"A": 8.0, "B": 8.0, "\n": 6.0, "": 8.0}))
    inputs = tiny_inputs(tiny_task(VerdictSpace.pairwise()), some_prompts(LENGTHS))
    plain, swapped = (
        judge.judge(replace(inputs, swapped=torch.full((3,), each)), path="long", **LONG | {"num_chains": 1})
        for each in (False, True)
    )
    stated = plain.statuses == Status.OK
    assert bool(stated.any())
    assert swapped.statuses.tolist() == plain.statuses.tolist()
    assert swapped.verdicts[stated].tolist() == (1 - plain.verdicts[stated]).tolist()
    assert swapped.rewards[stated].tolist() == (1 - plain.rewards[stated]).tolist()


def test_an_odd_number_of_chains_is_rounded_up_to_both_orders():
    judge = TinyJudge(tiny_generator())
    inputs = tiny_inputs(tiny_task(VerdictSpace.pairwise()), some_prompts([9, 8]), orders=2)
    output = judge.judge(inputs, **LONG | {"path": "long", "num_chains": 3, "max_chain_tokens": 1})
    assert output.new_tokens.tolist() == [4]


@pytest.mark.parametrize("decoder", ["star", "expand"])
def test_items_pooled_from_several_batches_are_judged_as_alone(decoder):
    judge, prompts = talkative(), some_prompts([20, 7, 13, 9, 15])
    options = LONG | {"selection": "scorer", "decoder": decoder, "probe_vocabulary": "verdict"}
    options |= {"temperatures": (1.0, 1.0, 3.0), "top_ps": (1.0, 1.0, 1.0)}
    batches = [
        tiny_inputs(tiny_task(), prompts[:2], item_ids=[1, 2]),
        tiny_inputs(tiny_task(), prompts[2:], item_ids=[3, 4, 5]),
    ]
    stages = [judge.probe(inputs, **options) for inputs in batches]
    pool = LongItems.concat([stage.long_items() for stage in stages])
    together = judge.deliberate(pool, return_texts=True, **options)
    assert all(len(stage.long_items()) for stage in stages)
    assert len(pool) == len(together.rewards)
    for index in range(len(pool)):
        alone = judge.deliberate(pool[index : index + 1], return_texts=True, **options)
        assert alone.rationales == together.rationales[index : index + 1]
        for name in ("rewards", "verdicts", "statuses", "new_tokens", "prefill_tokens", "consensus"):
            assert alone[name].tolist() == pytest.approx(together[name][index : index + 1].tolist(), nan_ok=True), name
        scores = together.chain_scores[together.chain_item_index == index]
        torch.testing.assert_close(alone.chain_scores, scores, atol=1e-5, rtol=0, equal_nan=True)


def test_free_answers_of_chains_are_compared_with_the_reference():
    judge = TinyJudge(talkative_generator({" answer": 8.0, ":": 8.0, "A": 7.0, "B": 7.0, "\n": 7.0, "": 5.0}))
    task, prompts = tiny_task(VerdictSpace.free()), some_prompts([20, 7, 13, 9, 5, 16])
    inputs = replace(tiny_inputs(task, prompts), references=("A",) * 6)
    options = LONG | {"max_chain_tokens": 16, "num_chains": 5}
    items = judge.probe(inputs, **options).long_items()
    before = [dict(item.answers) for item in items]
    output = judge.deliberate(items, return_texts=True, **options)
    stated = [i for i, text in enumerate(output.rationales) if text is not None and task.parse_free(text, True)]
    assert len(stated) >= 2
    for index in stated:
        assert output.verdict_texts[index] == task.parse_free(output.rationales[index], True)
        assert float(output.rewards[index]) == float(output.verdict_texts[index] == "a")
    # Thinking again about the same items starts from the same answers.
    assert [item.answers for item in items] == before
    again = judge.deliberate(items, return_texts=True, **options)
    assert again.verdict_texts == output.verdict_texts
    assert again.rationales == output.rationales
    without = judge.judge(replace(inputs, references=None), **options)
    assert bool(without.rewards.isnan().all())  # an answer alone is worth nothing


def test_free_answers_of_probes_that_are_no_candidates_are_forgotten():
    # Else their ids, and with them the fall of ties, would depend on how many probes an early stop let end.
    judge = TinyJudge(talkative_generator({"A": 7.0, "B": 7.0, "\n": 6.0, "": 5.0}))
    inputs = tiny_inputs(tiny_task(VerdictSpace.free()), some_prompts(LENGTHS))
    known = {reuse: [item.answers for item in judge.probe(inputs, reuse_probes=reuse, **LONG).long_items()]
             for reuse in (True, False)}  # fmt: skip
    assert any(known[True])
    assert not any(known[False])


def test_items_of_different_tasks_may_share_a_pool():
    judge = talkative()
    options = LONG | {"consensus": "exact"}
    tasks = tiny_task(VerdictSpace.listwise(3)), tiny_task(VerdictSpace.listwise(5)), tiny_task()
    stages = [judge.probe(tiny_inputs(task, some_prompts([9])), **options) for task in tasks]
    pool = LongItems.concat([stage.long_items() for stage in stages])
    together = judge.deliberate(pool, **options)
    assert together.verdict_probs.shape == (3, 11)
    assert together.verdict_probs[0, 3:].tolist() == [0.0] * 8
    torch.testing.assert_close(together.verdict_probs.sum(-1), torch.ones(3))
    alone = [judge.deliberate(pool[index : index + 1], **options) for index in range(3)]
    assert torch.equal(together.verdicts, torch.cat([each.verdicts for each in alone]))


def test_a_waiting_item_holds_its_own_tokens_only():
    backbone = Backbone(tiny_generator("gemma3"))
    inputs = tiny_inputs(tiny_task(), some_prompts([200, 5]))
    with torch.no_grad():
        prompts = LocalEngine(backbone).start(inputs, SHORT_SUFFIX)
    waiting = prompts.body(1)
    assert isinstance(waiting, PrefixBody)
    body = waiting.prefix
    per_token = 3 * 2 * 2 * 8 * 4  # layers, keys and values, heads, head dimension, bytes
    held = sum(t.untyped_storage().nbytes() for layer in body.layers for t in (layer.keys, layer.values))
    assert held == body.num_bytes == 5 * per_token


# -- the choice ------------------------------------------------------------------------------------------------------------


def candidate(verdict, score=math.nan, log_prob=math.nan, chain=True) -> Candidate:
    return Candidate(f"{verdict}", verdict, 0, chain, log_prob, score)


CANDIDATES = [
    candidate(9, 0.95, chain=False),
    candidate(9, 0.3, chain=False),
    candidate(3, 0.5, -1.0),
    candidate(5, 0.7, -2.0),
    candidate(5, 0.6, -3.0),
    candidate(None, 0.99, -0.1),
]


@pytest.mark.parametrize(
    ("selection", "candidates", "verdict"),
    [
        ("scorer", CANDIDATES, 9),  # the probes are candidates, and one scores best
        ("scorer", CANDIDATES[2:], 5),  # the best score of all states no verdict
        (
            "scorer",
            [candidate(2, 0.7), candidate(4, 0.7 + 2e-7), candidate(6, 0.7 + 9e-6)],
            2,
        ),  # noise decides nothing
        ("scorer", [candidate(2, 0.7), candidate(4, 0.7 + 1e-4), candidate(6, 0.7 + 3e-5)], 4),
        ("vote", CANDIDATES, 5),  # two chains of three; probes have voted before
        ("likelihood", CANDIDATES, 3),
        ("vote", [candidate(None), candidate(8), candidate(4)], 8),  # a tie goes to the verdict stated first
        ("vote", [candidate(1), candidate(0), candidate(7), candidate(7), candidate(0)], 0),
        ("vote", [candidate(1), candidate(7), candidate(0), candidate(0), candidate(7)], 7),
        # Or to the likelier one, where that is known.
        ("vote", [candidate(8, log_prob=-2.0), candidate(4, log_prob=-1.0)], 4),
        ("vote", [candidate(8, log_prob=-1.0), candidate(4, log_prob=-1.0 + 1e-6)], 8),  # noise decides nothing
        # -1 - 4 against -2 - 2: both chains of a verdict count
        ("vote", [candidate(5, log_prob=v) for v in (-1.0, -4.0)] + [candidate(6, log_prob=-2.0)] * 2, 6),
        ("vote", [candidate(8, log_prob=-9.0), candidate(4, log_prob=-1.0), candidate(8, log_prob=-9.0)], 8),  # no tie
        ("vote", [candidate(8, log_prob=-2.0), candidate(4)], 8),  # known of one only: not compared
        ("vote", [candidate(9, chain=False), candidate(2, chain=False)], 9),  # probes that stand in for chains, too
        ("vote", [*CANDIDATES[:2], candidate(None)], 9),  # no chain states one: the probes do
        ("likelihood", [candidate(8, chain=False), candidate(9, chain=False), candidate(9, chain=False)], 9),
    ],
)
def test_the_choice_follows_its_rule(selection, candidates, verdict):
    chosen = choose(candidates, selection)
    assert chosen is not None
    assert chosen.verdict == verdict


@pytest.mark.parametrize("selection", ["scorer", "vote", "likelihood"])
def test_nothing_is_chosen_where_nothing_states_a_verdict(selection):
    assert choose([candidate(None, 0.9, -1.0)], selection) is None
    assert choose([], selection) is None


def test_probes_are_candidates_only_where_they_are_reused():
    judge, inputs = talkative(), tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    options = LONG | {"selection": "scorer", "probe_vocabulary": "verdict"}
    stage = judge.probe(inputs, **options)
    waiting = list(stage.long_index)
    assert waiting
    for reuse in (True, False):
        output = judge.judge(inputs, reuse_probes=reuse, **options)
        counts = torch.bincount(output.chain_item_index, minlength=3).tolist()
        assert [counts[item] for item in waiting] == [3 + 2 * reuse] * len(waiting)
        assert all(counts[item] == 0 for item in range(3) if item not in waiting)


def test_with_exact_consensus_the_likeliest_verdict_stands_in_for_the_probes():
    judge, inputs = talkative(), tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    options = LONG | {"selection": "scorer", "consensus": "exact"}
    stage = judge.probe(inputs, **options)
    for item in stage.long_items():
        (stand_in,) = item.probes
        assert stand_in.verdict == int(item.short.verdict_probs[0].argmax())
        assert stand_in.text == str(stand_in.verdict)
    output = judge.judge(inputs, **options)
    assert torch.bincount(output.chain_item_index).tolist() == [4, 4, 4]


def test_the_chosen_text_is_returned_and_scored_as_it_is():
    judge = TinyJudge(talkative_generator({"7": 7.0, "8": 7.0, "\n": 6.0, "": 7.0}))  # its chains end by themselves
    inputs = tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    options = LONG | {"selection": "scorer", "probe_vocabulary": "verdict", "path": "long"}
    output = judge.judge(inputs, return_texts=True, **options)
    for item in range(3):
        scores = output.chain_scores[output.chain_item_index == item]
        if int(output.statuses[item]) == Status.OK:
            assert score_text(output.rationales[item]) == pytest.approx(float(scores[~scores.isnan()].max()))
            assert tiny_task().parse(output.rationales[item], True) == int(output.verdicts[item])
            assert output.verdict_texts[item] == str(int(output.verdicts[item]))
    assert Status.OK in output.statuses.tolist()


def test_likelihood_is_the_mean_log_probability_of_the_tokens():
    generator = tiny_generator()
    judge, inputs = TinyJudge(generator), tiny_inputs(tiny_task(), some_prompts([9]))
    with torch.no_grad():
        prompts: Any = judge.engine.start(inputs, LONG_SUFFIX)
    branches = branches_of(inputs.item_ids, torch.zeros(1, dtype=torch.int64), (0.8, 1.2), (0.95, 0.9), 5)
    sampler = RecordingSampler(branches, OpenVocabulary((EOS,)), 6, want_log_probs=True)
    with torch.no_grad():
        sampler.draw(prompts.first_logits(None))
        prompts.run(sampler)
    for row in range(2):
        length = int(sampler.lengths[row])
        ids = torch.tensor([[*inputs.input_ids[0].tolist(), *LONG_SUFFIX, *sampler.tokens[row, :length].tolist()]])
        with torch.no_grad():
            log_probs = generator(input_ids=ids).logits[0, -1 - length : -1].log_softmax(-1)
        by_hand = log_probs.gather(-1, ids[0, -length:, None]).sum()
        assert float(sampler.log_probs[row]) == pytest.approx(float(by_hand), abs=1e-4)


# -- forced paths ------------------------------------------------------------------------------------------------------------


def test_the_long_path_alone_draws_no_probe():
    judge, inputs = talkative(), tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    judge.probe(inputs)  # trials come once per model, before any counting
    with counted_tokens(judge.backbone) as shapes:
        stage = judge.probe(inputs, path="long")
    assert shapes == [(3, 20)]  # the prompts, without any mode
    assert stage.long_index == (0, 1, 2)
    assert stage.output.new_tokens.tolist() == [0, 0, 0]
    assert bool(stage.output.consensus.isnan().all())
    auto = judge.judge(inputs, **LONG | {"reuse_probes": False})
    long = judge.judge(inputs, path="long", **LONG)
    waiting = auto.routes == Route.LONG
    assert long.verdict_texts == auto.verdict_texts or not bool(waiting.all())
    assert torch.equal(long.rewards[waiting].nan_to_num(-1), auto.rewards[waiting].nan_to_num(-1))


def test_the_short_path_alone_never_thinks():
    judge, inputs = talkative(), tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    output = judge.judge(inputs, path="short", probe_vocabulary="verdict", consensus_threshold=1.0)
    assert output.routes.tolist() == [Route.SHORT] * 3
    assert output.statuses.tolist() == [Status.OK] * 3
    assert output.prefill_tokens.tolist() == [length + len(SHORT_SUFFIX) for length in LENGTHS]


# -- deadlines ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only when a test says so: `clock.per_look` seconds at every look at it."""
    state = SimpleNamespace(now=100.0, per_look=0.0)

    def monotonic() -> float:
        state.now += state.per_look
        return state.now

    for module in (engine_sampler_egrm, judge_plan_egrm, judge_short_egrm, judge_long_egrm):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=monotonic))
    return state


def test_an_item_that_misses_its_deadline_among_the_probes_is_a_timeout(clock):
    judge, inputs = TinyJudge(tiny_generator()), tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    clock.per_look = 1.0
    stage = judge.probe(inputs, timeout_s=2.5, early_stop=False)
    # The deadline is set at the first look; the third look after it, behind the third token, is late.
    assert stage.output.statuses.tolist() == [Status.TIMEOUT] * 3
    assert bool(stage.output.rewards.isnan().all())
    assert len(stage.long_items()) == 0
    assert int(stage.output.new_tokens.max()) <= 3 * 5


def scripted_sampler(rows: int, max_tokens: int, **options) -> BranchSampler:
    branches = branches_of(torch.arange(rows), torch.zeros(rows, dtype=torch.int64), (0.0,), (0.95,), 0)
    return BranchSampler(branches, OpenVocabulary((EOS,)), max_tokens, **options)


def test_a_row_that_ended_in_time_is_not_late(clock):
    clock.per_look = 1.0
    stepper = ScriptedStepper([[5, EOS, EOS, EOS, EOS, EOS], [5, 6, 7, 8, 9, 10]])
    sampler = scripted_sampler(2, 6, deadlines=[103.5, 103.5])  # the fourth look, behind the fourth token, is late
    sampler.draw(stepper.logits(0))
    sampler.run(stepper)
    assert sampler.tokens.tolist() == [[5, EOS, 0, 0, 0, 0], [5, 6, 7, 8, 0, 0]]
    assert sampler.ended.tolist() == [True, False]
    assert sampler.late.tolist() == [False, True]


def test_a_row_is_cut_by_its_budget_and_never_fed_its_last_token():
    stepper = ScriptedStepper([[5, 6, 7, 8], [5, EOS, EOS, EOS]])
    sampler = scripted_sampler(2, 3)
    sampler.draw(stepper.logits(0))
    sampler.run(stepper)
    assert sampler.tokens.tolist() == [[5, 6, 7], [5, EOS, 0]]
    assert sampler.ended.tolist() == [False, True]
    assert stepper.steps == 2


@pytest.mark.parametrize(("pooling", "states"), [("last", [[3.0], [2.0]]), ("mean", [[2.0], [1.5]])])
def test_states_follow_the_tokens_of_each_row(pooling, states):
    stepper = ScriptedStepper([[5, 6, 7, 8], [5, EOS, EOS, EOS]])
    sampler = scripted_sampler(2, 3, pooling=pooling)
    sampler.draw(stepper.logits(0))
    sampler.run(stepper)
    assert sampler.states is not None
    assert sampler.states.tolist() == states  # the third token was fed for its state alone
    assert stepper.steps == 3


def test_a_probe_that_comes_too_late_does_not_matter_once_the_others_have_decided(clock):
    judge = TinyJudge(talkative_generator({"7": 8.0, "8": 6.0, "\n": 7.0, "": 4.0}))
    inputs = tiny_inputs(tiny_task(VerdictSpace.pointwise(0, 1000)), some_prompts([9, 12, 5]))
    options = {
        "temperatures": (0.0, 0.0, 0.0, 0.0, 3.0),
        "top_ps": (0.95,) * 4 + (1.0,),
        "seed": 1,
        "early_stop": False,
    }
    whole = judge.probe(inputs, **options).output
    late = {}
    for looks in range(1, 9):
        clock.per_look = 1.0
        output = judge.probe(inputs, timeout_s=looks - 0.5, **options).output
        for item in range(3):
            if output.statuses[item] == Status.OK and output.routes[item] == Route.SHORT:
                assert int(output.verdicts[item]) == int(whole.verdicts[item])
                late[item] = late.get(item, False) or bool(output.consensus_is_bound[item])
            elif output.statuses[item] == Status.TIMEOUT:
                assert bool(output.rewards[item].isnan())
    assert any(late.values())  # somebody was decided although a probe had not come


def test_a_chain_that_misses_the_deadline_makes_its_item_a_timeout_and_no_other(clock):
    judge = talkative()
    items = judge.probe(
        tiny_inputs(tiny_task(), some_prompts(LENGTHS)), path="long", timeout_s=5.0, **LONG
    ).long_items()
    assert {item.deadline for item in items} == {105.0}
    patient = LongItems([replace(items[0], deadline=math.inf), items[1], replace(items[2], deadline=math.inf)])
    clock.per_look = 1.0
    output = judge.deliberate(patient, **LONG)
    alone = judge.deliberate(patient[::2], **LONG)
    assert int(output.statuses[1]) == Status.TIMEOUT
    assert bool(output.rewards[1].isnan())
    assert output.statuses[::2].tolist() == alone.statuses.tolist()
    assert Status.TIMEOUT not in alone.statuses.tolist()


def test_items_already_late_cost_nothing(clock):
    judge = talkative()
    stage = judge.probe(tiny_inputs(tiny_task(), some_prompts(LENGTHS)), path="long", timeout_s=5.0, **LONG)
    clock.now += 6.0
    with counted_tokens(judge.backbone) as shapes:
        output = judge.deliberate(stage.long_items(), **LONG)
    assert shapes == []
    assert output.statuses.tolist() == [Status.TIMEOUT] * 3
    assert output.new_tokens.tolist() == [0, 0, 0]


# -- broken numbers ---------------------------------------------------------------------------------------------------------

POISON = 390  # no prompt holds this token unless a test puts it there


def poisoned_judge(value: float = math.nan) -> TinyJudge:
    generator = tiny_generator("mistral")
    generator.get_input_embeddings().weight.data[POISON] = value
    return TinyJudge(generator)


@pytest.mark.parametrize(
    "options", [{}, {"probe_vocabulary": "verdict"}, {"consensus": "exact"}, {"decoder": "expand"}]
)
def test_nan_logits_are_an_error_of_their_own_item_only(options):
    prompts = some_prompts(LENGTHS)
    whole = poisoned_judge().judge(tiny_inputs(tiny_task(), prompts), **LONG, **options)
    prompts[1][-2] = POISON  # within every sliding window
    output = poisoned_judge().judge(tiny_inputs(tiny_task(), prompts), **LONG, **options)
    assert int(output.statuses[1]) == Status.ERROR
    assert bool(output.rewards[1].isnan())
    for item in (0, 2):
        assert int(output.statuses[item]) == int(whole.statuses[item]) != Status.ERROR
        assert output.rewards[item].nan_to_num(-1) == whole.rewards[item].nan_to_num(-1)


def test_infinite_logits_are_an_error_too():
    generator = talkative_generator({"7": 7.0})
    generator.lm_head.bias.data[50] = math.inf
    judge = TinyJudge(generator)
    output = judge.probe(tiny_inputs(tiny_task(), some_prompts(LENGTHS))).output
    assert output.statuses.tolist() == [Status.ERROR] * 3


def test_nan_logits_in_a_chain_are_an_error():
    judge = poisoned_judge()
    task = tiny_task(long_suffix_ids=(*LONG_SUFFIX, POISON))
    output = judge.judge(tiny_inputs(task, some_prompts(LENGTHS)), probe_vocabulary="verdict", **LONG)
    long = output.routes == Route.LONG
    assert bool(long.any())
    assert set(output.statuses[long].tolist()) == {int(Status.ERROR)}
    assert bool(output.rewards[long].isnan().all())


def test_a_score_that_is_not_a_number_is_an_error(monkeypatch):
    judge, inputs = talkative(), tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    monkeypatch.setattr(
        judge, "score_candidates", lambda p, texts, s, strict: (torch.full((len(texts),), math.nan), [0.0])
    )
    output = judge.judge(inputs, selection="scorer", probe_vocabulary="verdict", **LONG)
    long = output.routes == Route.LONG
    assert set(output.statuses[long].tolist()) == {int(Status.ERROR)}


# -- answers the budget cut ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "complete", "verdict"),
    [
        ("1", False, None),  # of "10"
        ("1", True, 1),
        ("10", False, 10),
        ("7", False, 7),
        (" **1", False, None),
        (" **1**", False, 1),
        ("1\n", False, 1),
    ],
)
def test_a_number_the_budget_may_have_cut_is_not_read(text, complete, verdict):
    assert verdict_of(tiny_task(), text, False, complete) == verdict
    assert verdict_of(tiny_task(), f"So far so good.\nVerdict: {text}", True, complete) == verdict


@pytest.mark.parametrize(
    ("text", "complete", "answer"),
    [
        ("42", False, None),  # of "420"
        ("42", True, "42"),
        ("42\nbecause", False, "42"),
        ("Par", False, None),
        ("", True, None),
    ],
)
def test_a_free_answer_the_budget_may_have_cut_is_not_read(text, complete, answer):
    task = tiny_task(VerdictSpace.free())
    assert answer_of(task, text, False, complete) == answer
    assert answer_of(task, f"Hm.\nAnswer: {text}", True, complete) == answer
    assert answer_of(task, "It is \\boxed{42}, and so", True, False) == "42"


# -- states and rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("decoder", ["star", "expand"])
def test_a_state_scorer_reads_the_hidden_states_of_each_candidates_tokens(decoder, pooling):
    generator = talkative_generator({"7": 8.0, "8": 8.0, "\n": 7.0, "": 7.5})
    judge = TinyJudge(generator, state_pooling=pooling)
    prompts = some_prompts(LENGTHS)
    inputs = tiny_inputs(tiny_task(), prompts)
    ladder = (0.6, 0.8, 1.0, 1.2, 1.4)
    options = LONG | {"selection": "scorer", "decoder": decoder, "temperatures": ladder, "top_ps": (0.95,) * 5}
    stage = judge.probe(inputs, **options)
    probes = sample_like(judge, inputs, SHORT_SUFFIX, ladder, 0, 8, tiny_task().probe_stop_ids)
    chains = sample_like(judge, inputs, LONG_SUFFIX, (0.8,) * 3, CHAIN_OFFSET, 10, ())
    judge.deliberate(stage.long_items(), **options)
    expected = []
    for item in stage.long_index:
        own = [(SHORT_SUFFIX, probes[item][m]) for m in range(5) if bool(stage.output.probe_parsed[item, m])]
        own += [
            (LONG_SUFFIX, tokens) for tokens in chains[item]
            if verdict_of(tiny_task(), tiny_tokenizer().decode(tokens), True, tokens[-1] == EOS) is not None
        ]  # fmt: skip
        states = []
        for suffix, tokens in own:
            ids = torch.tensor([[*prompts[item], *suffix, *tokens]])
            with torch.no_grad():
                own = generator.model(input_ids=ids).last_hidden_state[0, -len(tokens) :]
            states.append(own[-1] if pooling == "last" else own.mean(0))
        if states:
            expected.append(torch.stack(states))
    assert len(judge.states) == len(expected) > 0
    assert any(len(item.probes) > 1 for item in stage.long_items())
    for ours, by_hand in zip(judge.states, expected, strict=True):
        torch.testing.assert_close(ours, by_hand, atol=1e-4, rtol=0)


def sample_like(judge, inputs, suffix, temperatures, offset, max_tokens, late_stops) -> list[list[list[int]]]:
    # Tokens of each branch of each prompt, with the star decoder, which other tests compare with sampling by hand.
    with torch.no_grad():
        prompts: Any = judge.engine.start(inputs, suffix)
    branches = branches_of(
        inputs.item_ids, torch.zeros_like(inputs.item_ids), temperatures, (0.95,) * len(temperatures), 0, offset
    )
    sampler = RecordingSampler(branches, OpenVocabulary((EOS,), late_stops), max_tokens)
    with torch.no_grad():
        sampler.draw(prompts.first_logits(None))
        prompts.run(sampler)
    rows = [ids[:n] for ids, n in zip(sampler.tokens.tolist(), sampler.lengths.tolist(), strict=True)]
    return [rows[i : i + len(temperatures)] for i in range(0, len(rows), len(temperatures))]


def test_prompts_whose_branches_ended_are_dropped_and_nothing_changes(monkeypatch):
    backbone = Backbone(talkative_generator({"7": 7.0, "": 7.5}))
    inputs = tiny_inputs(tiny_task(), some_prompts([20, 7, 13, 9, 11, 6, 16, 5]))
    with counted_tokens(backbone) as shapes:
        dropping = sample_branches(backbone, inputs, "star", max_tokens=12)
    rows = [n for n, t in shapes if t == 1]
    assert rows[0] == 24
    assert rows == sorted(rows, reverse=True)
    assert rows[-1] <= 12  # at least half of the rows go at a time
    monkeypatch.setattr(StarStepper, "can_drop", False)
    with counted_tokens(backbone) as shapes:
        keeping = sample_branches(backbone, inputs, "star", max_tokens=12)
    assert {n for n, t in shapes if t == 1} == {24}
    assert torch.equal(dropping.tokens, keeping.tokens)
    assert torch.equal(dropping.lengths, keeping.lengths)


def test_nobody_is_run_once_every_row_has_ended():
    backbone = Backbone(talkative_generator({"": 30.0}))
    with counted_tokens(backbone) as shapes:
        sampler = sample_branches(backbone, tiny_inputs(tiny_task(), some_prompts(LENGTHS)), "star")
    assert sampler.lengths.tolist() == [1] * 9  # everybody ended with the first token ...
    assert shapes == [(3, 20 + len(SHORT_SUFFIX))]  # ... which came from the prompts' own logits


# -- outputs --------------------------------------------------------------------------------------------------------------------


def test_outputs_are_joined_row_by_row():
    first = EGRMOutput(
        rewards=torch.tensor([1.0, 2.0]), chain_item_index=torch.tensor([0, 1]), verdict_texts=["a", None]
    )
    second = EGRMOutput(rewards=torch.tensor([3.0]), chain_item_index=torch.tensor([0]), verdict_texts=["b"],
                        rationales=["why"])  # fmt: skip
    joined = join_outputs([first, second])
    assert joined.rewards.tolist() == [1.0, 2.0, 3.0]
    assert joined.chain_item_index.tolist() == [0, 1, 2]
    assert joined.verdict_texts == ["a", None, "b"]
    assert joined.rationales is None
    assert join_outputs([]).rewards is None


def test_no_item_waits_where_all_are_short():
    judge, inputs = talkative(), tiny_inputs(tiny_task(), some_prompts(LENGTHS))
    options = JudgeOptions().with_overrides(temperatures=(0.0,) * 3, probe_vocabulary="verdict")
    stage = judge.probe(inputs, temperatures=options.temperatures, probe_vocabulary="verdict")
    assert stage.long_index == ()
    assert len(judge.deliberate(stage.long_items())) == 0
    assert judge.judge(inputs, temperatures=options.temperatures, probe_vocabulary="verdict").routes.tolist() == [
        0,
        0,
        0,
    ]
