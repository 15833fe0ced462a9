"""What mixed lengths and large batches cost: batches and the nucleus search as they are, against as they were.

Run:
    python benchmarks/ragged_batches.py                      # about five minutes
    python benchmarks/ragged_batches.py --part nucleus --rounds 5 --output ragged.json

- `short`, `long`: a random four-layer Llama judges records whose responses are mixed 1:20 in length, by probes alone or by
  four chains of 32 tokens. *Before*, a batch was filled up whatever it padded and however many tokens that came to.
- `nucleus`: one draw of each row from a random Llama's logits over 262,144 columns, scaled so that they are as peaked as
  those of a trained model, or left nearly flat. *Before*, one row that 256 tokens did not prove sent the whole batch
  through the full search; that code is kept below.

Rounds visit batch sizes and both ways in turn, on one thread, and times are CPU seconds of this process, which others on
the machine disturb least. Ratios are medians of per-round ratios, the only figures to quote from a shared machine.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from transformers_egrm import RewardJudge, load_mini
from transformers_egrm.modeling import judge_packing_egrm
from transformers_egrm.modeling.engine_sampling_egrm import _invert, _nucleus_floor, _weights, draw
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel


COLUMNS = 262_144
SIZES = (4, 16, 64)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["short", "long", "nucleus", "all"], default="all")
    parser.add_argument("--records", type=int, default=64, help="records of a measurement of `short` or `long`")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each way")
    parser.add_argument("--hidden", type=int, default=256, help="width of the judge")
    parser.add_argument("--output", type=Path, help="JSON file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    if arguments.part in ("nucleus", "all"):
        found["nucleus"] = nucleus(arguments.rounds)
    for path in ("short", "long"):
        if arguments.part in (path, "all"):
            found[path] = judging(path, arguments.records, arguments.rounds, arguments.hidden)
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


# --- the nucleus -----------------------------------------------------------------------------------------------------------


def draw_before(logits: Tensor, temperatures: Tensor, top_ps: Tensor, uniform: Tensor) -> Tensor:
    """`draw` as it was in version 0.1: one search for all rows."""
    weights = _weights(logits, temperatures)
    drawn = _ranked_before(logits, weights, top_ps, uniform)
    if drawn is None:
        kept = weights * (weights >= _nucleus_floor(weights, top_ps)[:, None])
        drawn = _invert(kept.double().cumsum(-1), uniform)
    return torch.where(temperatures > 0, drawn, logits.argmax(-1))


def _ranked_before(logits: Tensor, weights: Tensor, top_ps: Tensor, uniform: Tensor) -> Tensor | None:
    index = logits.topk(256, dim=-1).indices
    ranked = weights.gather(-1, index).double()
    inside = ranked.cumsum(-1) - ranked < (top_ps * weights.sum(-1, dtype=torch.float64))[:, None]
    floor = ranked.gather(-1, inside.sum(-1, keepdim=True).clamp_min(1) - 1)
    if not bool((ranked[:, -1:] < floor).all()):
        return None
    index, order = index.sort(-1)
    sums = torch.where(ranked >= floor, ranked, torch.zeros_like(ranked)).gather(-1, order).cumsum(-1)
    return index.gather(-1, _invert(sums, uniform)[:, None])[:, 0]


def nucleus(rounds: int) -> list[dict[str, Any]]:
    """Seconds of a draw, before and now, for batches of three kinds."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=COLUMNS, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        logits = model(torch.randint(COLUMNS, (1, max(SIZES)))).logits[0].float()
    logits = logits / logits.std(-1, keepdim=True)
    peaked, wide = logits * 8, logits * 4
    mixed = peaked.clone()
    some = slice(None, None, max(SIZES) // 4)
    mixed[some] = wide[some]  # one row in sixteen holds its nucleus in some thousand tokens
    rows = []
    for kind, own in (("peaked", peaked), ("one row in 16 wide", mixed)):
        cases = {}
        for size in SIZES:
            given = own[:size], torch.full((size,), 0.8).double(), torch.full((size,), 0.95).double()
            uniform = torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
            assert torch.equal(draw(*given, uniform), draw_before(*given, uniform)), "both draw the same tokens"
            cases[size] = (partial(draw_before, *given, uniform), partial(draw, *given, uniform))
        rows += table(kind, cases, rounds, lambda size: size)
    return rows


# --- judging ---------------------------------------------------------------------------------------------------------------


def judging(path: str, count: int, rounds: int, hidden: int) -> list[dict[str, Any]]:
    """Seconds of judging records of mixed length on one path, before and now."""
    torch.manual_seed(0)
    tokenizer = load_mini().processor.tokenizer
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=8192,
    )  # fmt: skip
    model = EGRMRewardModel.from_components(
        LlamaForCausalLM(config).eval(), tokenizer=tokenizer, probe_vocabulary="verdict"
    )
    numbers = random.Random(0)
    records = [
        {"prompt": f"{n} + {n * 7 % 10} = ?", "response": " ".join(["5"] * int(20 * 20 ** numbers.random()))}
        for n in range(count)
    ]
    shares = {}

    def judge(size: int) -> None:
        made = RewardJudge(model, batch_size=size, reorder_window=count, path=path, max_chain_tokens=32)
        made(records)
        shares[size, judge_packing_egrm.PADDED_SHARE] = made.load.padded_share

    cases = {size: (partial(as_before, judge, size), partial(judge, size)) for size in SIZES}
    judge(SIZES[0])  # what is tried out once per generator
    rows = table(path, cases, rounds, lambda size: count)
    for row in rows:
        row["padded_before"], row["padded_now"] = shares[row["size"], 1.0], shares[row["size"], 0.1]
        print(f"  {row['size']:3d}: {row['padded_before']:.1%} padded before, {row['padded_now']:.1%} now")
    return rows


def as_before(judge: Callable[[int], None], size: int) -> None:
    """Judge with batches that are filled up whatever they pad and run."""
    limits = {"PADDED_SHARE": 1.0, "PASS_TOKENS": {}}
    with ExitStack() as stack:
        for name, value in limits.items():
            stack.enter_context(patch.object(judge_packing_egrm, name, value))
        judge(size)


# --- both ------------------------------------------------------------------------------------------------------------------


def table(kind: str, cases: dict[int, tuple], rounds: int, rows_of: Callable[[int], int]) -> list[dict[str, Any]]:
    """Time every case in turn, and print and return the medians."""
    seconds = {(size, way): [] for size in cases for way in (0, 1)}
    for _ in range(rounds):
        for size, ways in cases.items():
            for way, run in enumerate(ways):
                started = time.process_time()
                with torch.no_grad():
                    run()
                seconds[size, way].append((time.process_time() - started) / rows_of(size))
    fastest = [min(seconds[size, 1][i] for size in cases) for i in range(rounds)]
    found = []
    for size in cases:
        before, now = seconds[size, 0], seconds[size, 1]
        row = {
            "kind": kind, "size": size, "ms_before": 1e3 * statistics.median(before), "ms_now": 1e3 * statistics.median(now),
            "speedup": statistics.median(b / n for b, n in zip(before, now, strict=True)),
            "of_the_best": statistics.median(best / n for best, n in zip(fastest, now, strict=True)),
        }  # fmt: skip
        found.append(row)
        print(
            f"{kind:20s} batch {size:3d}: {row['ms_before']:8.2f} ms a row before, {row['ms_now']:8.2f} now, "
            f"{row['speedup']:.2f} times as fast, {row['of_the_best']:.2f} of the best size now", flush=True,
        )  # fmt: skip
    return found


if __name__ == "__main__":
    main()
