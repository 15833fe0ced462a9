"""How a judgement is made: `JudgeOptions`, in groups that each stage can hold alone.

A checkpoint stores the groups as data (`EGRMConfig.judging`); what belongs to one call only (`CallOptions`) it does not.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any

from .draft_options_egrm import DraftingOptions
from .errors_egrm import ConfigError, is_count, is_finite, need, need_flags, need_one_of
from .verdict_consensus_egrm import SHARE_SLACK


DECODERS = ("auto", "star", "expand", "first_token")
SELECTIONS = ("scorer", "vote", "likelihood")
PATHS = ("auto", "short", "long")
REWARDS = ("verdict", "expected", "risk_adjusted")
LEAST_BETA = 1e-6
NEVER_SHORT = 2.0  # as tau: no agreement reaches it
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
        for name in ("temperatures", "top_ps"):
            need(isinstance(getattr(self, name), tuple), name, getattr(self, name), "a tuple of numbers, one per rung")
        rungs = len(self.temperatures)
        need(rungs >= 1, "temperatures", self.temperatures, "at least one temperature")
        need(
            all(is_finite(t) and t >= 0 for t in self.temperatures), "temperatures", self.temperatures, "numbers >= 0"
        )
        need(len(self.top_ps) == rungs, "top_ps", self.top_ps, f"one value per temperature ({rungs})")
        need(all(is_finite(p) and 0 < p <= 1 for p in self.top_ps), "top_ps", self.top_ps, "values in (0, 1]")
        need(self.num_probes is None or is_count(self.num_probes, most=rungs), "num_probes", self.num_probes,
             f"an integer from 1 to the ladder's {rungs} rungs, or None for all")  # fmt: skip
        need(is_count(self.max_probe_tokens), "max_probe_tokens", self.max_probe_tokens, "an integer >= 1")
        need_flags(self, "early_stop")
        need_one_of(self, probe_vocabulary=("full", "verdict"))


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
    """tau, in [0, 1]: at or above it the short path is taken. 2 keeps everything on the long path (`NEVER_SHORT`)."""
    reward: str = "verdict"
    """Reward of the short path. `verdict`: the chosen verdict's. `expected`: the mean under the exact verdict distribution.
    `risk_adjusted`: its risk-adjusted value. On the long path the chosen verdict's reward counts."""
    risk_beta: float = -1.0
    """beta of the risk-adjusted value beta * log E exp(r / beta), in units of the reward: averse to risk below 0, seeking
    it above, the mean where beta is large."""
    abstain_below: float | None = None
    """Support below which there is no reward and the status is `abstained`: of the consensus on the short path, of the
    share of chains that state the chosen verdict on the long one. By default nothing abstains."""

    def __post_init__(self) -> None:
        tau, beta, floor = self.consensus_threshold, self.risk_beta, self.abstain_below
        fits = is_finite(tau) and (0 <= tau <= 1 or tau == NEVER_SHORT)
        need(fits, "consensus_threshold", tau, "a share in [0, 1], for example 0.8")
        need(is_finite(beta) and abs(beta) >= LEAST_BETA, "risk_beta", beta,
             f"a finite number of at least {LEAST_BETA} below or above 0 (the mean itself is reward='expected')")  # fmt: skip
        need(floor is None or (is_finite(floor) and 0 < floor <= 1), "abstain_below", floor,
             "a share above 0 and at most 1, or None")  # fmt: skip
        need_one_of(self, consensus=(None, "sampled", "exact"), reward=REWARDS)

    @property
    def needs_distribution(self) -> bool:
        """Whether the exact distribution of verdicts has to be read; in resolved options."""
        return self.consensus == "exact" or self.reward != "verdict"


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
            need(is_count(getattr(self, name)), name, getattr(self, name), "an integer >= 1")
        temperature = self.chain_temperature
        need(is_finite(temperature) and temperature >= 0, "chain_temperature", temperature, "a number >= 0")
        nucleus = self.chain_top_p
        need(is_finite(nucleus) and 0 < nucleus <= 1, "chain_top_p", nucleus, "a value in (0, 1]")
        need_flags(self, "reuse_probes")
        need_one_of(self, selection=(None, *SELECTIONS))


@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """What belongs to one call, and no checkpoint stores."""

    path: str = "auto"
    """`auto`: consensus decides. `short`: the most frequent verdict always counts. `long`: no probes, always chains."""
    decoder: str = "auto"
    """Probe decoder: `star`, `expand`, `first_token`, or `auto`, the cheapest that is exact for this model."""
    seed: int = 0
    """Seed of all random numbers; with the item id it fixes every draw."""
    seed_by: str = "id"
    """What tells the draws of two items apart. `id`: the record's id, or the text where it has none. `text`: a hash of the
    prompt's tokens, so that one text is judged alike under every id."""
    strict: bool = False
    """Compute every item alone and in fixed shapes: exact equality whatever the batch."""
    timeout_s: float | None = None
    """Deadline per item, in seconds; an item that misses it has status `timeout`."""
    assess: bool = True
    """Whether the checkpoint's assessor decides before the probes, where it has one that does. False: every item is probed."""
    audit_share: float = 0.0
    """Share of the items whose probes agreed, chosen by a hash of id and seed, that are judged by chains too. They keep the
    short path's reward; the result's `audit_verdict` is what `path="long"` says."""

    def __post_init__(self) -> None:
        need_one_of(self, path=PATHS, decoder=DECODERS, seed_by=("id", "text"))
        need_flags(self, "strict", "assess")
        need(isinstance(self.seed, int) and not isinstance(self.seed, bool), "seed", self.seed, "an integer")
        audited = self.audit_share
        need(is_finite(audited) and 0 <= audited <= 1, "audit_share", audited, "a share in [0, 1], for example 0.05")
        timeout = self.timeout_s
        need(timeout is None or (is_finite(timeout) and timeout > 0), "timeout_s", timeout, "seconds > 0, or None")


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
        overrides = {name: _plain(value) for name, value in overrides.items()}
        for name in ("temperatures", "top_ps"):
            if name in overrides:
                overrides[name] = _rungs(name, overrides[name])
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

    def abstains(self, support: Any) -> Any:
        """Whether a verdict has too few votes for a reward, whatever the rounding of either share.

        Args:
            support: Share of the votes, or a tensor of shares.
        """
        return support < (0.0 if self.abstain_below is None else self.abstain_below - SHARE_SLACK)

    @property
    def room(self) -> int:
        """Most new tokens that may follow a prompt."""
        chains = 0 if self.path == "short" else self.max_chain_tokens
        probes = 0 if self.path == "long" else self.max_probe_tokens
        return max(chains, probes)

    def stored(self) -> dict[str, Any]:
        """What a checkpoint keeps, ready for JSON."""
        values = {name: getattr(self, name) for name in STORED_NAMES}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _plain(value: Any) -> Any:
    # NumPy's scalars are as good as Python's, but JSON knows only the latter.
    if isinstance(value, bool | int | float) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def _rungs(name: str, values: Any) -> tuple[float, ...]:
    expected = "numbers, one per rung, for example [0.6, 0.8, 1.0]"
    need(isinstance(values, Iterable) and not isinstance(values, str | bytes | dict), name, values, expected)
    try:
        values = [getattr(value, "item", lambda value=value: value)() for value in values]  # of an array or a tensor
    except TypeError as error:  # an array of no dimension calls itself iterable
        raise ConfigError(f"`{name}` must be {expected}, got {values!r}.") from error
    need(all(isinstance(v, int | float) and not isinstance(v, bool) for v in values), name, values, expected)
    return tuple(map(float, values))


GROUPS = (LadderOptions, ConsensusOptions, ChainOptions, DraftingOptions, CallOptions)
OPTION_NAMES = frozenset(field.name for field in fields(JudgeOptions))
STORED_NAMES = tuple(field.name for group in GROUPS[:-1] for field in fields(group))


__all__ = [
    "NEVER_SHORT",
    "ChainOptions",
    "ConsensusOptions",
    "DraftingOptions",
    "JudgeOptions",
    "LadderOptions",
]
