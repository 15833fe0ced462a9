"""Time and peak memory of `egrm score` as the number of records grows.

Every figure is of a whole process, from its start to its exit, imports and model included: what a user waits for, and
the memory that a machine must have. The model is tiny and random, so that what scales is the path of the records:
reading, batching, journal, output. Each size runs several times; the table shows medians.

Run:
    python benchmarks/scaling.py                                  # 1k, 10k and 100k records, about half an hour
    python benchmarks/scaling.py --records 1000 --repeats 1       # a quick look
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.modeling.prompt_templates_egrm import RUBRICS


TEXT = "the judge reads an answer and says how good it is before it thinks about it once more"


def build_model(folder: Path) -> None:
    """A random Llama of a hundred thousand parameters, with a small tokenizer that can write any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1000, special_tokens=["<bos>", "<eos>", "<pad>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator([TEXT, *RUBRICS.values()] * 4, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", padding_side="left"
    )
    torch.manual_seed(0)
    generator = AutoModelForCausalLM.from_config(
        LlamaConfig(
            vocab_size=len(fast), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048, initializer_range=0.2,
            bos_token_id=0, eos_token_id=1, pad_token_id=2,
        )
    )  # fmt: skip
    model = EGRMRewardModel.from_components(
        generator,
        tokenizer=fast,
        probe_vocabulary="verdict",
        consensus_threshold=0.6,
        max_chain_tokens=16,
        num_chains=2,
    )
    model.save_pretrained(folder)


def write_records(path: Path, count: int) -> None:
    """Records of 20 to 60 words, all different."""
    vocabulary = TEXT.split()
    with path.open("w", encoding="utf-8") as stream:
        for number in range(count):
            words = [vocabulary[(number * 7 + place) % len(vocabulary)] for place in range(20 + number % 41)]
            record = {"id": number, "prompt": f"Question {number}?", "response": " ".join(words)}
            stream.write(json.dumps(record) + "\n")


def measure(words: list[str], log: Path) -> dict[str, Any]:
    """Wall time, processor time and peak memory of one `egrm` process."""
    command = [sys.executable, "-m", "transformers_egrm.cli", *words]
    to_log = [(os.POSIX_SPAWN_OPEN, 2, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)]
    started = time.perf_counter()
    process = os.posix_spawn(sys.executable, command, os.environ, file_actions=to_log)
    _, status, usage = os.wait4(process, 0)
    seconds = time.perf_counter() - started
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{log.read_text()}")
    kib = usage.ru_maxrss / 1024 if sys.platform == "darwin" else usage.ru_maxrss
    return {"seconds": seconds, "cpu_seconds": usage.ru_utime + usage.ru_stime, "peak_mib": kib / 1024}


def main() -> None:
    """Measure all sizes, print a Markdown table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=[1_000, 10_000, 100_000], help="sizes to run")
    parser.add_argument(
        "--repeats", type=int, nargs="+", default=[5, 5, 1], help="runs of each size; the last repeats"
    )
    parser.add_argument("--formats", nargs="+", default=["jsonl"], help="output formats: jsonl, csv, parquet")
    parser.add_argument("--batch-size", type=int, default=32, help="passed to egrm score")
    parser.add_argument("--output", type=Path, default=Path("scaling.json"), help="where the figures go as JSON")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        build_model(folder / "judge")
        for index, count in enumerate(arguments.records):
            source = folder / f"{count}.jsonl"
            write_records(source, count)
            for output_format in arguments.formats:
                runs = []
                for repeat in range(arguments.repeats[min(index, len(arguments.repeats) - 1)]):
                    output = folder / f"{count}-{repeat}.{output_format}"
                    words = ["score", str(folder / "judge"), str(source), "-o", str(output),
                             "--batch-size", str(arguments.batch_size), "--summary", str(folder / "summary.json")]  # fmt: skip
                    runs.append(measure(words, folder / "log.txt"))
                    print(f"{count} records, run {repeat + 1}: {runs[-1]}", file=sys.stderr, flush=True)
                summary = json.loads((folder / "summary.json").read_text("utf-8"))
                assert summary["records"] == count, f"every record needs one row, got {summary['records']} of {count}"
                median = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
                rows.append({"records": count, "output": output_format, "runs": len(runs), **median,
                             "judging_seconds": summary["seconds"], "short_share": summary["short_share"],
                             "tokens": summary["tokens"], "all_runs": runs})  # fmt: skip
    about = {"machine": platform.machine(), "cpus": os.cpu_count(), "python": platform.python_version(),
             "torch": torch.__version__, "batch_size": arguments.batch_size}  # fmt: skip
    arguments.output.write_text(json.dumps({"about": about, "rows": rows}, indent=2) + "\n", "utf-8")
    print("| records | output | runs | seconds | records/s | peak MiB | new tokens | short |")
    print("|---:|---|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        print(f"| {row['records']:,} | {row['output']} | {row['runs']} | {row['seconds']:.1f} "
              f"| {row['records'] / row['seconds']:.0f} | {row['peak_mib']:.0f} | {row['tokens']:,} "
              f"| {100 * (row['short_share'] or 0):.0f} % |")  # fmt: skip


if __name__ == "__main__":
    main()
