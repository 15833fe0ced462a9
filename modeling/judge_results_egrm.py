"""Records in, plain results out.

Content never raises here: a record that cannot be judged becomes a result whose `status` and `error` say why. Mistakes
of the program, such as an unknown option, do raise.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from .judge_batch_egrm import EncodedItem
from .judge_values_egrm import Account, EGRMOutput, Status
from .prompt_records_egrm import read_id
from .prompt_task_egrm import JudgeTask
from .verdict_calibration_egrm import confidence
from .verdict_consensus_egrm import Route


_REASONS = {
    Status.NO_VERDICT: "Neither a probe nor a chain stated a verdict, or too little probability lay on verdicts.",
    Status.TIMEOUT: "The deadline (`timeout_s`) passed before there was a verdict.",
    Status.ERROR: "The generator returned numbers that are not finite, or its engine failed.",
    Status.ABSTAINED: "The judge was less sure of its verdict than `abstain_below` asks.",
}


_STAGES = {Route.SHORT: "probes", Route.LONG: "chains"}
_CERTAINTY = ("support", "reward_mean", "reward_variance", "reward_risk_adjusted")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeResult:
    """One judged record, as plain Python values."""

    id: str | int | None
    """The record's own id, None where it has none."""
    reward: float | None
    """Range as in `VerdictSpace.rewards`. None unless `status` is `ok`, and for open answers without a reference."""
    verdict: str | None
    """Label of the verdict, or the open answer itself; None unless `status` is `ok`."""
    consensus: float | None
    """Share of the most frequent verdict, in [0, 1]; None where nothing was read."""
    consensus_is_bound: bool
    """Whether probes were stopped early: the consensus is then at least (short) or at most (long) this."""
    confidence: float | None = None
    """How often a verdict like this one is right by the owner's labels, in [0, 1]; None where the checkpoint has no
    calibration for it: judged in another space, format or rubric than the labels were."""
    route: str | None
    """`short` or `long`; None where the record was never judged."""
    status: str
    """`ok`, `no_verdict`, `too_long`, `timeout`, `error` or `abstained`."""
    tokens: int
    """New tokens sampled for the record: probes and chains; 0 where the cache answered."""
    truncated: bool
    """Whether the truncation policy cut the judge prompt."""
    truncated_tokens: int
    """How many tokens it removed."""
    order: tuple[str, ...]
    """How each judge prompt showed the candidates: `ab` and `ba` for a pair, otherwise `given`."""
    seed: int | None
    """Seed of the random numbers; None where none could be drawn."""
    stage: str | None = None
    """What answered: `cache`, `assessor`, `probes` or `chains`; None where the record was never judged."""
    support: float | None = None
    """Share behind the believed verdict, in [0, 1]: the consensus on the short path, the share of the chains that state it
    on the long one, and an assessor's own probability where it answers. None where there is no verdict; given where the
    judge abstained."""
    reward_mean: float | None = None
    """Mean reward under the probes' exact verdict distribution; None where that is not known, or rewards are no amounts."""
    reward_variance: float | None = None
    """Variance of the reward, likewise."""
    reward_risk_adjusted: float | None = None
    """beta * log E exp(r / beta) with beta = `risk_beta`, likewise."""
    audited: bool = False
    """Whether the long path was asked too, for comparison only (`audit_share`): the reward is the short path's."""
    audit_verdict: str | None = None
    """The audit's verdict; None where there was no audit, or it ended without a verdict."""
    rationale: str | None = None
    """Text of the chain that was believed, where asked for; None on the short path."""
    error: str | None = None
    """Why there is no verdict; None where there is one."""
    said: str | None = None
    """What the judge wrote where its `status` is `no_verdict`: the last chain, or the first probe; None for others."""
    fallback: str | None = None
    """Why the conversation was judged in the embedded layout, as one text: what its chat template said. None where the
    template showed it."""
    unfamiliar: bool = False
    """Whether the text is of another world than the one the judge was trained in, so that its reward means nothing. Only a
    checkpoint that stores what it knows (`EGRMConfig.familiar`) can tell; others say False."""
    draft_rounds: int = 0
    """Passes of the generator that verified drafts of the record's chains."""
    draft_tokens: int = 0
    """Tokens those passes wrote."""
    draft_kept: tuple[int, ...] = ()
    """How many of those passes wrote at least i + 1 drafted tokens; empty without drafts."""
    account: Account | None = None
    """How the reward came about, where asked for."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as a dict that JSON can hold; without `account` where there is none."""
        names = (field.name for field in fields(self) if field.name != "account")
        plain = {name: getattr(self, name) for name in names}
        plain |= {"order": list(self.order), "draft_kept": list(self.draft_kept)}
        return plain if self.account is None else plain | {"account": self.account.to_dict()}


@dataclass(frozen=True, slots=True)
class Entry:
    """A record ready to be judged."""

    record_id: str | int | None
    """The caller's id."""
    item: EncodedItem
    """Its judge prompts as token ids."""

    @property
    def num_tokens(self) -> int:
        """Length of the longest judge prompt, in tokens."""
        return max(map(len, self.item.prompts))


def encode_record(processor: Any, record: object, **encoding: Any) -> Entry | JudgeResult:
    """The record's judge prompts, or the result that says why there are none.

    Args:
        processor: An `EGRMProcessor`.
        record: A mapping as `EGRMProcessor.encode` reads it, or a conversation alone: a list of messages.
        **encoding: Passed to `EGRMProcessor.encode`: `space`, `rubric`.

    Raises:
        ConfigError: Space or rubric are wrong for every record.
    """
    if isinstance(record, list | tuple):
        record = {"messages": record}
    record_id = read_id(record.get("id")) if isinstance(record, Mapping) else None
    try:
        return Entry(record_id, processor.encode(record, **encoding))
    except Exception as error:
        raise_if_programs(error)
        return failed_result(record_id, error)


def results_of(
    entries: Sequence[Entry], output: EGRMOutput, seed: int, calibration: Mapping[str, Any] | None = None,
    task: JudgeTask | None = None,
) -> list[JudgeResult]:  # fmt: skip
    """The rows of a judgement as plain values.

    Args:
        entries: B records.
        output: Their judgement.
        seed: Seed it was made with.
        calibration: The checkpoint's tables.
        task: The one that they were fitted in: they say nothing of another space, format or rubric.

    Returns:
        B results, in order.
    """
    columns = {name: value.tolist() if isinstance(value, Tensor) else value for name, value in output.items()}
    drafted = [columns.get(name) or [0] * len(entries) for name in ("draft_rounds", "draft_tokens")]
    unread = columns.get("unread_texts") or [None] * len(entries)
    accounts = columns.get("accounts") or [None] * len(entries)
    direct = columns.get("direct") or [False] * len(entries)
    probs, scores = columns.get("verdict_probs") or [None] * len(entries), _best_scores(columns, len(entries))
    results = []
    for row, entry in enumerate(entries):
        status, item = Status(columns["statuses"][row]), entry.item
        ok = status == Status.OK
        rationales, agreement = columns.get("rationales"), _finite(columns["consensus"][row])
        certainty: dict[str, Any] = {name: _finite(columns[name][row]) for name in _CERTAINTY if name in columns}
        if ok and calibration and item.task == task:
            short = columns["routes"][row] == Route.SHORT
            certainty["confidence"] = confidence(calibration, agreement, probs[row], scores[row], short=short)
        results.append(
            JudgeResult(
                **fields_of_record(entry.record_id, item, seed),
                reward=_finite(columns["rewards"][row]) if ok else None,
                verdict=columns["verdict_texts"][row] if ok else None,
                consensus=agreement,
                consensus_is_bound=columns["consensus_is_bound"][row],
                **certainty,
                route=_word(Route(columns["routes"][row])),
                status=_word(status),
                tokens=columns["new_tokens"][row],
                stage="assessor" if direct[row] else _STAGES[Route(columns["routes"][row])],
                audited=bool(columns["audited"][row]) if "audited" in columns else False,
                audit_verdict=columns["audit_texts"][row] if "audit_texts" in columns else None,
                rationale=rationales[row] if rationales and ok else None,
                error=_REASONS.get(status),
                said=unread[row],
                draft_rounds=drafted[0][row],
                draft_tokens=drafted[1][row],
                draft_kept=tuple(columns["draft_kept"][row]) if drafted[0][row] else (),
                account=accounts[row],
            )
        )
    return results


def _best_scores(columns: Mapping[str, Any], count: int) -> list[float | None]:
    # Of each item's candidates; a scorer believes the best one.
    best: list[float | None] = [None] * count
    for owner, score in zip(columns.get("chain_item_index") or (), columns.get("chain_scores") or (), strict=True):
        if math.isfinite(score):
            best[owner] = max(score, best[owner] or 0.0)
    return best


def failed_result(
    record_id: str | int | None, error: Exception | Status | str, item: EncodedItem | None = None, *,
    seed: int | None = None,
) -> JudgeResult:  # fmt: skip
    """The result of a record that was not judged.

    Args:
        record_id: The caller's id.
        error: What went wrong, or the status itself; a `PromptTooLongError` has a status of its own.
        item: Its judge prompts, if it got that far.
        seed: Seed of its random numbers, if it got that far.
    """
    status = getattr(error, "status", "error") if _blamed(error) == "record" else "error"
    if isinstance(error, Status):
        status, error = _word(error), _REASONS[error]
    return JudgeResult(
        **fields_of_record(record_id, item, seed),
        reward=None,
        verdict=None,
        consensus=None,
        consensus_is_bound=False,
        route=None,
        status=status,
        tokens=0,
        error=error if isinstance(error, str) else _message(error),
    )


def fields_of_record(record_id: str | int | None, item: EncodedItem | None, seed: int | None) -> dict[str, Any]:
    """The fields of a `JudgeResult` that are known before its record is judged.

    Args:
        record_id: The caller's id.
        item: Its judge prompts, if it got that far.
        seed: Seed of its random numbers, if it got that far.
    """
    return {
        "id": record_id,
        "truncated": item is not None and item.truncated_tokens > 0,
        "truncated_tokens": 0 if item is None else item.truncated_tokens,
        "order": () if item is None else _orders(item),
        "seed": seed,
        "fallback": None if item is None else item.fallback,
    }


def raise_if_programs(error: Exception) -> None:
    """Raise an error again that is the program's mistake and no record's; see `EGRMError.blames`."""
    if _blamed(error) == "program":
        raise error


def _blamed(error: object) -> str | None:
    return getattr(error, "blames", None)


def _message(error: Exception) -> str:
    # Our own errors explain themselves; of others, the type is half of the message.
    return str(error) if _blamed(error) else f"{type(error).__name__}: {error}"


def _orders(item: EncodedItem) -> tuple[str, ...]:
    if item.task.space.kind != "pairwise":
        return ("given",) * len(item.swapped)
    return tuple("ba" if swapped else "ab" for swapped in item.swapped)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _word(value: Route | Status) -> str:
    return value.name.lower()


__all__ = [
    "Entry",
    "JudgeResult",
    "encode_record",
    "failed_result",
    "fields_of_record",
    "raise_if_programs",
    "results_of",
]
