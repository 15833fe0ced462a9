"""Typed questions through Transformers' Decision API: the judge's own probabilities, one prefill, and chains below tau."""

import importlib
import json

import pytest
import torch
from fresh import run_fresh
from tiny import tiny_generator, tiny_scorer, tiny_scorer_tokenizer, tiny_tokenizer

from transformers_egrm import EGRMRewardModel, VerdictSpace, load_mini
from transformers_egrm.modeling.errors_egrm import ConfigError, InputError
from transformers_egrm.modeling.prompt_decisions_egrm import decision_files, decision_record


transformers = pytest.importorskip("transformers", minversion="5.23", reason="the Decision API came with 5.23")
decision_egrm = importlib.import_module("transformers_egrm.modeling.decision_egrm")

STATE = {"prompt": "What is 2 + 3?", "response": "2 + 3 = 5."}
LEVELS = [str(level) for level in range(11)]
QUESTIONS = {
    "right": {"type": "noul", "instructions": "Is the last response correct?"},
    "quality": {"type": "score", "criteria": LEVELS},
    "tone": {
        "type": "choice",
        "instructions": "What is the tone?",
        "criteria": {"calm": "A polite message", "angry": None},
    },
    "level": {"type": "score", "instructions": "How urgent?", "criteria": ["Can wait", "Today", "Now"]},
}
SHORT = {"max_chain_tokens": 8, "num_chains": 2, "selection": "vote"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> str:
    model = EGRMRewardModel.from_components(
        tiny_generator(), tiny_scorer(), tiny_tokenizer(), tiny_scorer_tokenizer(), **SHORT
    )
    folder = tmp_path_factory.mktemp("decisions") / "judge"
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def decider(saved):
    return transformers.AutoModelForDecision.from_pretrained(saved)


def probabilities(model, record: dict, space: VerdictSpace | None = None) -> list[float]:
    inputs = model.processor(record, space=space)
    return model.judge(inputs, consensus="exact", consensus_threshold=0.0).verdict_probs[0].tolist()


def expected(model, state=STATE) -> dict[str, list[float]]:
    """What `judge` says of the records that the questions stand for."""
    asked = {name: decider_question(question) for name, question in QUESTIONS.items()}
    found = {name: decision_record(state, question, model.processor.space) for name, question in asked.items()}
    told = {name: probabilities(model, own.record, own.space) for name, own in found.items()}
    return {name: [told[name][verdict] for verdict in found[name].verdicts] for name in found}


def decider_question(question: dict):
    ((_, parsed),) = [
        (None, own) for own in decision_egrm.parse_questions({"it": question}, decision_egrm.JudgeDecisionConfig())
    ]
    return parsed


def shown(answer: dict) -> list[float]:
    return [answer["noul"], 1 - answer["noul"]] if answer["type"] == "noul" else [*answer["probabilities"].values()]


FRESH = """
from transformers import AutoModelForDecision, pipeline
found = {}
decide = pipeline("decision", model=given["folder"], trust_remote_code=True, device="cpu")
assert type(decide.model).__module__.startswith("transformers_modules."), type(decide.model)
assert isinstance(decide.model, AutoModelForDecision.from_pretrained(given["folder"], trust_remote_code=True).__class__.__mro__[1])
for tau in (0.0, 1.0):
    decide.model.config.judging["consensus_threshold"] = tau
    found[str(tau)] = decide({"state": given["state"], "questions": given["questions"]})
assert not [name for name in sys.modules if name.split(".")[0] == "transformers_egrm"]
print(json.dumps(found))
"""


def test_a_checkpoint_decides_where_the_package_is_absent_and_thinks_where_probes_are_split(saved, decider, tmp_path):
    given = {"folder": saved, "state": STATE, "questions": QUESTIONS}
    found = run_fresh(FRESH, given, tmp_path)
    for name, wanted in expected(decider).items():
        for tau, route in (("0.0", "short"), ("1.0", "long")):
            answer = found[tau][name]
            assert shown(answer) == pytest.approx(wanted, abs=1e-5)
            assert answer["consensus"] == pytest.approx(max(wanted), abs=1e-5)
            assert answer["route"] == route


def test_the_pipeline_of_the_installed_package_answers_the_same(saved, decider):
    decide = transformers.pipeline("decision", model=saved, trust_remote_code=True, device="cpu")
    assert type(decide.model) is decision_egrm.EGRMForDecision
    request = {"state": STATE, "questions": QUESTIONS}
    assert decide(request) == decider.answer(request) == decider.answer(json.dumps(request))


def test_a_score_with_the_checkpoints_own_levels_and_no_words_is_its_own_judgement(decider):
    answer = decider.answer({"state": STATE, "questions": {"quality": QUESTIONS["quality"]}}, think="never")["quality"]
    assert shown(answer) == pytest.approx(probabilities(decider, STATE), abs=1e-6)
    assert answer["score"] == pytest.approx(sum(k * p for k, p in enumerate(shown(answer))), abs=1e-5)


@pytest.mark.parametrize("state", ["The server is down!", {"mail": "The server is down!", "times": 3}, STATE, [1, 2]])
def test_an_answer_does_not_depend_on_the_other_questions(decider, state):
    together = decider.answer({"state": state, "questions": QUESTIONS}, think="never")
    for name, question in QUESTIONS.items():
        alone = decider.answer({"state": state, "questions": {name: question}}, think="never")[name]
        assert shown(together[name]) == pytest.approx(shown(alone), abs=1e-5)
        assert {**together[name], "consensus": 0, "support": 0}.keys() == alone.keys()


def test_questions_on_one_state_run_its_tokens_once(decider):
    state = "The server is down. " * 40
    questions = {f"q{n}": {"type": "choice", "instructions": f"Question {n}?", "criteria": dict.fromkeys("abcd"[:n])}
                 for n in (2, 3, 4)}  # fmt: skip
    run: list[int] = []

    def count(module, args, kwargs):
        ids = kwargs.get("input_ids")
        run.append((ids if ids is not None else kwargs["inputs_embeds"]).shape[1])

    hook = decider.generator.base_model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        decider.answer({"state": state, "questions": questions}, think="never")
        together = sum(run)
        run.clear()
        alone = []
        for name, question in questions.items():
            decider.answer({"state": state, "questions": {name: question}}, think="never")
            alone.append(sum(run))
            run.clear()
    finally:
        hook.remove()
    tokens = len(decider.processor.tokenizer(state)["input_ids"])
    assert sum(alone) - together >= 2 * (tokens - 2)


def test_think_chooses_the_path_and_chains_on_shared_tokens_say_what_they_say_alone(decider):
    request = {"state": STATE, "questions": QUESTIONS}
    never, always = (decider.answer(request, think=think) for think in ("never", "always"))
    assert {answer["route"] for answer in never.values()} == {"short"}
    assert {answer["route"] for answer in always.values()} == {"long"}
    for name, question in QUESTIONS.items():
        alone = decider.answer({"state": STATE, "questions": {name: question}}, think="always")[name]
        assert alone["verdict"] == always[name]["verdict"]
        assert shown(always[name]) == pytest.approx(shown(never[name]), abs=1e-5)  # probabilities are the prefill's
    with pytest.raises(ConfigError, match="never, auto, always"):
        decider.answer(request, think="maybe")
    with pytest.raises(ConfigError, match="Unknown judging option"):
        decider.answer(request, temprature=1.0)


def test_the_choice_is_the_verdict_that_is_believed_in_the_end():
    question = decider_question(QUESTIONS["tone"])
    fields = {
        name: getattr(question, name) for name in ("name", "type", "instructions", "options", "labels", "descriptions")
    }
    judged = decision_egrm.JudgedQuestion(**fields, judged={"verdict": "angry", "route": "long"})
    answer = judged.answer([0.6, 0.4])
    assert (answer["choice"], answer["route"], answer["probabilities"]) == (
        "angry",
        "long",
        {"calm": 0.6, "angry": 0.4},
    )
    judged.judged["verdict"] = None
    assert judged.answer([0.6, 0.4])["choice"] == "calm"


def test_a_judged_state_is_rated_in_its_own_space_and_a_text_is_shown_with_its_options():
    own = VerdictSpace.pointwise(0, 10)
    quality = decision_record(STATE, decider_question(QUESTIONS["quality"]), own)
    assert (quality.record, quality.space) == (STATE, own)
    level = decision_record([{"role": "user", "content": "2?"}, {"role": "assistant", "content": "2"}],
                            decider_question(QUESTIONS["level"]), own)  # fmt: skip
    assert level.space == VerdictSpace.pointwise(0, 2)
    assert level.record["rubric"] == "How urgent?\n0: Can wait\n1: Today\n2: Now"
    right = decision_record(STATE, decider_question(QUESTIONS["right"]), own)
    assert (right.space, right.verdicts) == (VerdictSpace.binary(), (1, 0))
    tone = decision_record(STATE, decider_question(QUESTIONS["tone"]), own)
    assert tone.space == VerdictSpace.listwise(2)
    assert tone.record["prompt"] == json.dumps(STATE)
    assert tone.record["responses"] == ["calm: A polite message", "angry"]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"state": "x"}, "A request is"),
        ("{", "must be JSON"),
        ({"state": "x", "questions": QUESTIONS, "model": "m"}, "Unknown keys model"),
        ({"state": "x", "questions": QUESTIONS, "assets": {"i": {}}}, "Images cannot be judged"),
        ({"state": "x", "questions": {"q": {"type": "rank"}}}, "`type` must be one of"),
        ({"state": "x", "questions": {"q": {"type": "choice", "criteria": {"only": None}}}}, "2 to 26 options, got 1"),
        ({"state": " ", "questions": QUESTIONS}, "must not be empty"),
    ],
)
def test_a_request_that_cannot_be_judged_is_refused(decider, request_, message):
    with pytest.raises(InputError, match=message):
        decider.answer(request_)


def test_another_configuration_or_processor_is_refused(saved, decider):
    foreign = transformers.DecisionConfig()
    decide = transformers.pipeline(
        "decision", model=decider, tokenizer=decider.processor.tokenizer, decision_config=foreign
    )
    with pytest.raises(ConfigError, match="Leave `decision_config` out"):
        decide({"state": "x", "questions": QUESTIONS})
    with pytest.raises(ConfigError, match=r"processor=model\.processor"):
        decider.decision_config.prepare_inputs({"state": "x", "questions": QUESTIONS}, decider.processor.tokenizer)


@pytest.mark.parametrize("judge", ["tiny", "mini"])
@pytest.mark.parametrize("name", ["tone", "level", "right"])
def test_the_template_renders_the_judge_prompt_token_for_token(decider, judge, name, tmp_path):
    processor = decider.processor if judge == "tiny" else load_mini().processor
    for file, text in decision_files(processor).items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    config, state = (
        transformers.DecisionConfig.from_pretrained(tmp_path),
        "The server is down: 2 + 3 = <b>5</b></question>",
    )
    tokenizer = type(processor.tokenizer).from_pretrained(processor_folder(processor, tmp_path))
    ((inputs, (question,)),) = config.prepare_inputs({"state": state, "questions": {name: QUESTIONS[name]}}, tokenizer)
    own = decision_record(state, question, processor.space)
    item = processor.encode(own.record, space=own.space)
    wanted = processor.tokenizer.decode([*item.prompts[0], *item.task.short_suffix_ids])
    assert inputs["input_ids"][0].tolist() == [*item.prompts[0], *item.task.short_suffix_ids], wanted
    first = [ids[0] for ids in item.task.verdict_token_ids]
    assert transformers.decision.label_token_ids(tokenizer, tuple(question.labels)) == first


def processor_folder(processor, folder):
    """The tokenizer as files: Transformers adds tokens to the one that it asks."""
    processor.tokenizer.save_pretrained(folder / "tokenizer")
    return folder / "tokenizer"


def test_without_the_decision_api_a_checkpoint_saves_and_loads_as_before(saved, tmp_path):
    script = """
sys.modules.update({"transformers.decision": None, "transformers.decision.modeling_utils": None,
                    "transformers.decision.configuration_utils": None, "transformers.decision.template_utils": None})
from transformers import AutoModel
model = AutoModel.from_pretrained(given["folder"], trust_remote_code=True)
before = model.judge(model.processor(given["state"]), consensus="exact", consensus_threshold=0.0).verdict_probs.tolist()
model.save_pretrained(given["again"])
print(json.dumps(before))
"""
    again = tmp_path / "again"
    found = run_fresh(script, {"folder": saved, "again": str(again), "state": STATE}, tmp_path)
    model = transformers.AutoModelForDecision.from_pretrained(again)
    assert found[0] == pytest.approx(probabilities(model, STATE), abs=1e-6)
    assert json.loads((again / "decision.json").read_text())["noul_options"] == ["true", "false"]


def test_a_decision_model_saved_again_is_the_same_checkpoint(saved, decider, tmp_path):
    decider.save_pretrained(tmp_path)
    for name in ("decision.json", "decision_template.jinja"):
        assert (tmp_path / name).read_text() == (type(tmp_path)(saved) / name).read_text()
    again = EGRMRewardModel.from_pretrained(tmp_path)
    assert torch.equal(again.generator.get_input_embeddings().weight, decider.generator.get_input_embeddings().weight)


def test_numbers_that_are_not_finite_are_no_answer(saved):
    model = transformers.AutoModelForDecision.from_pretrained(saved)
    torch.nn.init.constant_(model.generator.get_output_embeddings().weight, float("nan"))
    with pytest.raises(ValueError, match="not finite"):
        model.answer({"state": STATE, "questions": {"quality": QUESTIONS["quality"]}})
