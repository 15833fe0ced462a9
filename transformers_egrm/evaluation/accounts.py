"""How a reward came about, in the form that items keep and the page draws."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


_LEAST = 5e-4
"""Shares below this are not kept: eleven verdicts at every rung of every ask add up."""
_FIRST_IS_BETTER = {"A": 1.0, "B": 0.0, "tie": 0.5}


def details_of(account: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of an account that a reader wants to see.

    Args:
        account: As `Account.to_dict` writes it.

    Returns:
        `stage`; `probes`, the distribution of verdicts at each rung, exact where it was computed, else of the votes;
        `candidates` with verdict, score, text and which one was chosen; and what it cost.
    """
    probs = account.get("verdict_probs") or ()
    probes = [_distribution(f"rung {rung}, exact", dict(zip(account["labels"], shares, strict=True)))
              for rung, shares in enumerate(probs, start=1)]  # fmt: skip
    candidates = [
        {
            "verdict": one["verdict"],
            "score": one["score"],
            "text": one["text"],
            "kind": "chain" if one["is_chain"] else "probe",
            "chosen": number == account.get("chosen"),
        }
        for number, one in enumerate(account.get("candidates") or ())
    ]
    found = {
        "stage": account["stage"],
        "probes": probes or _votes(account.get("probes") or ()),
        "candidates": candidates,
    }
    costs = {
        name: account[name] for name in ("prefill_tokens", "probe_tokens", "new_tokens", "flops") if name in account
    }
    return {name: value for name, value in found.items() if value} | {"cost": costs}


def order_rewards(account: Mapping[str, Any]) -> tuple[float | None, ...]:
    """What each order of a pair said by itself: 1.0 where its probes mostly prefer the first answer, 0.0 the second.

    Args:
        account: Of a pair, as `Account.to_dict` writes it.

    Returns:
        One for each order, None where no probe of it states a verdict; empty where no probes were drawn.
    """
    by_prompt: dict[int, Counter[str]] = {}
    for vote in account.get("probes") or ():
        counts = by_prompt.setdefault(vote["prompt"], Counter())
        if vote["verdict"] in _FIRST_IS_BETTER:
            counts[vote["verdict"]] += 1
    return tuple(
        _FIRST_IS_BETTER[counts.most_common(1)[0][0]] if counts else None for _, counts in sorted(by_prompt.items())
    )


def _votes(probes: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    by_rung: dict[tuple[float, float], Counter[str]] = {}
    for vote in probes:
        counts = by_rung.setdefault((vote["temperature"], vote["top_p"]), Counter())
        counts["none" if vote["verdict"] is None else vote["verdict"]] += 1
    return [
        _distribution(f"temperature {rung[0]:g}, top-p {rung[1]:g}: {counts.total()} vote{'s' * (counts.total() > 1)}",
                      {verdict: count / counts.total() for verdict, count in counts.items()})
        for rung, counts in by_rung.items()
    ]  # fmt: skip


def _distribution(name: str, shares: Mapping[str, float]) -> dict[str, Any]:
    return {"name": name, "distribution": {verdict: share for verdict, share in shares.items() if share >= _LEAST}}


__all__ = ["details_of", "order_rewards"]
