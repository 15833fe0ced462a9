"""What a configuration leaves out, where one's own labels or the model to start from say it better than a fixed default.

The outcome is a whole configuration, and a run's folder keeps it: a later call with the same words makes the same one.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig

from transformers_egrm.bundle import folder_of
from transformers_egrm.modeling.configuration_egrm import EGRMConfig
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.processing_egrm import EGRMProcessor
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace
from transformers_egrm.training.config import DataConfig
from transformers_egrm.training.config.reading import read_section
from transformers_egrm.training.labelled import Labels, is_verdicts, read_labels


_INHERITED = ("temperatures", "top_ps", "max_probe_tokens", "probe_vocabulary", "num_chains", "chain_temperature",
              "chain_top_p", "max_chain_tokens")  # fmt: skip
"""Judging options that a judge goes on with when it is trained further."""
_BATCH, _PASSES, _MOST_STEPS = 16, 3, 3000


def complete(values: Any) -> Any:
    """A configuration's plain data with what labels and model decide filled in; what it says itself stays.

    Args:
        values: As `read_config` takes it.

    Raises:
        ConfigError: The labels, or the model, cannot be read.
    """
    if not isinstance(values, Mapping):
        return values  # for `read_config` to refuse
    filled: dict[str, Any] = copy.deepcopy(dict(values))
    data = filled.get("data")
    labelled = isinstance(data, dict) and data.get("labelled") is not None
    if labelled:
        config: DataConfig = read_section(DataConfig, data, "data")
        _from_labels(filled, read_labels(config), config)
    path = _get(filled, "generator").get("path")
    if isinstance(path, str):
        _from_model(filled, path, labelled)
    return filled


def _get(values: Mapping[str, Any], section: str) -> dict[str, Any]:
    found = values.get(section)
    return found if isinstance(found, dict) else {}


def _fill(values: dict[str, Any], section: str, **defaults: Any) -> None:
    own = values.setdefault(section, {})
    if isinstance(own, dict):
        for name, value in defaults.items():
            own.setdefault(name, value)


def _from_labels(values: dict[str, Any], labels: Labels, data: DataConfig) -> None:
    judge = _get(values, "judge")
    found = labels.judge()
    space = judge.get("space", found["space"])
    if space == found["space"] and not {"low", "high"} & judge.keys():
        _fill(values, "judge", **found)
    _fill(values, "judge", space=space)
    judge = _get(values, "judge")
    low, high = (judge.get("low", 0), judge.get("high", 10)) if space == "pointwise" else (0, 1)
    truths = labels.truths
    fits = is_verdicts(truths) and low <= truths[0] and truths[-1] <= high
    if space != "pairwise" and not fits:
        _fill(values, "data", score_range=[truths[0], truths[-1]])
    count = sum(len(question.pairs if space == "pairwise" else question.responses) for question in labels.questions)
    rows = max(1, round(count * (1 - data.calibration_share - data.test_share)))
    steps = min(_MOST_STEPS, max(20, math.ceil(_PASSES * 2 * rows / _BATCH)))
    _fill(values, "sft", bootstrap_steps=steps, round_steps=max(6, steps // 3), batch_size=_BATCH,
          logging_steps=5, save_steps=50)  # fmt: skip
    _fill(values, "scorer", groups_per_step=8, logging_steps=5, save_steps=50)
    # Reinforcement learning is a choice: it costs more than the rest together.
    _fill(values, "grpo", steps=0)
    _fill(values, "evaluation", batch_size=_BATCH)


def _from_model(values: dict[str, Any], path: str, labelled: bool) -> None:
    folder = folder_of(path)
    try:
        config: Any = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"`generator.path` must hold a causal LM or an E-GRM checkpoint, got {path!r}: {reason}",
                          "Name egrm-mini, a folder or a Hub id.") from error  # fmt: skip
    is_judge = isinstance(config, EGRMConfig) or config.model_type == "egrm_reward"
    if is_judge:
        _from_judge(values, folder)
        config = config.generator_config
    if not labelled:
        return
    rates = {"learning_rate": 5e-4, "round_learning_rate": 2e-4} if is_judge else {
        "learning_rate": 2e-4, "round_learning_rate": 1e-4, "lora": {}}  # fmt: skip
    _fill(values, "sft", **rates)
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    if context is not None and context < 1024:  # a chain of the usual length would leave no room for a prompt
        _fill(values, "judge", options={})
        options = _get(values, "judge")["options"]
        if isinstance(options, dict):
            options.setdefault("max_chain_tokens", context // 4)


def _from_judge(values: dict[str, Any], folder: str) -> None:
    # A judge goes on as it judged: its ladder and chains, and its rubric where the verdicts are still the same.
    processor: Any = EGRMProcessor.from_pretrained(folder)
    options: Any = EGRMConfig.from_pretrained(folder)
    judge = _get(values, "judge")
    space = {name: judge.get(name, getattr(VerdictSpace(), default)) for name, default in
             (("space", "kind"), ("low", "low"), ("high", "high"))}  # fmt: skip
    kept = processor.space
    if (space["space"], space["low"], space["high"]) == (kept.kind, kept.low, kept.high):
        _fill(values, "judge", rubric=processor.rubric)
    _fill(values, "judge", options={})
    own = _get(values, "judge")["options"]
    if isinstance(own, dict):
        judging = options.judge_options()
        for name in _INHERITED if "temperatures" not in own else _INHERITED[2:]:
            value = getattr(judging, name)
            own.setdefault(name, list(value) if isinstance(value, tuple) else value)


__all__ = ["complete"]
