"""A configuration refuses what cannot work, survives JSON, and leaves living models alone."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from tiny import tiny_generator, tiny_scorer
from transformers import AutoConfig, AutoModel

from transformers_egrm import EGRMRewardModel
from transformers_egrm.modeling.configuration_egrm import EGRMConfig, JudgeOptions
from transformers_egrm.modeling.errors_egrm import ConfigError


BINARY_TASK = {
    "space": {"kind": "binary"}, "layout": "conversation", "judge_turn_ids": [5, 6], "short_suffix_ids": [7],
    "long_suffix_ids": [8, 9], "verdict_token_ids": [[10, 11], [11]], "probe_stop_ids": [1, 2], "chain_stop_ids": [1],
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"space": 5}, "`space` must be a mapping with a `kind`"),
        ({"space": {}}, "`space` must be a mapping with a `kind`"),
        ({"space": {"kind": "ternary"}}, "one of pointwise"),
        ({"layout": None}, "layout is one of conversation, embedded"),
        ({"judge_turn_ids": 5}, "`judge_turn_ids` must be a list of token ids"),
        ({"judge_turn_ids": ["5"]}, "`judge_turn_ids` must be a list of token ids"),
        ({"short_suffix_ids": [10**7]}, "`short_suffix_ids` of the task has the token id 10000000, .* ends at 99"),
        ({"long_suffix_ids": [-1]}, "`long_suffix_ids` must be a list of token ids"),
        ({"long_suffix_ids": [100]}, "`long_suffix_ids` of the task has the token id 100, .* ends at 99"),
        ({"probe_stop_ids": [True]}, "`probe_stop_ids` must be a list of token ids"),
        ({"chain_stop_ids": None}, "`chain_stop_ids` must be a list of token ids"),
        ({"verdict_token_ids": 7}, "`verdict_token_ids` must be a list"),
        ({"verdict_token_ids": [7, 8]}, "`verdict_token_ids` must be a list of token ids"),
        ({"verdict_token_ids": [[7], [100]]}, "`verdict_token_ids` of the task has the token id 100"),
        ({"verdict_token_ids": [[7]]}, "Each of the 2 verdicts needs at least one token"),
        ({"thinking_opened": "no"}, "`thinking_opened` must be True or False"),
        ({"turn_marker": 5}, "`turn_marker` must be text, or None"),
        ({"judge_turn": [5]}, r"unknown \['judge_turn'\]"),
    ],
    ids=str,
)
def test_a_task_that_the_generator_cannot_read_is_refused(change, expected):
    generator = {"model_type": "qwen3", "vocab_size": 100}
    EGRMConfig(generator_config=generator, task=BINARY_TASK | {"long_suffix_ids": [99]})
    with pytest.raises(ConfigError, match=expected):
        EGRMConfig(generator_config=generator, task=BINARY_TASK | change)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"generator_config": None}, "`generator_config: null`"),
        ({}, "`generator_config: null`"),
        ({"generator_config": {}}, "its dict with a `model_type`"),
        ({"generator_config": {"vocab_size": 9}}, "its dict with a `model_type`"),
    ],
    ids=str,
)
def test_without_a_generator_nothing_is_built(given, expected, tmp_path, monkeypatch):
    # Transformers would fill the gap with a Llama of 7 billion parameters.
    def built(*_, **__):
        raise AssertionError("a generator was built")

    monkeypatch.setattr("transformers_egrm.modeling.modeling_egrm.AutoModelForCausalLM.from_config", built)
    config = {"model_type": "egrm_reward", "architectures": ["EGRMRewardModel"], **given}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({}, tmp_path / "model.safetensors", {"format": "pt"})
    for load in (
        lambda: EGRMRewardModel(EGRMConfig(**given)),
        lambda: EGRMRewardModel(EGRMConfig.from_pretrained(tmp_path)),
        lambda: EGRMRewardModel.from_pretrained(tmp_path),
        lambda: AutoModel.from_pretrained(tmp_path),
        lambda: AutoModel.from_config(EGRMConfig(**given)),
    ):
        with pytest.raises(ConfigError, match=expected):
            load()


def test_a_part_without_a_model_type_is_no_default_model():
    for name in ("scorer_config", "draft_config"):
        with pytest.raises(ConfigError, match=f"`{name}` must be a configuration, or its dict with a `model_type`"):
            EGRMConfig(generator_config={"model_type": "llama"}, **{name: {"hidden_size": 8}})


def test_a_configuration_without_arguments_can_be_made_compared_and_saved(tmp_path):
    EGRMConfig().save_pretrained(tmp_path)
    assert EGRMConfig.from_pretrained(tmp_path).generator_config is None
    assert EGRMConfig().to_diff_dict()["judging"] == EGRMConfig().judging
    assert EGRMConfig().longest_prompt is None


def test_the_defaults_are_the_papers():
    options = EGRMConfig().judge_options()
    assert options.num_probes == 5
    assert options.temperatures == (0.6, 0.7, 0.8, 0.9, 1.0)
    assert options.top_ps == (0.95,) * 5
    assert options.consensus_threshold == 0.8
    assert options.probe_vocabulary == "full"
    assert options.reuse_probes


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"temperatures": ()}, "at least one temperature"),
        ({"temperatures": (-0.1,)}, "numbers >= 0"),
        ({"temperatures": (float("nan"),)}, "numbers >= 0"),
        ({"temperatures": (float("inf"),)}, "numbers >= 0"),
        ({"top_ps": (0.5,)}, r"one value per temperature \(5\)"),
        ({"top_ps": (0.0,) * 5}, r"values in \(0, 1\]"),
        ({"consensus_threshold": 1.01}, r"a share in \[0, 1\]"),
        ({"consensus_threshold": float("nan")}, r"a share in \[0, 1\]"),
        ({"num_chains": 0}, "an integer >= 1, got 0"),
        ({"num_chains": 2.5}, "an integer >= 1"),
        ({"max_probe_tokens": 0}, "an integer >= 1"),
        ({"max_chain_tokens": -1}, "an integer >= 1"),
        ({"chain_temperature": -1.0}, "a number >= 0"),
        ({"chain_top_p": 1.5}, r"a value in \(0, 1\]"),
        ({"num_probes": 6}, "an integer from 1 to the ladder's 5 rungs"),
        ({"vote_tolerance": 0}, r"Unknown judging option \['vote_tolerance'\]"),
        ({"probe_vocabulary": "all"}, "one of full, verdict"),
        ({"consensus": "vote"}, "one of sampled, exact"),
        ({"reward": "mean"}, "one of verdict, expected"),
        ({"selection": "best"}, "one of scorer, vote, likelihood"),
        ({"decoder": "beam"}, "one of auto, star, expand, first_token"),
        ({"timeout_s": 0.0}, "seconds > 0, or None"),
        (
            {"temprature": (1.0,)},
            r"Unknown judging option \['temprature'\]\. Known options: abstain_below, assess, audit_share, chain_temp",
        ),
    ],
    ids=str,
)
def test_an_option_out_of_range_says_what_it_should_be(setting, expected):
    with pytest.raises(ConfigError, match=expected):
        EGRMConfig().judge_options(**setting)


@pytest.mark.parametrize(
    "setting",
    [
        {"seed": None}, {"seed": 1.5}, {"seed": True}, {"seed": "1"}, {"strict": "no"}, {"strict": 1}, {"early_stop": "no"},
        {"reuse_probes": None}, {"timeout_s": "3"}, {"timeout_s": True}, {"timeout_s": float("nan")},
        {"timeout_s": float("inf")}, {"temperatures": 0.7}, {"temperatures": "0.7"}, {"temperatures": None},
        {"temperatures": [None]}, {"temperatures": [True]}, {"temperatures": torch.tensor(0.7)}, {"top_ps": 0.9},
        {"top_ps": ["0.9"] * 5}, {"num_probes": True}, {"num_probes": 2.0}, {"num_chains": True}, {"num_chains": "2"},
        {"num_chains": None}, {"max_chain_tokens": None}, {"max_probe_tokens": 8.0}, {"chain_top_p": None},
        {"chain_top_p": "x"}, {"chain_temperature": None}, {"chain_temperature": True}, {"consensus_threshold": "0.8"},
        {"consensus_threshold": None}, {"consensus_threshold": True}, {"consensus": 5}, {"consensus": ["sampled"]},
        {"reward": None}, {"path": None}, {"decoder": []}, {"selection": 0}, {"probe_vocabulary": None},
        {"drafting": False}, {"verification": 3}, {"num_drafts": True}, {"num_drafts": 1.0}, {"draft_length": None},
        {"draft_layers": "2"}, {"draft_ngram": 2.5},
    ],
    ids=str,
)  # fmt: skip
def test_an_option_of_a_wrong_type_is_a_config_error_that_names_it(setting):
    (name,) = setting
    with pytest.raises(ConfigError, match=f"`{name}` must be"):
        EGRMConfig().judge_options(**setting)


def test_numbers_of_numpy_and_torch_are_numbers_and_end_as_pythons():
    options = EGRMConfig().judge_options(
        seed=np.int64(7), num_chains=np.int32(2), consensus_threshold=np.float64(0.5), chain_temperature=np.float32(0.5),
        temperatures=np.array([0.5, 1.0]), top_ps=torch.tensor([0.5, 1.0]),
    )  # fmt: skip
    assert (options.seed, options.num_chains, options.consensus_threshold, options.chain_temperature) == (
        7,
        2,
        0.5,
        0.5,
    )
    assert (options.temperatures, options.top_ps) == ((0.5, 1.0), (0.5, 1.0))
    assert {type(value) for value in (options.seed, options.num_chains)} == {int}
    json.dumps(options.stored())


@pytest.mark.parametrize(
    "setting",
    [
        {"regression_weight": "a"}, {"huber_delta": True}, {"hinge_margin": None}, {"initializer_range": "x"},
        {"scorer_max_tokens": True}, {"scorer_max_tokens": 9.5}, {"scorer_trained": "no"}, {"scorer_trained": 1},
        {"scorer_kind": 5}, {"scorer_pooling": None}, {"task": 5}, {"judging": 5}, {"base_models": "acme/llm"},
        {"base_models": [5]}, {"generator_config": 5}, {"scorer_config": "bert"}, {"draft_config": []},
    ],
    ids=str,
)  # fmt: skip
def test_a_checkpoint_setting_of_a_wrong_type_is_a_config_error_that_names_it(setting):
    (name,) = setting
    with pytest.raises(ConfigError, match=f"`{name}` must be"):
        EGRMConfig(**setting)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"temperatures": []}, "at least one temperature"),
        ({"top_ps": [0.5, 1.0]}, r"one value per temperature \(5\)"),
        ({"judging": {"seed": 1}}, r"\['seed'\] belong to a call"),
        ({"consensus_threshold": -0.1}, "consensus_threshold"),
        ({"num_chains": 0}, "num_chains"),
        ({"selection": "best"}, "selection"),
        ({"scorer_kind": "head"}, "one of encoder, generator_state"),
        ({"scorer_max_tokens": 3}, "at least 8 tokens"),
        ({"regression_weight": 1.5}, r"a weight in \[0, 1\]"),
        ({"huber_delta": 0.0}, "a number > 0"),
        ({"hinge_margin": -0.1}, "a number >= 0"),
        ({"num_labels": 2}, "`num_labels` must be 1, the reward, got 2"),
    ],
    ids=str,
)
def test_a_wrong_checkpoint_setting_is_refused_when_it_is_made(setting, expected):
    with pytest.raises(ConfigError, match=expected):
        EGRMConfig(**setting)


def test_one_probe_is_a_ladder_too():
    options = EGRMConfig().judge_options(temperatures=[0.7])
    assert (options.num_probes, options.temperatures, options.top_ps) == (1, (0.7,), (0.95,))


def test_a_longer_ladder_keeps_a_common_nucleus_and_asks_about_different_ones():
    assert JudgeOptions().with_overrides(temperatures=[1.0] * 7).top_ps == (0.95,) * 7
    mixed = JudgeOptions(top_ps=(0.9, 0.9, 0.9, 0.9, 1.0))
    with pytest.raises(ConfigError, match=r"one value per temperature \(7\)"):
        mixed.with_overrides(temperatures=[1.0] * 7)


@pytest.mark.parametrize(
    ("kind", "consensus"),
    [
        ("pointwise", "sampled"),
        ("free", "sampled"),
        ("listwise", "sampled"),
        ("pairwise", "exact"),
        ("binary", "exact"),
    ],
)
def test_few_labels_are_judged_by_their_exact_distribution(kind, consensus):
    assert EGRMConfig().judge_options(kind).consensus == consensus
    assert EGRMConfig(consensus="sampled").judge_options(kind).consensus == "sampled"


def test_an_untrained_scorer_is_never_the_default_choice():
    parts = {"scorer_config": tiny_scorer().config}
    assert EGRMConfig().judge_options().selection == "vote"
    assert EGRMConfig(**parts).judge_options().selection == "vote"
    assert EGRMConfig(**parts, scorer_trained=True).judge_options().selection == "scorer"
    assert EGRMConfig(scorer_kind="generator_state", scorer_trained=True).judge_options().selection == "scorer"


@given(
    tau=st.floats(0, 1), chains=st.integers(1, 64), trained=st.booleans(), kind=st.sampled_from(["encoder", "generator_state"]),
    ladder=st.lists(st.floats(0, 2, allow_nan=False), min_size=1, max_size=8), seed_nucleus=st.floats(0.01, 1),
)  # fmt: skip
def test_every_configuration_survives_json(tau, chains, trained, kind, ladder, seed_nucleus):
    config = EGRMConfig(
        generator_config={"model_type": "qwen3", "hidden_size": 64},
        scorer_config={"model_type": "bert", "hidden_size": 32} if kind == "encoder" else None,
        consensus_threshold=tau, num_chains=chains, scorer_trained=trained, scorer_kind=kind,
        temperatures=ladder, top_ps=[seed_nucleus] * len(ladder), task=BINARY_TASK,
    )  # fmt: skip
    again = EGRMConfig.from_dict(json.loads(config.to_json_string(use_diff=False)))
    assert again.to_dict() == config.to_dict()
    assert again.judge_options() == config.judge_options()
    assert again.generator_config.hidden_size == 64


def test_auto_config_finds_it_and_takes_what_trainers_pass(tmp_path):
    EGRMConfig(generator_config=tiny_generator().config, num_chains=7).save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path, num_labels=1)
    assert type(config) is EGRMConfig
    assert (config.judge_options().num_chains, config.num_labels) == (7, 1)
    assert config.id2label == {0: "reward"}
    assert AutoConfig.from_pretrained(tmp_path, num_chains=3).judge_options().num_chains == 3
    with pytest.raises(ConfigError, match="num_labels"):
        AutoConfig.from_pretrained(tmp_path, num_labels=3)


def test_wrapping_the_configuration_of_a_living_model_does_not_change_that_model():
    encoder = tiny_scorer()
    ids = torch.tensor([[2, 7, 8, 3, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1, 0, 0]])
    before = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    config = EGRMConfig(scorer_config=encoder.config)
    assert config.scorer_config is not encoder.config
    assert encoder.config._attn_implementation == "sdpa"
    assert torch.equal(encoder(input_ids=ids, attention_mask=mask).last_hidden_state, before)


def test_a_checkpoint_of_version_0_1_keeps_the_defaults_it_was_saved_with():
    old = {
        "generator_config": {"model_type": "llama"},
        "ladder_temperatures": [0.5, 1.0],
        "ladder_top_ps": [0.9, 0.9],
        "num_chains": 3,
    }
    options = EGRMConfig.from_dict(old).judge_options()
    assert (options.temperatures, options.top_ps, options.num_chains) == ((0.5, 1.0), (0.9, 0.9), 3)
    assert options.verification == "spectr_gbv"  # its default then, which no configuration named
    assert EGRMConfig().judge_options().verification is None


@pytest.mark.parametrize(("name", "value"), [("vote_tolerance", 1), ("verdict_mass_floor", 0.01)])
def test_a_checkpoint_that_needs_an_option_that_is_gone_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"saved with {name}={value}"):
        EGRMConfig.from_dict({name: value})
    assert EGRMConfig.from_dict({name: 0}).judge_options() == EGRMConfig.from_dict({}).judge_options()


def test_a_saved_checkpoint_names_every_judging_default(tmp_path):
    EGRMConfig(generator_config=tiny_generator().config).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["judging"] == EGRMConfig().judging
    assert "num_chains" not in saved
