"""Configuration of an E-GRM checkpoint."""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from .errors_egrm import ConfigError, is_count, is_finite, need, need_flags
from .judge_assessor_egrm import AssessorSettings
from .judge_certificate_egrm import check_certificate
from .judge_familiar_egrm import Familiarity
from .judge_options_egrm import OPTION_NAMES, STORED_NAMES, JudgeOptions
from .prompt_task_egrm import JudgeTask
from .verdict_calibration_egrm import check_tables


SCORER_KINDS = ("encoder", "generator_state")
POOLINGS = ("last", "mean")  # of the generator's states: after a candidate's last token, or over all of its tokens

# Version 0.1 wrote judging defaults as fields of their own, two of them under other names, and only those that differed
# from its defaults. Where such a default has changed since, its checkpoints keep the old one.
_NAMES_OF_0_1 = {"ladder_temperatures": "temperatures", "ladder_top_ps": "top_ps"}
_DEFAULTS_OF_0_1 = {"verification": "spectr_gbv"}
CARD_KEYS = ("warning", "license", "language", "example")
_ADDED = ("assessor", "certificate", "calibration")  # what a checkpoint may have beside its models
_GONE_SINCE_0_1 = {"vote_tolerance": 0, "verdict_mass_floor": 0.0}


class EGRMConfig(PreTrainedConfig):
    """One checkpoint: a generator, optionally a scorer and a draft model, and how they judge.

    `task` holds the default judging task as plain data (see `JudgeTask.to_dict`): the verdict space and the token ids
    of the judge's turn, so that a judgement needs no text. `judging` holds the judging defaults as plain data, every one of
    them, so that a checkpoint judges alike when a later version has other defaults; single ones may be given by name
    (`EGRMConfig(num_chains=2)`). `base_models` are the components' Hub ids, for the model card. `card` is what else the card
    says, so that it travels with the weights: `warning` (Markdown), `license` and `language` (as the Hub spells them) and
    `example` (a record); who trains the weights for another use sets another. `familiar` is which tokens a judge that was
    trained from nothing knows (see `Familiarity.to_dict`), so that it warns of other text; None: it never does.
    `no_verdict_reward` is what `forward` gives a trainer where there is no verdict, None for NaN; a judgement's own reward
    stays NaN. `certificate` is what the owner's labels allow to be promised of the threshold, and what the promise is bound
    to; `calibration` are the tables of a result's `confidence`. `egrm calibrate` writes both. `assessor` are the sizes and
    thresholds of a part that decides before the probes (see `AssessorSettings`); `egrm train assessor` writes them.
    """

    model_type = "egrm_reward"
    sub_configs_defaults = {  # noqa: RUF012 (the base class declares it so)
        # Optional only for `EGRMConfig()`, which Transformers makes to compare with: no default generator is ever built.
        "generator_config": SubConfigSpec(config_class=AutoConfig, model_type="llama", optional=True),
        "scorer_config": SubConfigSpec(config_class=AutoConfig, model_type="bert", optional=True),
        "draft_config": SubConfigSpec(config_class=AutoConfig, model_type="llama", optional=True),
    }

    generator_config: dict | PreTrainedConfig | None = None
    scorer_config: dict | PreTrainedConfig | None = None
    draft_config: dict | PreTrainedConfig | None = None
    scorer_kind: str = "encoder"
    scorer_trained: bool = False
    scorer_pooling: str = "last"
    scorer_max_tokens: int = 512
    regression_weight: float = 0.5
    huber_delta: float = 0.1
    hinge_margin: float = 0.1
    no_verdict_reward: float | None = None
    task: dict | None = None
    judging: dict | None = None
    certificate: dict | None = None
    calibration: dict | None = None
    assessor: dict | None = None
    base_models: Sequence[str] = ()
    card: dict | None = None
    familiar: dict | None = None
    initializer_range: float = 0.02

    def __post_init__(self, **kwargs: Any) -> None:
        self._check_types()
        named = {name: kwargs.pop(name) for name in STORED_NAMES if name in kwargs}
        options = JudgeOptions().with_overrides(**_checked_names(self.judging or {}) | named)
        self.judging = options.stored()
        self.base_models = [str(name) for name in self.base_models]
        # The base class writes its own attention choice into sub-configurations. One that belongs to a living model
        # would change that model: a BERT then falls back to an attention that reads padding.
        for name in self.sub_configs_defaults:
            setattr(self, name, deepcopy(getattr(self, name)))
        if self.id2label is None:
            self.id2label, self.label2id = {0: "reward"}, {"reward": 0}
        super().__post_init__(**kwargs)
        need(self.num_labels == 1, "num_labels", self.num_labels, "1, the reward")
        need(self.scorer_kind in SCORER_KINDS, "scorer_kind", self.scorer_kind, f"one of {', '.join(SCORER_KINDS)}")
        need(self.scorer_pooling in POOLINGS, "scorer_pooling", self.scorer_pooling, f"one of {', '.join(POOLINGS)}")
        need(0 <= self.regression_weight <= 1, "regression_weight", self.regression_weight, "a weight in [0, 1]")
        need(self.huber_delta > 0, "huber_delta", self.huber_delta, "a number > 0")
        for name in ("hinge_margin", "initializer_range"):
            need(getattr(self, name) >= 0, name, getattr(self, name), "a number >= 0")
        fill = self.no_verdict_reward
        need(fill is None or is_finite(fill), "no_verdict_reward", fill, "a number, or None for NaN")
        tokens = self.scorer_max_tokens
        need(is_count(tokens) and tokens >= 8, "scorer_max_tokens", tokens, "at least 8 tokens")
        keys = f"a mapping with keys out of {', '.join(CARD_KEYS)}"
        need(set(self.card or ()) <= set(CARD_KEYS), "card", self.card, keys)
        if self.familiar is not None:
            Familiarity.from_dict(self.familiar)
        check_certificate(self.certificate)
        check_tables(self.calibration)
        if self.assessor is not None:
            AssessorSettings.from_dict(self.assessor)
        if self.task is not None:
            vocab_size = getattr(self.get_text_config().get_text_config(), "vocab_size", None)
            JudgeTask.from_dict(self.task).check_ids(math.inf if vocab_size is None else vocab_size)
        self.judge_options()

    def _check_types(self) -> None:
        # What comes from JSON may be of any type, and Python says only much later what it cannot do with it.
        numbers = {
            "regression_weight": "a weight in [0, 1]", "huber_delta": "a number > 0", "hinge_margin": "a number >= 0",
            "initializer_range": "a number >= 0",
        }  # fmt: skip
        for name, expected in numbers.items():
            need(is_finite(getattr(self, name)), name, getattr(self, name), expected)
        need_flags(self, "scorer_trained")
        for name in self.sub_configs_defaults:
            part = getattr(self, name)
            # Of a dict that does not say what it describes, Transformers would make a large default model.
            known = (
                part is None or isinstance(part, PreTrainedConfig) or (isinstance(part, dict) and "model_type" in part)
            )
            need(known, name, part, "a configuration, or its dict with a `model_type`")
        for name in ("task", "judging", "card", "familiar"):
            need(isinstance(getattr(self, name), Mapping | None), name, getattr(self, name), "a mapping, or None")
        names = self.base_models
        listed = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
        need(listed, "base_models", names, "a list of names")

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """The configuration that was saved as this data, by this version or an earlier one.

        Args:
            config_dict: What `config.json` holds.
            **kwargs: As in `PreTrainedConfig.from_dict`; judging defaults may be given by name.

        Raises:
            ConfigError: A judging default is unknown, out of range, or no longer there.
        """
        if "judging" not in config_dict:
            config_dict = _from_0_1(config_dict)
        named = {name: kwargs.pop(name) for name in STORED_NAMES if name in kwargs}
        return super().from_dict({**config_dict, **named}, **kwargs)

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """The generator's configuration: generation, caches and vocabulary size are its own."""
        return self if self.generator_config is None else self.generator_config  # pyright: ignore[reportReturnType] (built)

    def to_diff_dict(self) -> dict[str, Any]:
        """What is saved: fields that differ from the defaults, without the folders that the components came from.

        Judging defaults are saved whether they differ or not: a later version may have others.
        """
        values = super().to_diff_dict()
        for name in self.sub_configs_defaults:
            if isinstance(values.get(name), dict):
                values[name].pop("_name_or_path", None)
        # Without them a checkpoint is the same file as before there were any.
        values = {name: value for name, value in values.items() if name not in _ADDED or value is not None}
        return values | {"judging": deepcopy(self.judging)}

    def need_generator(self) -> None:
        """Refuse a configuration that no model can be made from.

        Raises:
            ConfigError: It has no generator.
        """
        if self.generator_config is None:
            raise ConfigError(
                "A reward model needs a generator, and its configuration has `generator_config: null`.",
                "Build one with `EGRMRewardModel.from_components`, or give the generator's own configuration.",
            )

    @property
    def has_scorer(self) -> bool:
        """Whether the checkpoint carries a scorer of either kind."""
        return self.scorer_config is not None or self.scorer_kind == "generator_state"

    @property
    def longest_prompt(self) -> int | None:
        """Tokens of the longest prompt after which a verdict or a chain still fits; None: the context is not known."""
        context, room = self.context, self.judge_options().room
        return context - room if context is not None and context > room else None

    @property
    def context(self) -> int | None:
        """Positions the generator knows; None: that is not known."""
        return getattr(self.get_text_config().get_text_config(), "max_position_embeddings", None)

    def judge_options(self, kind: str | None = None, **overrides: Any) -> JudgeOptions:
        """The checkpoint's judging defaults, with overrides; nothing in them is left to be decided.

        Args:
            kind: Kind of verdict space judged, by default the checkpoint's own. It fixes the default of `consensus`:
                exact for pairwise and binary, where five coin flips would reach 0.8 in 37.5 % of cases, else sampled.
            **overrides: Fields of `JudgeOptions`.

        Raises:
            ConfigError: A name is unknown or a value out of range.
        """
        kind = kind or (self.task or {}).get("space", {}).get("kind", "pointwise")
        options = JudgeOptions().with_overrides(**_checked_names(self.judging or {})).with_overrides(**overrides)
        scorer = self.has_scorer and self.scorer_trained
        return options.resolved(kind, scorer=scorer, draft=self.draft_config is not None)

    def set_judging(self, **overrides: Any) -> None:
        """Change judging defaults.

        Args:
            **overrides: Fields of `JudgeOptions` that a checkpoint stores.

        Raises:
            ConfigError: A name is unknown, belongs to a call, or a value is out of range.
        """
        options = JudgeOptions().with_overrides(**self.judging or {})
        self.judging = options.with_overrides(**_checked_names(overrides)).stored()


def _checked_names(judging: Mapping[str, Any]) -> dict[str, Any]:
    if call_only := sorted(set(judging) & OPTION_NAMES - set(STORED_NAMES)):
        raise ConfigError(f"{call_only} belong to a call, and no checkpoint stores them.", "Pass them to `judge`.")
    return dict(judging)


def _from_0_1(values: Mapping[str, Any]) -> dict[str, Any]:
    values, judging = dict(values), dict(_DEFAULTS_OF_0_1)
    for name, neutral in _GONE_SINCE_0_1.items():
        value = values.pop(name, neutral)
        if value != neutral:
            raise ConfigError(
                f"The checkpoint was saved with {name}={value!r}, an option that version 0.2 no longer has.",
                f"Judge it with version 0.1, or set {name} to {neutral!r} in its config.json and judge anew.",
            )
    for name in (*_NAMES_OF_0_1, *STORED_NAMES):
        if name in values:
            judging[_NAMES_OF_0_1.get(name, name)] = values.pop(name)
    return values | {"judging": judging}


__all__ = ["EGRMConfig", "JudgeOptions"]
