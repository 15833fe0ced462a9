"""Put a run's checkpoint into the package, as the judge that `load_mini()` loads.

Run:
    python examples/train/bundle.py runs/mini/checkpoint

Weights are rounded to half precision and stored as float32, so that they are read exactly as they were measured and
compress well. The code that a checkpoint brings is left out: inside the package it would be a second copy. The folder's own
`.py` files, which lead to the package's code, stay. What the judge knows of its world (`EGRMConfig.familiar`) is counted on
the training split, its limit set on the calibration split.
"""

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch

from transformers_egrm import EGRMRewardModel
from transformers_egrm.bundle import MINI_FOLDER
from transformers_egrm.data.synthetic import examples
from transformers_egrm.data.synthetic.world import LEVELS
from transformers_egrm.modeling.judge_familiar_egrm import Familiarity
from transformers_egrm.modeling.processing_egrm import EGRMProcessor


MOST_BYTES = 4_000_000
CARD = {
    "warning": (
        "A working example of the method, not a general judge. It was trained from nothing, without a base model, in the "
        "synthetic world of `transformers_egrm.data.synthetic`: short sums, comparisons, counts, dates and letters, asked in a "
        "few fixed ways. Of any other text its rewards mean nothing: it may give a wrong answer the highest."
    ),
    "license": "apache-2.0",
    "language": "en",
    "example": {"prompt": "Mia has 7 books, gets 5. How many books now?", "response": "It is 12."},
}
"""What the card says of these weights, wherever they are saved."""


def main() -> None:
    """Bundle."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="folder made by `egrm train`")
    parser.add_argument("--folder", type=Path, default=MINI_FOLDER, help="where it goes")
    arguments = parser.parse_args()
    size = bundle(arguments.checkpoint, arguments.folder)
    print(f"{arguments.folder}: {size:,} bytes")


def bundle(checkpoint: str, folder: Path) -> int:
    """Write the bundle and return its size in bytes.

    Args:
        checkpoint: Folder made by `egrm train`.
        folder: Replaced.

    Raises:
        ValueError: It is larger than the repository allows.
    """
    model = EGRMRewardModel.from_pretrained(checkpoint, dtype=torch.float32)
    model.config.card = CARD
    model.config.familiar = familiarity(model.processor).to_dict()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.half().float())
    with tempfile.TemporaryDirectory() as work:
        model.save_pretrained(work)
        files = [path for path in sorted(Path(work).iterdir()) if path.suffix != ".py"]
        size = sum(path.stat().st_size for path in files)
        if size > MOST_BYTES:
            raise ValueError(
                f"The bundle would take {size:,} bytes, at most {MOST_BYTES:,} are allowed: train a smaller judge."
            )
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if path.is_file() and path.suffix != ".py":
                path.unlink()
        for path in files:
            shutil.copyfile(path, folder / path.name)
    return size


def familiarity(processor: EGRMProcessor) -> Familiarity:
    """What a judge of the synthetic world knows.

    Args:
        processor: The judge's.
    """

    def texts(split: str, count: int, mix: dict[int, float] | None = None) -> Iterator[tuple[int, ...]]:
        drawn = islice(examples(split, seed=0, mix=mix), count)
        return (processor.encode(example.record()).judged_ids for example in drawn)

    return Familiarity.fit(texts("train", 20_000, dict.fromkeys(LEVELS, 1.0)), texts("calibration", 2_500))


if __name__ == "__main__":
    main()
