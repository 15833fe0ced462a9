"""How often a judge of a small world calls a text unfamiliar: texts of its world, and others.

    python benchmarks/unfamiliar_text.py --lines gsm8k.jsonl math500.jsonl --json rm_bench_chat.json

The world's test split was used for nothing that the sign was made of. Of a `.jsonl` file each line is a record with
`question` or `prompt`, and `answer`; of an RM-Bench file each chosen response to a `prompt` is one.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from transformers_egrm.bundle import load_mini
from transformers_egrm.data.synthetic import examples
from transformers_egrm.data.synthetic.splits import STREAMS
from transformers_egrm.evaluation.metrics import wilson
from transformers_egrm.modeling.judge_familiar_egrm import Familiarity, familiarity_of
from transformers_egrm.modeling.processing_egrm import EGRMProcessor


def main() -> None:
    """Print a line for each source."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=Path, nargs="*", default=[], help="files of records, one a line")
    parser.add_argument("--json", type=Path, nargs="*", default=[], help="files of RM-Bench")
    parser.add_argument("--count", type=int, default=12_500, help="items of the world's test split")
    arguments = parser.parse_args()
    model = load_mini()
    own = model.processor
    processor = EGRMProcessor(own.tokenizer, own.scorer_tokenizer, max_prompt_tokens=10**6)  # nothing is judged here
    familiarity = familiarity_of(model.config)
    assert familiarity is not None, "the bundled judge stores what it knows"
    print(f"limit: {familiarity.most_unknown:.0%} of tokens out of {len(familiarity.token_ids)} known ones")
    each = -(-arguments.count // STREAMS)
    world = (example.record() for seed in range(STREAMS) for example in islice(examples("test", seed), each))
    tell("the world's test split", world, processor, familiarity)
    for path in arguments.lines:
        tell(path.name, records_of_lines(path), processor, familiarity)
    for path in arguments.json:
        tell(path.name, records_of_rm_bench(path), processor, familiarity)


def tell(name: str, records: Iterable[dict[str, Any]], processor: EGRMProcessor, familiarity: Familiarity) -> None:
    """Print how many of some records are unfamiliar.

    Args:
        name: Of the source.
        records: Prompt and response of each.
        processor: The judge's.
        familiarity: What the judge knows.
    """
    shares = sorted(familiarity.unknown_share(processor.encode(record).judged_ids) for record in records)
    strange = sum(share > familiarity.most_unknown for share in shares)
    estimate = wilson(strange, len(shares))
    print(
        f"{name}: {strange} of {len(shares)} unfamiliar ({estimate.value:.2%}, {estimate.low:.2%} to {estimate.high:.2%}); "
        f"share of unknown tokens {shares[0]:.3f} to {shares[-1]:.3f}"
    )


def records_of_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Question and answer of each line."""
    for line in path.read_text("utf-8").splitlines():
        values = json.loads(line)
        yield {"prompt": values.get("question") or values["prompt"], "response": str(values["answer"])}


def records_of_rm_bench(path: Path) -> Iterator[dict[str, Any]]:
    """Each chosen response with its prompt."""
    for values in json.loads(path.read_text("utf-8")):
        yield from ({"prompt": values["prompt"], "response": chosen} for chosen in values["chosen"])


if __name__ == "__main__":
    main()
