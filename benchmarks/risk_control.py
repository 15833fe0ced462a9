"""Whether a promise holds: thresholds chosen on resampled labels, against the truth of the pool that they are drawn from.

Run:
    python benchmarks/risk_control.py egrm-mini --pool runs/pool --items 20000 --output runs/risk

Items come from the calibration and test splits of the synthetic world, alike from each of their streams, and no two ask
the same. They are judged once on both paths and kept in `POOL.exact.jsonl` and
`POOL.sampled.jsonl`; a run that was stopped goes on. Then each of 200 resamples draws questions with replacement and chooses
a threshold by `calibration.choose`; its true risk is the pool's. Writes results.json and table.md.

`--judged` takes items that pareto.py judged instead, calibration and test pools for example; the long path is then four chains
by the scorer. `--runs` takes folders of `egrm bench` on pairs instead, in which every ask took the long path and explained
its probes; what their questions allow at all is told too.

The oracle is the laxest threshold of the same grid whose risk in the pool is at most r.
"""

import argparse
import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from pareto import verdict_of

from transformers_egrm.calibration.aims import Aim
from transformers_egrm.calibration.judging import BOTH_PATHS, judge_both_paths
from transformers_egrm.calibration.records import CalibrationItem, Labelled, digest_of
from transformers_egrm.calibration.thresholds import choose, grid_of
from transformers_egrm.data.files import write_json, write_text
from transformers_egrm.data.synthetic.splits import STREAMS
from transformers_egrm.data.synthetic.world import examples
from transformers_egrm.evaluation.asking import Question
from transformers_egrm.evaluation.benchmarks import load_benchmark
from transformers_egrm.evaluation.metrics import takes_short
from transformers_egrm.evaluation.model_judges import EGRMJudge
from transformers_egrm.judge import RewardJudge


RISKS = (0.01, 0.02, 0.05)
LAX_RISKS = (0.4, 0.6)
"""Of runs: a judge near chance can keep no other."""
ALLOWED = 18
"""Of 200 promises at delta = 0.05, so many may be exceeded: chance alone gives no more in 99 % of runs."""


def world_questions(count: int) -> list[Question]:
    """Labelled answers of the synthetic world.

    Args:
        count: How many answers, rounded up to as many from each stream.
    """
    streams = [(split, seed) for split in ("calibration", "test") for seed in range(STREAMS)]
    return [
        Question(
            id=f"{split}/{seed}/{number}", question_id=one.question_id, subset=f"level {one.difficulty}",
            prompt=one.prompt, responses=(one.response,), truths=(float(one.verdict),),
        )
        for split, seed in streams
        for number, one in enumerate(islice(examples(split, seed), -(-count // len(streams))))
    ]  # fmt: skip


def pool_of(
    judge: str, kind: str, questions: list[Question], options: dict[str, Any], batch_size: int, cache: str
) -> Labelled:
    """The pool of one kind of consensus, judged or read from its file.

    Args:
        judge: As `RewardJudge` takes it.
        kind: `exact` or `sampled`.
        questions: What to judge.
        options: Judging options of exact consensus beside the checkpoint's.
        batch_size: Answers judged together.
        cache: Where judged items are kept.
    """
    own: dict[str, Any] = BOTH_PATHS | {"consensus": kind} | (options if kind == "exact" else {})
    model = RewardJudge(judge, batch_size=batch_size, explain=True, **own)
    items, _ = judge_both_paths(
        EGRMJudge(model, name=judge), questions, load_benchmark("own"), cache=f"{cache}.{kind}.jsonl", progress=True
    )
    return Labelled(items)


def pool_of_rows(files: Sequence[Path], kind: str) -> Labelled:
    """The pool of one kind of consensus, from items that pareto.py judged.

    Args:
        files: Its pools.
        kind: `exact` or `sampled`.
    """
    rows = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()[1:]]
    items = []
    for number, row in enumerate(rows):
        verdict, consensus, flops = row[kind]
        long = verdict_of(row, 4, "scorer", probes=kind == "sampled")
        written = sum(cost for _, _, cost in row["chains"][:4])
        items.append(
            CalibrationItem(
                id=str(number), question_id=row["question"], text_digest=digest_of(row["question"]), verdict=None,
                short_right=verdict == row["truth"], long_right=long == row["truth"], consensus=consensus or 0.0,
                short_flops=float(flops), long_flops=float(flops + row["resume_flops"] + written),
            )
        )  # fmt: skip
    return Labelled(items)


def pool_of_run(folder: Path) -> Labelled:
    """The pool of a run on pairs: each order of a pair is an item.

    Args:
        folder: Written by `egrm bench`, with exact consensus.

    Raises:
        SystemExit: An ask took the short path, so that nobody knows what chains would have said.
    """
    items = []
    for line in (folder / "items.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        for number, ask in enumerate(row["asks"]):
            if ask["route"] != "long":
                raise SystemExit(f"{folder}: {row['id']} took the short path; judge it with `--path long`.")
            rungs = [rung["distribution"] for rung in ask["details"]["probes"]]
            short = max(rungs[0], key=lambda label: sum(rung[label] for rung in rungs))
            truths = [row["truths"][place] for place in ask["shown"]]
            right, flops = "A" if truths[0] > truths[1] else "B", ask["flops"]
            items.append(
                CalibrationItem(
                    id=f"{row['id']}/{number}", question_id=row["question_id"], text_digest=digest_of(row["question_id"]),
                    verdict=short, short_right=short == right, long_right=ask["verdict"] == right,
                    consensus=ask["consensus"], short_flops=flops, long_flops=flops,
                )
            )  # fmt: skip
    return Labelled(items)


def told_of_run(folder: Path, **settings: Any) -> str:
    """What can be promised of a run's judge, and how often a promise from as many questions would be exceeded.

    Args:
        folder: As `pool_of_run` reads it.
        **settings: `resamples` and `delta` of `control`.
    """
    pool = pool_of_run(folder)
    lines = [
        f"{folder.name}: {len(pool)} asks of {pool.num_questions} questions; right: short {pool.short_right.mean():.1%}, "
        f"long {pool.long_right.mean():.1%}; consensus {pool.consensus.min():.3f} to {pool.consensus.max():.3f}"
    ]  # fmt: skip
    for level in (*RISKS, *LAX_RISKS):
        row = control(pool, level, questions=pool.num_questions, **settings)
        found = choose(pool, Aim("risk", level), settings["delta"])
        told = f"threshold {found.threshold:g}, short {found.short_share:.1%}" if found.promised else found.reason
        lines.append(f"  r = {level:.0%}: {told}; exceeded {row['exceeded']} of {row['resamples']}, promised "
                     f"{row['promised']}, short {row['short_share']:.1%}, oracle {row['oracle_share']:.1%}")  # fmt: skip
    return "\n".join(lines)


def control(pool: Labelled, level: float, *, resamples: int, questions: int, delta: float) -> dict[str, Any]:
    """How often the promise of one risk is exceeded, and what short share it leaves.

    Args:
        pool: The truth.
        level: r.
        resamples: How many thresholds to choose.
        questions: Questions drawn for each.
        delta: Of each promise.
    """
    aim, grid = Aim("risk", level), grid_of(pool.consensus)
    truth = {tau: (aim.observed(pool, short), float(pool.per_question(short).mean()))
             for tau in grid for short in [takes_short(pool.consensus, tau)]}  # fmt: skip
    oracle = max((place for place, tau in enumerate(grid) if (truth[tau][0] or 0.0) <= level), default=None)
    random = np.random.default_rng(round(1e4 * level))
    shares, steps, exceeded = [], [], 0
    for number in range(resamples):
        drawn = pool.of(random.integers(pool.num_questions, size=questions))
        found = choose(drawn, aim, delta, seed=number, grid=grid)
        risk, share = truth[found.threshold] if found.promised else (0.0, 0.0)
        exceeded += (risk or 0.0) > level
        shares.append(share)
        if found.promised and oracle is not None:
            steps.append(oracle - grid.index(found.threshold))
    ideal = 0.0 if oracle is None else truth[grid[oracle]][1]
    return {
        "r": level, "delta": delta, "questions": questions, "resamples": resamples, "exceeded": exceeded,
        "promised": int(np.count_nonzero(shares)), "short_share": float(np.mean(shares)), "oracle_share": ideal,
        "gap": ideal - float(np.mean(shares)), "oracle_threshold": None if oracle is None else grid[oracle],
        "steps_stricter": {str(step): steps.count(step) for step in sorted(set(steps))},
    }  # fmt: skip


def table(results: dict[str, Any]) -> str:
    """The results as Markdown.

    Args:
        results: As `main` collects them.
    """
    lines = [
        f"Pool: {results['items']:,} answers of {results['questions_in_pool']:,} questions; questions count alike.", "",
        "| consensus | r | exceeded | promised | short share | oracle | gap |", "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in results["rows"]:
        lines.append(
            f"| {row['consensus']} | {row['r']:.0%} | {row['exceeded']} of {row['resamples']} (at most {ALLOWED} of 200) | "
            f"{row['promised']} | {row['short_share']:.1%} | {row['oracle_share']:.1%} | {100 * row['gap']:.1f} points |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("judge", help="`egrm-mini`, or the folder of a checkpoint with a pointwise space from 0 to 10")
    parser.add_argument("--pool", metavar="PATH", help="where judged items are kept")
    parser.add_argument(
        "--judged", nargs="+", type=Path, default=[], metavar="FILE", help="pools of pareto.py instead"
    )
    parser.add_argument(
        "--runs", nargs="+", type=Path, default=[], metavar="FOLDER", help="runs of `egrm bench` instead"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--kinds", nargs="+", choices=("exact", "sampled"), default=["exact", "sampled"])
    parser.add_argument("--temperatures", nargs="+", type=float, help="of exact consensus; default: the checkpoint's")
    parser.add_argument("--top-ps", nargs="+", type=float, help="likewise; below 1, sure verdicts all look alike")
    parser.add_argument("--resamples", type=int, default=200)
    parser.add_argument("--questions", type=int, default=2_000, help="drawn in each resample")
    parser.add_argument("--delta", type=float, default=0.05)
    parser.add_argument("--batch-size", type=int, default=64)
    given = parser.parse_args()
    options = {name: getattr(given, name) for name in ("temperatures", "top_ps") if getattr(given, name)}
    if sum(map(bool, (given.pool, given.judged, given.runs))) != 1:
        parser.error("one of --pool, --judged and --runs says where the items are")
    questions = world_questions(given.items) if given.pool else []
    results: dict[str, Any] = {"judge": given.judge, "options": options, "rows": []}
    if given.runs:
        for folder in given.runs:
            print(told_of_run(folder, resamples=given.resamples, delta=given.delta))
        return
    for kind in given.kinds:
        if given.judged:
            pool = pool_of_rows(given.judged, kind)
        else:
            pool = pool_of(given.judge, kind, questions, options, given.batch_size, given.pool)
        results |= {"items": len(pool), "questions_in_pool": pool.num_questions}
        for level in RISKS:
            row = control(pool, level, resamples=given.resamples, questions=given.questions, delta=given.delta)
            results["rows"].append({"consensus": kind} | row)
            print(json.dumps(results["rows"][-1]))
    write_json(given.output / "results.json", results)
    write_text(given.output / "table.md", table(results))
    print(table(results))


if __name__ == "__main__":
    main()
