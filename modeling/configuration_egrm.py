"""Configuration of an E-GRM checkpoint, and the options of one judging call."""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from typing import Any

from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from .draft_verification_egrm import METHODS, rule_of
from .errors_egrm import ConfigError


DECODERS = ("auto", "star", "expand", "first_token")
SELECTIONS = ("scorer", "vote", "likelihood")
PATHS = ("auto", "short", "long")
DRAFTINGS = ("none", "auto", "model", "layers", "ngram")
SCORER_KINDS = ("encoder", "generator_state")
POOLINGS = ("last", "mean")  # of the generator's states: behind a candidate's last token, or over all of its tokens


@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """How one call judges. The fields up to `early_stop` have their defaults in the checkpoint.

    Source:
        M, tau, the ladder and the short path: https://huggingface.co/papers/2604.10072, section 3.
    """

    temperatures: tuple[float, ...] = (0.6, 0.7, 0.8, 0.9, 1.0)
    """Sampling temperature of each probe, at least 0 (0 is greedy); its length is M."""
    top_ps: tuple[float, ...] = (0.95, 0.95, 0.95, 0.95, 0.95)
    """Nucleus mass of each probe, in (0, 1]."""
    consensus_threshold: float = 0.8
    """tau, in [0, 1]: at or above it the short path is taken."""
    vote_tolerance: int = 0
    """Ordinal verdict spaces: neighbours at most this far away count as agreement."""
    max_probe_tokens: int = 8
    """Budget of a short verdict, in new tokens."""
    probe_vocabulary: str = "full"
    """`full`: any token may be sampled (the paper). `verdict`: only the verdict space's own tokens."""
    consensus: str = "sampled"
    """`sampled`: share of the most frequent probe verdict. `exact`: largest ladder-averaged verdict probability."""
    reward: str = "verdict"
    """`verdict`: the chosen verdict's reward. `expected`: mean reward under the exact verdict distribution."""
    verdict_mass_floor: float = 0.0
    """Where the unrestricted mass on the verdict space is known and below this share, the status is `no_verdict`."""
    num_chains: int = 4
    """K, chains of thought on the long path, at least 1."""
    chain_temperature: float = 0.8
    """Sampling temperature of every chain, at least 0."""
    chain_top_p: float = 0.95
    """Nucleus mass of every chain, in (0, 1]."""
    max_chain_tokens: int = 256
    """Budget of one chain, in new tokens."""
    reuse_probes: bool = True
    """Whether the probes are candidates on the long path too, as the paper has it."""
    selection: str = "vote"
    """Who picks among the candidates: `scorer`, `vote` or `likelihood`."""
    drafting: str = "none"
    """Who drafts chains, whose law stays the same: `none`, `model` (the checkpoint's draft), `layers` (the generator's first ones), `ngram` (the text so far); `auto`: the checkpoint's draft where a short trial on this machine shows that it saves time, so that the texts drawn may differ from machine to machine."""
    verification: str = "spectr_gbv"
    """How drafts are verified: `sd`, `bv`, `gbv` (one draft), `spectr`, `spectr_gbv`, `md_bv` or `md_bv_plus`."""
    num_drafts: int | None = None
    """S, drafts of each chain at a time; by default 4, or 1 where drafting or verification know only one."""
    draft_length: int = 8
    """L, tokens of a draft, at least 1."""
    draft_layers: int = 2
    """With drafting `layers`: how many of the generator's layers."""
    draft_ngram: int = 3
    """With drafting `ngram`: how many last tokens are looked up at most."""
    early_stop: bool = True
    """Stop probes once their outcome cannot change. Never changes a route or a reward; consensus is then a bound."""
    path: str = "auto"
    """`auto`: consensus decides. `short`: the most frequent verdict always counts. `long`: no probes, always chains."""
    decoder: str = "auto"
    """Probe decoder: `star`, `expand`, `first_token`, or `auto`, the cheapest that is exact for this model."""
    seed: int = 0
    """Seed of all random numbers; with the item id it fixes every draw."""
    strict: bool = False
    """Compute every item alone and in fixed shapes: exact equality whatever the batch."""
    timeout_s: float | None = None
    """Deadline per item, in seconds; an item that misses it has status `timeout`."""

    def __post_init__(self) -> None:
        _need(len(self.temperatures) >= 1, "temperatures", self.temperatures, "at least one temperature")
        _need(all(_finite(t) and t >= 0 for t in self.temperatures), "temperatures", self.temperatures, "numbers >= 0")
        _need(len(self.top_ps) == len(self.temperatures), "top_ps", self.top_ps,
              f"one value per temperature ({len(self.temperatures)})")  # fmt: skip
        _need(all(0 < p <= 1 for p in self.top_ps), "top_ps", self.top_ps, "values in (0, 1]")
        _need(_finite(self.consensus_threshold) and 0 <= self.consensus_threshold <= 1, "consensus_threshold",
              self.consensus_threshold, "a share in [0, 1], for example 0.8")  # fmt: skip
        _need(self.vote_tolerance >= 0, "vote_tolerance", self.vote_tolerance, "an integer >= 0")
        for name in (
            "max_probe_tokens",
            "num_chains",
            "max_chain_tokens",
            "draft_length",
            "draft_layers",
            "draft_ngram",
        ):
            value = getattr(self, name)
            _need(isinstance(value, int) and value >= 1, name, value, "an integer >= 1")
        _need(_finite(self.chain_temperature) and self.chain_temperature >= 0, "chain_temperature",
              self.chain_temperature, "a number >= 0")  # fmt: skip
        _need(0 < self.chain_top_p <= 1, "chain_top_p", self.chain_top_p, "a value in (0, 1]")
        _need(0 <= self.verdict_mass_floor <= 1, "verdict_mass_floor", self.verdict_mass_floor, "a share in [0, 1]")
        for name, allowed in (
            ("probe_vocabulary", ("full", "verdict")),
            ("consensus", ("sampled", "exact")),
            ("reward", ("verdict", "expected")),
            ("selection", SELECTIONS),
            ("path", PATHS),
            ("decoder", DECODERS),
            ("drafting", DRAFTINGS),
            ("verification", tuple(METHODS)),
        ):
            _need(getattr(self, name) in allowed, name, getattr(self, name), f"one of {', '.join(allowed)}")
        if self.num_drafts is not None:
            _need(isinstance(self.num_drafts, int) and self.num_drafts >= 1, "num_drafts", self.num_drafts,
                  "an integer >= 1, or None")  # fmt: skip
            if self.drafting != "none":
                rule_of(self.verification, self.num_drafts)
            _need(self.drafting != "ngram" or self.num_drafts == 1, "num_drafts", self.num_drafts,
                  "1 with drafting='ngram': looked-up drafts are all alike")  # fmt: skip
        _need(self.drafting == "none" or self.decoder != "expand", "decoder", self.decoder,
              "another one with a draft, for example auto: drafts are run behind one prompt")  # fmt: skip
        _need(self.timeout_s is None or self.timeout_s > 0, "timeout_s", self.timeout_s, "seconds > 0, or None")

    @property
    def num_probes(self) -> int:
        """M, the number of probes of one prompt."""
        return len(self.temperatures)

    def with_overrides(self, **overrides: Any) -> "JudgeOptions":
        """A copy with some fields replaced; unknown names are refused.

        Raises:
            ConfigError: A name is unknown or a value out of range.
        """
        known = {field.name for field in fields(self)}
        unknown = sorted(set(overrides) - known)
        if unknown:
            raise ConfigError(f"Unknown judging option {unknown}.", f"Known options: {', '.join(sorted(known))}.")
        for name in ("temperatures", "top_ps"):
            if overrides.get(name) is not None:
                overrides[name] = tuple(float(value) for value in overrides[name])
        # A shorter or longer ladder keeps the nucleus mass when all its rungs share one.
        if "temperatures" in overrides and "top_ps" not in overrides and len(set(self.top_ps)) == 1:
            overrides["top_ps"] = self.top_ps[:1] * len(overrides["temperatures"])
        return replace(self, **overrides)


class EGRMConfig(PreTrainedConfig):
    """One checkpoint: a generator, optionally a scorer and a draft model, and how they judge.

    `task` holds the default judging task as plain data (see `JudgeTask.to_dict`): the verdict space and the token ids
    of the judge's turn, so that a judgement needs no text. `base_models` are the components' Hub ids, for the model
    card. The other fields are the defaults of `JudgeOptions`.
    """

    model_type = "egrm_reward"
    sub_configs_defaults = {  # noqa: RUF012 (the base class declares it so)
        "generator_config": SubConfigSpec(config_class=AutoConfig, model_type="llama"),
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
    task: dict | None = None
    base_models: Sequence[str] = ()
    ladder_temperatures: Sequence[float] = (0.6, 0.7, 0.8, 0.9, 1.0)
    ladder_top_ps: Sequence[float] = (0.95, 0.95, 0.95, 0.95, 0.95)
    consensus_threshold: float = 0.8
    vote_tolerance: int = 0
    max_probe_tokens: int = 8
    probe_vocabulary: str = "full"
    consensus: str | None = None
    reward: str = "verdict"
    verdict_mass_floor: float = 0.0
    num_chains: int = 4
    chain_temperature: float = 0.8
    chain_top_p: float = 0.95
    max_chain_tokens: int = 256
    reuse_probes: bool = True
    selection: str | None = None
    drafting: str | None = None
    verification: str = "spectr_gbv"
    num_drafts: int | None = None
    draft_length: int = 8
    draft_layers: int = 2
    draft_ngram: int = 3
    early_stop: bool = True
    initializer_range: float = 0.02

    def __post_init__(self, **kwargs: Any) -> None:
        self.ladder_temperatures = [float(value) for value in self.ladder_temperatures]
        self.ladder_top_ps = [float(value) for value in self.ladder_top_ps]
        self.base_models = [str(name) for name in self.base_models]
        # The base class writes its own attention choice into sub-configurations. One that belongs to a living model
        # would change that model: a BERT then falls back to an attention that reads padding.
        for name in self.sub_configs_defaults:
            setattr(self, name, deepcopy(getattr(self, name)))
        if self.id2label is None:
            self.id2label, self.label2id = {0: "reward"}, {"reward": 0}
        super().__post_init__(**kwargs)
        _need(self.num_labels == 1, "num_labels", self.num_labels, "1, the reward")
        _need(self.scorer_kind in SCORER_KINDS, "scorer_kind", self.scorer_kind, f"one of {', '.join(SCORER_KINDS)}")
        _need(self.scorer_pooling in POOLINGS, "scorer_pooling", self.scorer_pooling, f"one of {', '.join(POOLINGS)}")
        _need(0 <= self.regression_weight <= 1, "regression_weight", self.regression_weight, "a weight in [0, 1]")
        _need(self.huber_delta > 0, "huber_delta", self.huber_delta, "a number > 0")
        _need(self.hinge_margin >= 0, "hinge_margin", self.hinge_margin, "a number >= 0")
        _need(self.scorer_max_tokens >= 8, "scorer_max_tokens", self.scorer_max_tokens, "at least 8 tokens")
        self.judge_options()

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """The generator's configuration: generation, caches and vocabulary size are its own."""
        return self.generator_config  # pyright: ignore[reportReturnType] (the base class has built it by now)

    def to_diff_dict(self) -> dict[str, Any]:
        """What is saved: fields that differ from the defaults, without the folders that the components came from."""
        values = super().to_diff_dict()
        for name in self.sub_configs_defaults:
            if isinstance(values.get(name), dict):
                values[name].pop("_name_or_path", None)
        return values

    @property
    def has_scorer(self) -> bool:
        """Whether the checkpoint carries a scorer of either kind."""
        return self.scorer_config is not None or self.scorer_kind == "generator_state"

    def judge_options(self, kind: str | None = None, **overrides: Any) -> JudgeOptions:
        """The checkpoint's judging defaults, with overrides.

        Args:
            kind: Kind of verdict space judged, by default the checkpoint's own. It fixes the default of `consensus`:
                exact for pairwise and binary, where five coin flips would reach 0.8 in 37.5 % of cases, else sampled.
            **overrides: Fields of `JudgeOptions`.

        Raises:
            ConfigError: A name is unknown or a value out of range.
        """
        kind = kind or (self.task or {}).get("space", {}).get("kind", "pointwise")
        options = JudgeOptions(
            temperatures=tuple(self.ladder_temperatures),
            top_ps=tuple(self.ladder_top_ps),
            consensus_threshold=self.consensus_threshold,
            vote_tolerance=self.vote_tolerance,
            max_probe_tokens=self.max_probe_tokens,
            probe_vocabulary=self.probe_vocabulary,
            consensus=self.consensus or ("exact" if kind in ("pairwise", "binary") else "sampled"),
            reward=self.reward,
            verdict_mass_floor=self.verdict_mass_floor,
            num_chains=self.num_chains,
            chain_temperature=self.chain_temperature,
            chain_top_p=self.chain_top_p,
            max_chain_tokens=self.max_chain_tokens,
            reuse_probes=self.reuse_probes,
            selection=self.selection or ("scorer" if self.has_scorer and self.scorer_trained else "vote"),
            drafting=self.drafting or ("none" if self.draft_config is None else "model"),
            verification=self.verification,
            num_drafts=self.num_drafts,
            draft_length=self.draft_length,
            draft_layers=self.draft_layers,
            draft_ngram=self.draft_ngram,
            early_stop=self.early_stop,
        )
        return options.with_overrides(**overrides)


def _finite(value: float) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _need(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise ConfigError(f"`{name}` must be {expected}, got {value!r}.")


__all__ = ["EGRMConfig", "JudgeOptions"]
