"""How a judgement is made: `JudgeOptions`, in groups that each stage can hold alone.

A checkpoint stores the groups as data (`EGRMConfig.judging`); what belongs to one call only (`CallOptions`) it does not.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from .draft_verification_egrm import METHODS, rule_of
from .errors_egrm import ConfigError


DECODERS = ("auto", "star", "expand", "first_token")
SELECTIONS = ("scorer", "vote", "likelihood")
PATHS = ("auto", "short", "long")
DRAFTINGS = ("none", "auto", "model", "layers", "ngram")
EXACT_KINDS = (
    "pairwise",
    "binary",
)  # two verdicts: five coin flips would reach an agreement of 0.8 in 37.5 % of cases


@dataclass(frozen=True, kw_only=True)
class LadderOptions:
    """The M probes and what each may write.

    Source:
        https://huggingface.co/papers/2604.10072, section 3.
    """

    temperatures: tuple[float, ...] = (0.6, 0.7, 0.8, 0.9, 1.0)
    """Sampling temperature of each rung, at least 0 (0 is greedy)."""
    top_ps: tuple[float, ...] = (0.95, 0.95, 0.95, 0.95, 0.95)
    """Nucleus mass of each rung, in (0, 1]."""
    num_probes: int | None = None
    """M, how many of the ladder's first rungs are drawn; by default all. A number in resolved options."""
    max_probe_tokens: int = 8
    """Budget of a short verdict, in new tokens."""
    probe_vocabulary: str = "full"
    """`full`: any token may be sampled (the paper). `verdict`: only the verdict space's own tokens."""
    early_stop: bool = True
    """Stop probes once their outcome cannot change. Never changes a route or a reward; consensus is then a bound."""

    def __post_init__(self) -> None:
        rungs = len(self.temperatures)
        need(rungs >= 1, "temperatures", self.temperatures, "at least one temperature")
        need(
            all(is_finite(t) and t >= 0 for t in self.temperatures), "temperatures", self.temperatures, "numbers >= 0"
        )
        need(len(self.top_ps) == rungs, "top_ps", self.top_ps, f"one value per temperature ({rungs})")
        need(all(0 < p <= 1 for p in self.top_ps), "top_ps", self.top_ps, "values in (0, 1]")
        need(self.num_probes is None or _is_count(self.num_probes, most=rungs), "num_probes", self.num_probes,
             f"an integer from 1 to the ladder's {rungs} rungs, or None for all")  # fmt: skip
        need(_is_count(self.max_probe_tokens), "max_probe_tokens", self.max_probe_tokens, "an integer >= 1")
        _need_one_of(self, probe_vocabulary=("full", "verdict"))


@dataclass(frozen=True, kw_only=True)
class ConsensusOptions:
    """What the probes' agreement decides.

    Source:
        tau: https://huggingface.co/papers/2604.10072, section 3; exact consensus is ours (docs/design.md).
    """

    consensus: str | None = None
    """`sampled`: share of the most frequent probe verdict. `exact`: largest ladder-averaged verdict probability. By default
    exact for pairwise and binary verdicts, else sampled."""
    consensus_threshold: float = 0.8
    """tau, in [0, 1]: at or above it the short path is taken."""
    reward: str = "verdict"
    """`verdict`: the chosen verdict's reward. `expected`: mean reward under the exact verdict distribution."""

    def __post_init__(self) -> None:
        tau = self.consensus_threshold
        need(is_finite(tau) and 0 <= tau <= 1, "consensus_threshold", tau, "a share in [0, 1], for example 0.8")
        _need_one_of(self, consensus=(None, "sampled", "exact"), reward=("verdict", "expected"))


@dataclass(frozen=True, kw_only=True)
class ChainOptions:
    """The K chains of the long path, and who chooses among them."""

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
    selection: str | None = None
    """Who picks among the candidates: `scorer`, `vote` or `likelihood`. By default the scorer where the checkpoint has a
    trained one, else the vote."""

    def __post_init__(self) -> None:
        for name in ("num_chains", "max_chain_tokens"):
            need(_is_count(getattr(self, name)), name, getattr(self, name), "an integer >= 1")
        temperature = self.chain_temperature
        need(is_finite(temperature) and temperature >= 0, "chain_temperature", temperature, "a number >= 0")
        need(0 < self.chain_top_p <= 1, "chain_top_p", self.chain_top_p, "a value in (0, 1]")
        _need_one_of(self, selection=(None, *SELECTIONS))


@dataclass(frozen=True, kw_only=True)
class DraftingOptions:
    """Who drafts chains, whose law stays the same, and how drafts are verified."""

    drafting: str | None = None
    """`none`, `model` (the checkpoint's draft), `layers` (the generator's first ones), `ngram` (the text so far); `auto`: the
    checkpoint's draft where a short trial on this machine shows that it saves time, so that the texts drawn may differ from
    machine to machine. By default the checkpoint's draft where it has one, else none."""
    verification: str | None = None
    """`sd`, `bv`, `gbv` (one draft), `spectr`, `spectr_gbv`, `md_bv` or `md_bv_plus`. By default the fastest for the number
    of drafts, see docs/speculative.md."""
    num_drafts: int | None = None
    """S, drafts of each chain at a time; by default 4, or 1 where drafting or verification know only one."""
    draft_length: int = 8
    """L, tokens of a draft, at least 1."""
    draft_layers: int = 2
    """With drafting `layers`: how many of the generator's layers."""
    draft_ngram: int = 3
    """With drafting `ngram`: how many last tokens are looked up at most."""

    def __post_init__(self) -> None:
        for name in ("draft_length", "draft_layers", "draft_ngram"):
            need(_is_count(getattr(self, name)), name, getattr(self, name), "an integer >= 1")
        _need_one_of(self, drafting=(None, *DRAFTINGS), verification=(None, *METHODS))
        if self.num_drafts is not None:
            need(_is_count(self.num_drafts), "num_drafts", self.num_drafts, "an integer >= 1, or None")
            if self.drafting != "none" and self.verification is not None:
                rule_of(self.verification, self.num_drafts)
            need(self.drafting != "ngram" or self.num_drafts == 1, "num_drafts", self.num_drafts,
                 "1 with drafting='ngram': looked-up drafts are all alike")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """What belongs to one call, and no checkpoint stores."""

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
        _need_one_of(self, path=PATHS, decoder=DECODERS)
        need(self.timeout_s is None or self.timeout_s > 0, "timeout_s", self.timeout_s, "seconds > 0, or None")


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(LadderOptions, ConsensusOptions, ChainOptions, DraftingOptions, CallOptions):
    """How one call judges. All but `CallOptions` have their defaults in the checkpoint; None is decided by it too."""

    def __post_init__(self) -> None:
        for group in GROUPS:
            group.__post_init__(self)
        need(self.drafting in (None, "none") or self.decoder != "expand", "decoder", self.decoder,
             "another one with a draft, for example auto: drafts are run after one prompt")  # fmt: skip

    def with_overrides(self, **overrides: Any) -> "JudgeOptions":
        """A copy with some fields replaced; unknown names are refused.

        Raises:
            ConfigError: A name is unknown or a value out of range.
        """
        unknown = sorted(set(overrides) - OPTION_NAMES)
        if unknown:
            known = ", ".join(sorted(OPTION_NAMES))
            raise ConfigError(f"Unknown judging option {unknown}.", f"Known options: {known}.")
        for name in ("temperatures", "top_ps"):
            if overrides.get(name) is not None:
                overrides[name] = tuple(float(value) for value in overrides[name])
        # A shorter or longer ladder keeps the nucleus mass when all its rungs share one, and is drawn as a whole.
        if "temperatures" in overrides:
            if "top_ps" not in overrides and len(set(self.top_ps)) == 1:
                overrides["top_ps"] = self.top_ps[:1] * len(overrides["temperatures"])
            overrides.setdefault("num_probes", None)
        return replace(self, **overrides)

    def resolved(self, kind: str, *, scorer: bool, draft: bool) -> "JudgeOptions":
        """The options with every None that a checkpoint decides decided.

        Args:
            kind: Kind of the verdict space.
            scorer: Whether there is a trained scorer.
            draft: Whether there is a draft model.
        """
        return replace(
            self,
            num_probes=self.num_probes or len(self.temperatures),
            consensus=self.consensus or ("exact" if kind in EXACT_KINDS else "sampled"),
            selection=self.selection or ("scorer" if scorer else "vote"),
            drafting=self.drafting or ("model" if draft else "none"),
        )

    def stored(self) -> dict[str, Any]:
        """What a checkpoint keeps, ready for JSON."""
        values = {name: getattr(self, name) for name in STORED_NAMES}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


GROUPS = (LadderOptions, ConsensusOptions, ChainOptions, DraftingOptions, CallOptions)
OPTION_NAMES = frozenset(field.name for field in fields(JudgeOptions))
STORED_NAMES = tuple(field.name for group in GROUPS[:-1] for field in fields(group))


def is_finite(value: object) -> bool:
    """Whether a value is a number, and neither infinite nor NaN."""
    return isinstance(value, int | float) and math.isfinite(value)


def need(holds: bool, name: str, value: object, expected: str) -> None:
    """Refuse a setting unless `holds`.

    Raises:
        ConfigError: It does not.
    """
    if not holds:
        raise ConfigError(f"`{name}` must be {expected}, got {value!r}.")


def _is_count(value: object, most: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _need_one_of(options: object, **allowed: tuple[str | None, ...]) -> None:
    for name, values in allowed.items():
        words = ", ".join(value for value in values if value is not None)
        need(getattr(options, name) in values, name, getattr(options, name), f"one of {words}")


__all__ = [
    "ChainOptions",
    "ConsensusOptions",
    "DraftingOptions",
    "JudgeOptions",
    "LadderOptions",
    "need",
]
