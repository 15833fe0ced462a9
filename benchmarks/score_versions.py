"""`egrm score` by two versions of this library in one run: processor seconds of the whole command, and per record.

    git worktree add ../old COMMIT
    OMP_NUM_THREADS=1 python benchmarks/score_versions.py --old ../old --rounds 5

The judge is tiny and untrained, written by the older version and read by both, so that what the command itself does
shows. Every run is a process of its own; versions alternate. A file of one record and one of `--records` are judged: the
first is the start, their difference divided by the number of further records is what a record costs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


MAKE = """
from tests.tiny import tiny_generator, tiny_tokenizer
from transformers_egrm import EGRMRewardModel
EGRMRewardModel.from_components(
    tiny_generator(max_position_embeddings=4096), tokenizer=tiny_tokenizer(), max_chain_tokens=32
).save_pretrained({folder!r})
"""
SCORE = """
import sys
try:
    from transformers_egrm_cli import main
except ModuleNotFoundError:  # version 0.1
    from transformers_egrm.cli import main
sys.argv = ["egrm", "score", {folder!r}, {source!r}, "-o", {output!r}]
main()
"""


def python(tree: Path, code: str, allowed: tuple[int, ...] = (0,)) -> float:
    """Run code on a tree; the processor seconds of its process."""
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(tree)},
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in allowed:
        sys.exit(done.stderr[-2000:])
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    """Measure, and print medians and their range over rounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--old", type=Path, required=True, help="checkout of the older version")
    parser.add_argument("--records", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    trees = {"old": args.old.resolve(), "new": Path(__file__).resolve().parents[1]}

    from transformers_egrm.data.synthetic import examples

    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        folder = str(scratch / "judge")
        python(trees["old"], MAKE.format(folder=folder))
        stream = examples("test", seed=3)
        lines = [json.dumps(next(stream).record()) for _ in range(args.records)]
        sources = {count: scratch / f"{count}.jsonl" for count in (1, args.records)}
        for count, source in sources.items():
            source.write_text("".join(f"{line}\n" for line in lines[:count]))

        def run(tree: str, count: int, number: int) -> float:
            output = str(scratch / f"{tree}-{count}-{number}.jsonl")
            code = SCORE.format(folder=folder, source=str(sources[count]), output=output)
            return python(trees[tree], code, allowed=(0, 1))  # 1: no record has a reward

        for tree in trees:
            run(tree, 1, -1)  # modules are compiled
        start, whole, each = ({"old": [], "new": []} for _ in range(3))
        for number in range(args.rounds):
            for tree in sorted(trees, reverse=bool(number % 2)):
                start[tree].append(run(tree, 1, number))
                whole[tree].append(run(tree, args.records, number))
                each[tree].append(1000 * (whole[tree][-1] - start[tree][-1]) / (args.records - 1))

    print(f"| processor seconds, {args.rounds} rounds | old | new | new / old (range) |\n|---|---|---|---|")
    for label, taken in (("one record, s", start), (f"{args.records} records, s", whole), ("a further one, ms", each)):
        ratios = sorted(new / old for old, new in zip(taken["old"], taken["new"], strict=True))
        middle = [statistics.median(taken[tree]) for tree in ("old", "new")]
        print(
            f"| {label} | {middle[0]:.2f} | {middle[1]:.2f} "
            f"| {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |"
        )


if __name__ == "__main__":
    main()
