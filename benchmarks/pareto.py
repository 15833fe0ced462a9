"""Accuracy against operations: every way to spend chains and probes, from one judged pool, and the front of them.

Run:
    python benchmarks/pareto.py egrm-mini --pool runs/pareto.jsonl --items 12000 --output runs/pareto

Items come from a split of the synthetic world, alike from each of its streams. Each is judged once with 8 chains, all probes and its exact distribution; the
rows are kept in the pool's file. What a method would have said and cost is put together from them: chains are independent
draws, so the first K of 8 are what K chains would have been. Writes results.json, table.md and pareto.png.

- always: K chains, without probes, by majority and by scorer; adaptive: chains until two, or three, agree;
- routed: probes first, exact or sampled, at every threshold, K chains where they do not agree;
- short: the probes' verdict always.

Seconds are those of the paths, timed on some items, weighted by their shares. Intervals are of 95 %, over questions.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from paper_bench import sampled_trigger

from transformers_egrm.calibration.thresholds import grid_of
from transformers_egrm.data.files import write_json, write_text
from transformers_egrm.data.synthetic.splits import STREAMS
from transformers_egrm.data.synthetic.world import examples
from transformers_egrm.evaluation import metrics
from transformers_egrm.evaluation.outcomes import LabelledItem, judge_labelled, label
from transformers_egrm.extras import import_extra
from transformers_egrm.judge import RewardJudge
from transformers_egrm.modeling.judge_long_egrm import choose
from transformers_egrm.modeling.judge_options_egrm import NEVER_SHORT
from transformers_egrm.modeling.judge_results_egrm import Entry, JudgeResult
from transformers_egrm.modeling.judge_scheduler_egrm import Scheduler
from transformers_egrm.modeling.judge_values_egrm import Candidate
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel


MOST_CHAINS = 8
ALWAYS, ROUTED = (1, 2, 4, 8), (1, 2, 4)
EXACT_STEPS = 25
"""Thresholds of exact consensus, at about equal steps of short share."""
Row = dict[str, Any]


# -- the pool -----------------------------------------------------------------------------------------------------------


def world_items(model: EGRMRewardModel, split: str, count: int) -> list[LabelledItem]:
    """Labelled items of a split, as many from each of its streams.

    Args:
        model: The judge.
        split: Of the synthetic world.
        count: How many, rounded up.
    """
    own = -(-count // STREAMS)
    streams = (islice(examples(split, seed), own) for seed in range(STREAMS))
    return [item for seed, stream in enumerate(streams) for item in label(model.processor, stream, seed)]


def read_pool(
    path: Path, model: EGRMRewardModel, items: Sequence[LabelledItem], batch_size: int, exact: Row
) -> list[Row]:
    """The pool's rows: those in the file, and the rest judged and added to it.

    Args:
        path: A .jsonl file; its first line names checkpoint and items.
        model: The judge.
        items: What to judge.
        batch_size: Items judged together.
        exact: Judging options of exact consensus.

    Raises:
        SystemExit: The file holds the pool of another run.
    """
    head = {
        "pool": 1,
        "model": model.config.name_or_path,
        "judging": model.config.judging,
        "first": items[0].question_id,
    }
    if not path.exists():
        write_text(path, json.dumps(head) + "\n")
    first, *lines = path.read_text("utf-8").splitlines()
    if json.loads(first) != json.loads(json.dumps(head)):
        raise SystemExit(f"{path} holds the pool of another judge or stream: name another file.")
    rows = [json.loads(line) for line in lines][: len(items)]
    chunk = 16 * batch_size
    with path.open("a", encoding="utf-8") as file:
        for start in range(len(rows), len(items), chunk):
            found = judge_chunk(model, items[start : start + chunk], batch_size, exact)
            file.write("".join(json.dumps(row) + "\n" for row in found))
            file.flush()
            rows += found
            print(f"{len(rows):,} of {len(items):,} items judged", flush=True)
    return rows


def judge_chunk(model: EGRMRewardModel, items: Sequence[LabelledItem], batch_size: int, exact: Row) -> list[Row]:
    """Rows of some items, in their order.

    Args:
        model: The judge.
        items: With the truth.
        batch_size: Items judged together.
        exact: Judging options of exact consensus.
    """
    sampled = {**sampled_trigger(model), "consensus_threshold": NEVER_SHORT, "early_stop": False}
    long = judged(model, items, batch_size, num_chains=MOST_CHAINS, path="auto", **sampled)
    short = judged(model, items, batch_size, consensus="exact", path="short", **exact)
    return [row_of(model, item, *pair) for item, *pair in zip(items, long, short, strict=True)]


def judged(
    model: EGRMRewardModel, items: Sequence[LabelledItem], batch_size: int, **options: Any
) -> list[JudgeResult]:
    """Results with accounts. Each item is a question of its own, so that its cost depends on nothing but itself.

    Args:
        model: The judge.
        items: To judge.
        batch_size: Items judged together.
        **options: Fields of `JudgeOptions`.
    """
    scheduler = Scheduler(model, batch_size=batch_size, explain=True, **options)
    for number, item in enumerate(items):
        scheduler.submit_entry(Entry(None, item.item), group=number)
    return scheduler.drain()


def row_of(model: EGRMRewardModel, item: LabelledItem, long: JudgeResult, short: JudgeResult) -> Row:
    """What is kept of an item: verdict ids, scores and operations.

    Args:
        model: The judge.
        item: With the truth.
        long: Judged on both paths with every chain.
        short: Judged with exact consensus.
    """
    sampled, exact = long.account, short.account
    assert sampled is not None, long.error
    assert exact is not None, short.error
    chains = [own for own in sampled.candidates if own.is_chain]
    written = sum(own.flops for own in chains)
    cost, length = model.backbone.cost, len(item.item.prompts[0]) + len(item.item.task.long_suffix_ids)
    return {
        "question": item.question_id,
        "truth": item.truth,
        "sampled": [sampled.probe_verdict, long.consensus, sampled.probe_flops],
        "exact": [exact.probe_verdict, short.consensus, exact.probe_flops],
        "probes": [[own.verdict, _number(own.score)] for own in sampled.candidates if not own.is_chain],
        "chains": [[own.verdict, _number(own.score), own.flops] for own in chains],
        "resume_flops": sampled.flops - sampled.probe_flops - written,
        "start_flops": cost.run(length) + cost.head(1),
    }


def _number(score: float) -> float | None:
    return score if score == score else None


# -- methods ------------------------------------------------------------------------------------------------------------


def candidates_of(row: Row, chains: int, *, probes: bool) -> list[Candidate]:
    """The first K chains of a row, and its reused probes before them.

    Args:
        row: Of the pool.
        chains: K.
        probes: Whether probes are candidates too.
    """
    first = [Candidate("", verdict, 0, False, score=_nan(score)) for verdict, score in row["probes"] if probes]
    return [
        *first,
        *(Candidate("", verdict, 0, True, score=_nan(score)) for verdict, score, _ in row["chains"][:chains]),
    ]


def _nan(score: float | None) -> float:
    return float("nan") if score is None else score


def verdict_of(row: Row, chains: int, selection: str, *, probes: bool) -> int | None:
    """What the long path would have said, by the judge's own rule."""
    believed = choose(candidates_of(row, chains, probes=probes), selection)
    return None if believed is None else believed.verdict


def adaptive(row: Row, needed: int) -> tuple[int | None, int]:
    """Verdict and number of chains where they are drawn one by one until some agree.

    Args:
        row: Of the pool.
        needed: Equal verdicts that are enough.
    """
    votes: Counter[int] = Counter()
    for count, (verdict, _, _) in enumerate(row["chains"], start=1):
        votes[verdict] += verdict is not None
        if votes[verdict] >= needed:
            return verdict, count
    return verdict_of(row, MOST_CHAINS, "vote", probes=False), len(row["chains"])


class Methods:
    """Every method's verdicts and operations on the pool, as columns of N.

    Args:
        rows: The pool.
        scorer: Whether its candidates have scores.
        reuse: Whether the checkpoint's probes are candidates on the long path.
    """

    def __init__(self, rows: Sequence[Row], *, scorer: bool, reuse: bool) -> None:
        self.rows, self.reuse = rows, reuse
        self.selections = ("scorer", "vote") if scorer else ("vote",)
        self.truth = np.array([row["truth"] for row in rows])
        self.start, self.resume = (np.array([row[name] for row in rows]) for name in ("start_flops", "resume_flops"))
        written = np.array([[flops for _, _, flops in row["chains"]] for row in rows])
        self.written = np.concatenate([np.zeros((len(rows), 1)), written.cumsum(1)], 1)  # [N, K + 1]

    def right(self, verdicts: Callable[[Row], int | None]) -> NDArray[np.bool_]:
        """[N] whether a verdict is the true one."""
        return np.array([verdicts(row) == row["truth"] for row in self.rows])

    def all(self) -> Iterator[tuple[Row, NDArray[np.bool_], NDArray[np.float64]]]:
        """Every method: what it is, which items it judges rightly, and what each costs."""
        yield from self.always()
        for kind in ("exact", "sampled"):
            yield from self.routed(kind)

    def always(self) -> Iterator[tuple[Row, NDArray[np.bool_], NDArray[np.float64]]]:
        """Chains without probes."""
        for chains in ALWAYS:
            for selection in self.selections if chains > 1 else ("vote",):
                right = self.right(lambda row, k=chains, by=selection: verdict_of(row, k, by, probes=False))
                name = f"always, K = {chains}" + (f", by {selection}" if chains > 1 else "")
                yield _about(name, "always", chains, selection), right, self.start + self.written[:, chains]
        for needed in (2, 3):
            found = [adaptive(row, needed) for row in self.rows]
            right = np.array([verdict for verdict, _ in found]) == self.truth
            drawn = np.array([count for _, count in found])
            flops = self.start + self.written[np.arange(len(found)), drawn]
            yield _about(f"always, until {needed} agree", "adaptive", float(drawn.mean()), "vote"), right, flops

    def routed(self, kind: str) -> Iterator[tuple[Row, NDArray[np.bool_], NDArray[np.float64]]]:
        """Probes first; at tau = 0 all are short.

        Args:
            kind: `exact` or `sampled`.
        """
        consensus = np.array([row[kind][1] or 0.0 for row in self.rows])
        probed, short_right = np.array([row[kind][2] for row in self.rows]), self.right(lambda row: row[kind][0])
        yield _about(f"short only, {kind}", "short", 0, "vote") | {"short_share": 1.0}, short_right, probed
        for chains in ROUTED:
            for selection in self.selections:
                # A verdict that no one stated as text has no score: with exact consensus chains alone are candidates.
                reused = self.reuse and kind == "sampled"
                long = self.right(lambda row, k=chains, by=selection, own=reused: verdict_of(row, k, by, probes=own))
                thought = probed + self.resume + self.written[:, chains]
                for tau in grid_of(consensus, EXACT_STEPS):
                    short = metrics.takes_short(consensus, tau)
                    about = _about(
                        f"routed {kind}, tau = {tau:g}, K = {chains}, by {selection}",
                        f"routed {kind}",
                        chains,
                        selection,
                    )
                    about |= {"threshold": tau, "short_share": float(short.mean())}
                    yield about, np.where(short, short_right, long), np.where(short, probed, thought)


def _about(name: str, family: str, chains: float, selection: str) -> Row:
    return {"method": name, "family": family, "chains": chains, "selection": selection, "short_share": 0.0}


# -- figures ------------------------------------------------------------------------------------------------------------


def measure(rows: Sequence[Row], methods: Methods, seconds: Row, resamples: int) -> list[Row]:
    """Accuracy, operations and seconds of every method, and which are on the front.

    Args:
        rows: The pool.
        methods: Of the pool.
        seconds: Of the paths, see `time_paths`.
        resamples: Of the bootstrap.
    """
    groups = [row["question"] for row in rows]
    found = []
    base: NDArray[np.float64] | None = None
    for about, right, flops in methods.all():
        if about["family"] == "always" and about["chains"] == 4 and about["selection"] == "vote":
            base = flops
        accuracy = metrics.bootstrap(lambda column: float(column.mean()), right, groups=groups, resamples=resamples)
        found.append(
            about | {"accuracy": asdict(accuracy), "flops": float(flops.mean()), "seconds": _seconds(about, seconds)}
        )
    assert base is not None, "four chains by majority are among the methods"
    for row in found:
        row["flops_ratio"] = row["flops"] / float(base.mean())
    mark_front(found)
    return found


def mark_front(found: Sequence[Row]) -> None:
    """Set `on_front` of each method: no other one is as right for less, or more right for as much.

    Args:
        found: With `accuracy` and `flops`.
    """
    best = -1.0
    for row in sorted(found, key=lambda row: (row["flops"], -row["accuracy"]["value"])):
        row["on_front"] = row["accuracy"]["value"] > best
        best = max(best, row["accuracy"]["value"])


def _seconds(about: Row, seconds: Row) -> float | None:
    if about["family"] == "adaptive" or not seconds:
        return None
    long = seconds.get(f"long {about['chains']:g}", 0.0)
    if about["family"] == "always":
        return long
    kind = "exact" if "exact" in about["method"] else "sampled"
    return seconds[f"short {kind}"] + (1 - about["short_share"]) * long


def time_paths(model: EGRMRewardModel, items: Sequence[LabelledItem], batch_size: int) -> Row:
    """Seconds of an item on each path.

    Args:
        model: The judge.
        items: Any number; none: nothing is timed.
        batch_size: Items judged together.
    """
    if not items:
        return {}
    paths: dict[str, dict[str, Any]] = {
        "short exact": {"path": "short", "consensus": "exact"},
        "short sampled": {"path": "short", **sampled_trigger(model)},
    }
    paths |= {f"long {chains}": {"path": "long", "num_chains": chains, "selection": "vote"} for chains in ALWAYS}
    start, found = time.perf_counter(), {}
    for name, options in paths.items():
        judge_labelled(model, items[:batch_size], batch_size, **options)  # warms up
        found[name] = judge_labelled(model, items, batch_size, **options)[1] / len(items)
    print(f"timed in {time.perf_counter() - start:.0f} s", flush=True)
    return found


def draw(found: Sequence[Row], path: Path) -> None:
    """Accuracy against operations, the front as a line.

    Args:
        found: Of `measure`.
        path: The picture.
    """
    figure: Any = import_extra("matplotlib.figure", "eval").Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for family in dict.fromkeys(row["family"] for row in found):
        own = [row for row in found if row["family"] == family]
        axes.scatter([row["flops_ratio"] for row in own], [100 * row["accuracy"]["value"] for row in own], s=14, alpha=0.6,
                     label=family)  # fmt: skip
    front = sorted((row for row in found if row["on_front"]), key=lambda row: row["flops"])
    axes.plot([row["flops_ratio"] for row in front], [100 * row["accuracy"]["value"] for row in front], color="black",
              linewidth=1, label="front")  # fmt: skip
    axes.set_xlabel("operations, of four chains by majority")
    axes.set_ylabel("accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def table(found: Sequence[Row]) -> str:
    """The front, and every method without a threshold, as Markdown.

    Args:
        found: Of `measure`.
    """
    lines = ["| method | accuracy, % | operations / four chains | short | ms | front |", "|---|---|---|---|---|---|"]
    shown = [row for row in found if row["on_front"] or "threshold" not in row]
    for row in sorted(shown, key=lambda row: row["flops"]):
        value, low, high = (100 * row["accuracy"][name] for name in ("value", "low", "high"))
        took = "" if row["seconds"] is None else f"{1000 * row['seconds']:.1f}"
        lines.append(
            f"| {row['method']} | {value:.1f} ({low:.1f} to {high:.1f}) | {row['flops_ratio']:.3f} | "
            f"{row['short_share']:.1%} | {took} | {'yes' if row['on_front'] else ''} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("judge", help="`egrm-mini`, or the folder of a checkpoint with a pointwise space from 0 to 10")
    parser.add_argument("--pool", type=Path, required=True, metavar="FILE.jsonl", help="where judged items are kept")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--items", type=int, default=12_000)
    parser.add_argument("--split", default="test", choices=["calibration", "test", "sealed"],
                        help="calibration to choose on, test to tell, sealed to publish")  # fmt: skip
    parser.add_argument("--temperatures", nargs="+", type=float, help="of exact consensus; default: the checkpoint's")
    parser.add_argument("--top-ps", nargs="+", type=float, help="likewise; below 1, sure verdicts all look alike")
    parser.add_argument("--timed", type=int, default=512, help="items whose paths are timed; 0: none")
    parser.add_argument("--resamples", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=64)
    given = parser.parse_args()
    model = RewardJudge(given.judge).model
    items = world_items(model, given.split, given.items)
    exact = {name: getattr(given, name) for name in ("temperatures", "top_ps") if getattr(given, name)}
    rows = read_pool(given.pool, model, items, given.batch_size, exact)
    options = model.config.judge_options()
    methods = Methods(rows, scorer=options.selection == "scorer", reuse=options.reuse_probes)
    seconds = time_paths(model, items[: given.timed], given.batch_size)
    found = measure(rows, methods, seconds, given.resamples)
    given.output.mkdir(parents=True, exist_ok=True)
    questions = len({row["question"] for row in rows})
    write_json(given.output / "results.json", {"judge": given.judge, "exact": exact, "split": given.split, "items": len(rows),
                                               "questions": questions, "seconds": seconds, "rows": found})  # fmt: skip
    write_text(given.output / "table.md", table(found))
    draw(found, given.output / "pareto.png")
    print(table(found))


if __name__ == "__main__":
    main()
