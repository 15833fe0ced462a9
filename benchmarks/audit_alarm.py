"""How often the audit cries wolf, and how soon it cries when short verdicts decline.

Run:
    python benchmarks/audit_alarm.py                     # about half a minute on one core

A run is a stream of 5,000 short items, of which a share of 5 % is audited. Short and long verdicts disagree at a baseline
rate, which the audit knows from calibration items of its own run. Then, or not, short accuracy falls linearly, by 20 points
over the stream; what was right and has become wrong disagrees with the long path where that is right (99.7 %, as measured).
Nothing else changes: neither the long path nor the consensus.

- *false alarms*: runs without a decline in which an alarm is raised anywhere in the stream;
- *in time*: runs with the decline in which it is raised before 10 points are lost;
- *points lost*: at the alarm, median of those runs;
- *best fixed test*: the most powerful test there is of the baseline, known exactly, against this very decline, known exactly,
  asked once, at the end of those 2,500 items. No test that may be looked at at any time can be in time more often.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformers_egrm.calibration.audit import DisagreementTest


ITEMS, SHARE, FALL, LIMIT, LONG_RIGHT = 5_000, 0.05, 0.20, 0.10, 0.997
IN_TIME = int(ITEMS * LIMIT / FALL)
BASELINES = (0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05)
KNOWN = 10**9  # calibration items after which nothing is left to estimate


def rates(baseline: float, falls: bool) -> NDArray[np.float64]:
    """[items] rate of disagreement along a stream."""
    lost = FALL * np.arange(1, ITEMS + 1) / ITEMS if falls else np.zeros(ITEMS)
    return baseline + lost * LONG_RIGHT * (1 - baseline)


def first_alarms(
    baseline: float, calibration: int, alpha: float, runs: int, falls: bool, seed: int
) -> NDArray[np.int64]:
    """[runs] items until the alarm, or one more than there are.

    Args:
        baseline: True rate of disagreement in calibration.
        calibration: Items that it is estimated from.
        alpha: Chance of a false alarm.
        runs: How many streams.
        falls: Whether accuracy falls.
        seed: Of all of them.
    """
    random = np.random.default_rng(seed)
    counted = (
        np.full(runs, round(baseline * KNOWN))
        if calibration == KNOWN
        else random.binomial(calibration, baseline, runs)
    )
    chosen = random.random((runs, ITEMS)) < SHARE
    disagree = random.random((runs, ITEMS)) < rates(baseline, falls)
    # The n-th audited item of each stream; streams that have no n-th one any more agree, and are not looked at.
    order = np.argsort(~chosen, axis=1, kind="stable")
    numbers = chosen.sum(1)
    test = DisagreementTest(counted, calibration, alpha=alpha)
    found = np.full(runs, ITEMS + 1)
    for place in range(numbers.max()):
        items = order[:, place]
        present = place < numbers
        alarmed = test.update(np.where(present, disagree[np.arange(runs), items], False))
        found = np.where(alarmed & present & (found > ITEMS), items + 1, found)
    return found


def best_fixed_test(baseline: float, alpha: float, runs: int, seed: int) -> float:
    """Power of the likelihood ratio of the whole decline, at the item by which the alarm has to be raised."""
    random = np.random.default_rng(seed)
    audits = int(IN_TIME * SHARE)
    declining = rates(baseline, True)[np.linspace(0, IN_TIME - 1, audits).astype(int)]
    weight = np.log(declining / baseline) - np.log((1 - declining) / (1 - baseline))
    null, other = ((random.random((runs, audits)) < rate) @ weight for rate in (np.full(audits, baseline), declining))
    limit = np.quantile(null, 1 - alpha)
    # Among runs that meet the limit exactly as many are counted as alpha has room for.
    ties = max(0.0, (alpha - (null > limit).mean()) / max((null == limit).mean(), 1e-12))
    return float((other > limit).mean() + min(1.0, ties) * (other == limit).mean())


def row(baseline: float, calibration: int, args: argparse.Namespace) -> dict[str, Any]:
    """The figures of one baseline."""
    still = first_alarms(baseline, calibration, args.alpha, args.runs, False, args.seed)
    falling = first_alarms(baseline, calibration, args.alpha, args.runs, True, args.seed + 1)
    return {
        "baseline": baseline,
        "calibration_items": None if calibration == KNOWN else calibration,
        "false_alarms": int((still <= ITEMS).sum()),
        "in_time": int((falling <= IN_TIME).sum()),
        "runs": args.runs,
        "median_points_lost": round(float(np.median(falling)) * FALL / ITEMS * 100, 2),
        "best_fixed_test": round(best_fixed_test(baseline, args.alpha, 20_000, args.seed + 2), 4),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--alpha", type=float, default=0.05)
    parser.add_argument(
        "--calibration", type=int, nargs="+", default=[1_000, 5_000, KNOWN], help="items of the baseline"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="write the rows as JSON")
    args = parser.parse_args()
    print("| baseline | calibration items | false alarms | in time | median points lost | best fixed test |")
    print("|---|---|---|---|---|---|")
    rows = []
    for baseline in BASELINES:
        for calibration in args.calibration:
            own = row(baseline, calibration, args)
            rows.append(own)
            size = f"{calibration:,}" if own["calibration_items"] else "known exactly"
            print(f"| {100 * baseline:g} % | {size} | {own['false_alarms']} | {own['in_time']} | "
                  f"{own['median_points_lost']:.1f} | {100 * own['best_fixed_test']:.1f} % |", flush=True)  # fmt: skip
    if args.output:
        args.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
