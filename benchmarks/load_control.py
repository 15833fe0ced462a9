"""Deadlines under bursts: a threshold that gives way under load, against one that stays.

Run:
    python benchmarks/load_control.py --pool pool.jsonl            # judges the pool once, minutes; then seconds
    python benchmarks/load_control.py --pool pool.jsonl --bursts 1.6

The pool is answers of `egrm-mini`'s calibration questions, each judged once on the short path (exact consensus) and once on the
long one. Thresholds, accuracy and costs are therefore measured; arrivals and time are simulated: one worker serves items in the
order in which they come, and an item takes the operations that it took in the pool, where a mean item at the threshold of rest
takes one second. Arrivals are Poisson, at a calm rate and, in bursts, at a higher one; both states last as long as an
exponential variable says. Rates are shares of what the worker does at the threshold of rest.

An item misses its deadline if it is done later than `--deadline` seconds after it came. Late verdicts count for accuracy. Every
policy meets the same arrivals. The controller may use the thresholds at which at most `--risk` of the pool's short verdicts are
wrong; in use, the certificate says which these are. For each controlled run, *static, equal accuracy* is the share of deadlines missed by a static
threshold, or a mixture of two neighbouring ones, that is as accurate.
"""

import argparse
import json
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from transformers_egrm import RewardJudge, load_mini
from transformers_egrm.calibration.load import LoadController, LoadLimits, pressure
from transformers_egrm.data.synthetic import examples


STREAM = 2
THRESHOLDS = (0.99, 0.9, 0.8, 0.7, 0.6, 0.5)


def judge_pool(path: Path, count: int) -> None:
    """Judge answers on both paths, and keep what a simulation needs."""
    model, drawn = load_mini(), list(islice(examples("calibration", STREAM), count))
    records = [example.record() for example in drawn]
    settings = {"batch_size": 64, "explain": True}
    short = RewardJudge(model, path="short", consensus="exact", **settings)(records)
    long = RewardJudge(model, path="long", **settings)(records)
    rows = []
    for example, probed, thought in zip(drawn, short, long, strict=True):
        assert probed.account is not None, "asked for by `explain`"
        assert thought.account is not None, "asked for by `explain`"
        rows.append({
            "consensus": probed.consensus, "short_right": probed.verdict == str(example.verdict),
            "long_right": thought.verdict == str(example.verdict),
            "short_cost": probed.account.flops, "long_cost": thought.account.flops - thought.account.probe_flops,
        })  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


class Pool:
    """Judged items, drawn with replacement."""

    def __init__(self, path: Path) -> None:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        self.consensus = np.array([row["consensus"] for row in rows])
        self.right = np.array([[row["long_right"], row["short_right"]] for row in rows])
        costs = np.array([[row["short_cost"] + row["long_cost"], row["short_cost"]] for row in rows])
        rest = (self.consensus >= THRESHOLDS[0] - 1e-6).astype(int)
        self.seconds = costs / costs[np.arange(len(rows)), rest].mean()

    def risk(self, tau: float) -> float:
        """Share of the short verdicts at a threshold that are wrong."""
        return 1 - float(self.right[self.consensus >= tau - 1e-6, 1].mean())


def arrivals(args: argparse.Namespace, seed: int) -> NDArray[np.float64]:
    """[N] seconds at which items come."""
    random, times, now, burst = np.random.default_rng(seed), [], 0.0, False
    while len(times) < args.items:
        rate, mean = (args.bursts, args.burst_s) if burst else (args.calm, args.calm_s)
        end = now + random.exponential(mean)
        while (now := now + random.exponential(1 / rate)) < end:
            times.append(now)
        now, burst = end, not burst
    return np.array(times[: args.items])


def serve(
    pool: Pool, times: NDArray[np.float64], drawn: NDArray[np.int64], deadline: float, controller: LoadController
) -> tuple[float, float, float]:
    """Accuracy, share of missed deadlines and share of short paths of one policy."""
    free, right, missed, short = 0.0, 0, 0, 0
    for place, (came, item) in enumerate(zip(times.tolist(), drawn.tolist(), strict=True)):
        start = max(free, came)
        waiting = int(np.searchsorted(times, start, side="right")) - place - 1
        # What waits has to be done by the deadline of the last to come.
        tau = controller.update(pressure(waiting, 1.0, deadline), start)
        route = int(pool.consensus[item] >= tau - 1e-6)
        free = start + float(pool.seconds[item, route])
        right, missed, short = right + bool(pool.right[item, route]), missed + (free > came + deadline), short + route
    return right / len(times), missed / len(times), short / len(times)


def static_at(accuracy: float, static: list[tuple[float, float, float]]) -> float:
    """Share of deadlines missed by the static policy of an accuracy, between two thresholds where none has it."""
    for (more, worse, _), (less, better, _) in pairwise(static):
        if less <= accuracy <= more:
            return better if more == less else better + (worse - better) * (accuracy - less) / (more - less)
    return static[0][1] if accuracy > static[0][0] else static[-1][1]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", type=Path, required=True, help="judged items; made where there is no such file")
    parser.add_argument("--limit", type=int, default=800, help="items of a pool that is made")
    parser.add_argument("--items", type=int, default=20_000, help="arrivals of a run")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--calm", type=float, default=0.6, help="rate between bursts")
    parser.add_argument("--bursts", type=float, default=1.5, help="rate in bursts")
    parser.add_argument("--calm-s", type=float, default=200.0)
    parser.add_argument("--burst-s", type=float, default=60.0)
    parser.add_argument("--risk", type=float, default=0.05)
    parser.add_argument("--deadline", type=float, default=10.0)
    args = parser.parse_args()
    if not args.pool.exists():
        judge_pool(args.pool, args.limit)
    pool, rows = Pool(args.pool), []
    allowed = [tau for tau in THRESHOLDS if pool.risk(tau) <= args.risk]
    limits = LoadLimits(high=0.4, low=0.15, hold_s=5.0, step_s=0.5)
    for run in range(args.runs):
        times = arrivals(args, run)
        drawn = np.random.default_rng(1_000 + run).integers(len(pool.consensus), size=len(times))
        policies = [LoadController((tau,)) for tau in THRESHOLDS]
        static = [serve(pool, times, drawn, args.deadline, policy) for policy in policies]
        led = serve(pool, times, drawn, args.deadline, LoadController(allowed, limits))
        rows.append((static, led, static_at(led[0], static)))
    print(
        f"{len(pool.consensus)} judged items; {args.runs} runs of {args.items:,} arrivals; controlled within {allowed}\n"
    )
    print("| policy | accuracy | missed | short |")
    print("|---|---|---|---|")
    for place, tau in enumerate(THRESHOLDS):
        figures = np.mean([static[place] for static, _, _ in rows], 0)
        print(f"| static, {tau:g} | {100 * figures[0]:.2f} % | {100 * figures[1]:.2f} % | {100 * figures[2]:.1f} % |")
    figures = np.mean([led for _, led, _ in rows], 0)
    print(f"| controlled | {100 * figures[0]:.2f} % | {100 * figures[1]:.2f} % | {100 * figures[2]:.1f} % |")
    equal = [(led[1], missed) for _, led, missed in rows]
    print(
        f"| static, equal accuracy | {100 * figures[0]:.2f} % | {100 * np.mean([own for _, own in equal]):.2f} % | |"
    )
    print(
        f"\nFewer missed than static at equal accuracy in {sum(own < other for own, other in equal)} of {len(equal)} runs."
    )


if __name__ == "__main__":
    main()
