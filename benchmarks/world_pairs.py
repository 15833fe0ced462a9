"""Pairs of a right and a wrong answer from the bundled judge's own world, as JSONL for `egrm bench`.

    python benchmarks/world_pairs.py --count 100 > world_pairs.jsonl

Questions are of the test split, of one part and one step, and each comes once.
"""

import argparse
import json
from collections.abc import Iterator
from itertools import islice

from transformers_egrm.data.synthetic import groups


def pairs(seed: int = 0) -> Iterator[dict[str, str]]:
    """Records with a right answer and a wrong one to the same question."""
    seen = set()
    for better, worse in groups("test", seed, mix={1: 1.0}):
        if better.kind == "right" and worse.kind.endswith("wrong") and better.question_id not in seen:
            seen.add(better.question_id)
            yield {"id": better.question_id, "prompt": better.prompt, "chosen": better.response,
                   "rejected": worse.response}  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    for record in islice(pairs(chosen.seed), chosen.count):
        print(json.dumps(record, ensure_ascii=False))
