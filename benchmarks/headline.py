"""The headline: routing by a threshold certified on calibration questions, told on sealed ones beside its rivals.

Run:
    python benchmarks/headline.py egrm-mini --pools runs/headline --output runs/headline

Two contests of exact consensus: four chains on the long path against four chains always, by majority and by scorer; and one
chain against one chain always. The threshold of each keeps `within`: at most so much below always thinking, with confidence
95 %. It is chosen on the calibration split, and so is what chooses among four chains. Nothing is chosen on the sealed split.
Items are judged once, as in pareto.py, and kept in POOLS.calibration.jsonl and POOLS.sealed.jsonl. Writes results.json and
table.md. Intervals are of 95 %, over questions.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pareto import Methods, Row, read_pool, verdict_of, world_items

from transformers_egrm.calibration.aims import Aim
from transformers_egrm.calibration.records import CalibrationItem, Labelled, digest_of
from transformers_egrm.calibration.thresholds import Choice, choose
from transformers_egrm.data.files import write_json, write_text
from transformers_egrm.evaluation import metrics
from transformers_egrm.judge import RewardJudge


ALLOWED = {4: 0.75, 1: 0.85}
"""Chains on the long path -> the most operations, of as many chains always."""


class Contest:
    """One pool, judged with and without routing.

    Args:
        rows: Of `pareto.read_pool`.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows, self.methods = rows, Methods(rows, scorer=True, reuse=False)
        self.questions = [row["question"] for row in rows]
        self.consensus = np.array([row["exact"][1] for row in rows])
        self.probed = np.array([row["exact"][2] for row in rows])
        self.short_right = self.methods.right(lambda row: row["exact"][0])

    def always(self, chains: int, selection: str) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Which items so many chains without probes judge rightly, and what each costs."""
        right = self.methods.right(lambda row: verdict_of(row, chains, selection, probes=False))
        return right, self.methods.start + self.methods.written[:, chains]

    def routed(self, chains: int, selection: str, tau: float) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """The same of routing at a threshold."""
        short = metrics.takes_short(self.consensus, tau)
        thought = self.probed + self.methods.resume + self.methods.written[:, chains]
        right = np.where(short, self.short_right, self.always(chains, selection)[0])
        return right, np.where(short, self.probed, thought)

    def certified(self, chains: int, selection: str, within: float) -> Choice:
        """The threshold that keeps `within` on this pool's questions."""
        long_right = self.always(chains, selection)[0]
        thought = self.probed + self.methods.resume + self.methods.written[:, chains]
        items = [
            CalibrationItem(
                id=str(number), question_id=row["question"], text_digest=digest_of(row["question"]), verdict=None,
                short_right=bool(self.short_right[number]), long_right=bool(long_right[number]),
                consensus=row["exact"][1], short_flops=float(self.probed[number]), long_flops=float(thought[number]),
            )
            for number, row in enumerate(self.rows)
        ]  # fmt: skip
        return choose(Labelled(items), Aim("within", within))

    def compare(self, chains: int, selection: str, tau: float, rivals: Sequence[str], resamples: int) -> list[Row]:
        """Routing beside rivals: accuracy, what it loses, operations."""
        right, flops = self.routed(chains, selection, tau)
        share = float(metrics.takes_short(self.consensus, tau).mean())

        def interval(statistic: Any, *columns: NDArray[Any]) -> Row:
            return asdict(metrics.bootstrap(statistic, *columns, groups=self.questions, resamples=resamples))

        found = []
        for rival in rivals:
            other, cost = self.always(chains, rival)
            found.append(
                {
                    "chains": chains,
                    "selection": selection,
                    "threshold": tau,
                    "short_share": share,
                    "rival": f"always, K = {chains}" + (f", by {rival}" if chains > 1 else ""),
                    "accuracy": interval(lambda own: float(own.mean()), right),
                    "rival_accuracy": interval(lambda own: float(own.mean()), other),
                    "lost": interval(lambda own: float(own.mean()), other.astype(float) - right),
                    "operations": interval(lambda ours, theirs: float(ours.mean() / theirs.mean()), flops, cost),
                    "allowed": ALLOWED[chains],
                }
            )
        return found


def table(rows: Sequence[Row]) -> str:
    """As Markdown.

    Args:
        rows: Of `Contest.compare`.
    """
    lines = [
        "| rival | its accuracy, % | routed, % | points lost | operations / rival | short | tau |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        shown = [_percent(row[key]) for key in ("rival_accuracy", "accuracy", "lost")]
        ratio = "{value:.3f} ({low:.3f} to {high:.3f})".format(**row["operations"])
        lines.append(
            f"| {row['rival']} | {' | '.join(shown)} | {ratio}, at most {row['allowed']} | {row['short_share']:.1%} | "
            f"{row['threshold']:g} |"
        )
    return "\n".join([*lines, ""])


def _percent(figure: Row) -> str:
    value, low, high = (100 * figure[name] for name in ("value", "low", "high"))
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("judge", help="`egrm-mini`, or the folder of a checkpoint with a pointwise space from 0 to 10")
    parser.add_argument("--pools", required=True, metavar="PATH", help="where judged items are kept")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--items", type=int, default=12_500, help="of each split")
    parser.add_argument(
        "--within", type=float, default=0.003, help="what a threshold may lose on calibration questions"
    )
    parser.add_argument(
        "--splits", nargs="+", default=["calibration", "sealed"], help="the first chooses, the last tells"
    )
    parser.add_argument("--temperatures", nargs="+", type=float, help="of exact consensus; default: the checkpoint's")
    parser.add_argument("--top-ps", nargs="+", type=float, help="likewise")
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=64)
    given = parser.parse_args()
    model = RewardJudge(given.judge).model
    exact = {name: getattr(given, name) for name in ("temperatures", "top_ps") if getattr(given, name)}
    pools = {
        split: Contest(
            read_pool(
                Path(f"{given.pools}.{split}.jsonl"),
                model,
                world_items(model, split, given.items),
                given.batch_size,
                exact,
            )
        )
        for split in given.splits
    }
    choosing, telling = pools[given.splits[0]], pools[given.splits[-1]]
    best = max(("vote", "scorer"), key=lambda by: float(choosing.always(4, by)[0].mean()))
    found, choices = [], []
    for chains, selection, rivals in ((4, best, ("vote", "scorer")), (1, "vote", ("vote",))):
        choice = choosing.certified(chains, selection, given.within)
        choices.append({"chains": chains, "selection": selection, "promised": choice.promised, "threshold": choice.threshold,
                        "observed": choice.observed, "tested_questions": choice.tested_questions})  # fmt: skip
        found += telling.compare(chains, selection, choice.threshold, rivals, given.resamples)
    given.output.mkdir(parents=True, exist_ok=True)
    about = {split: {"items": len(pool.rows), "questions": len(set(pool.questions))} for split, pool in pools.items()}
    write_json(given.output / "results.json", {"judge": given.judge, "exact": exact, "within": given.within, "pools": about,
                                               "choices": choices, "rows": found})  # fmt: skip
    text = f"{about[given.splits[-1]]['items']:,} answers of {about[given.splits[-1]]['questions']:,} questions.\n\n{table(found)}"
    write_text(given.output / "table.md", text)
    print(choices, text, sep="\n")


if __name__ == "__main__":
    main()
