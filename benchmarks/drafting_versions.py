"""Drafting by two versions of this library in one run: seconds per token, and what a round costs the host.

    git worktree add ../old COMMIT
    OMP_NUM_THREADS=1 python benchmarks/drafting_versions.py --old ../old --rounds 15

Each version runs in a process of its own that imports its own tree. The rounds alternate between them, and so does who
begins. Seconds are those of the processor, so that other processes count little. The target is the judge in the package
with two silent layers after each of its four (`grown` in `benchmarks/speculative.py`); the judge itself drafts, so that
every draft is right and the figures are those of the machinery. No training is needed.
"""

import argparse
import copy
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Cell:
    """What is written how."""

    method: str
    drafts: int
    rows: int


CELLS = (
    Cell("bv", 1, 1),
    Cell("md_bv_plus", 3, 1),
    Cell("spectr_gbv", 3, 1),
    Cell("md_bv_plus", 7, 1),
    Cell("bv", 1, 16),
    Cell("md_bv_plus", 3, 16),
)
NEW_TOKENS, LENGTH, TEMPERATURE = 64, 8, 0.7


# -- one version, in a process of its own ---------------------------------------------------------------------------------


class Cost(TorchDispatchMode):
    """Counts operations, and how often the host waits: numbers read, and shapes that depend on data."""

    waits_for = ("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten.equal")

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.waits = 0, Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count, and do."""
        self.operations += 1
        name = str(func)
        masks = name.startswith("aten.index") and any(
            getattr(index, "dtype", None) == torch.bool for index in tree_leaves(args[1])
        )
        if masks or name.startswith((*self.waits_for, "aten.repeat_interleave.Tensor")):
            self.waits[name] += 1
        return func(*args, **(kwargs or {}))


def work() -> None:
    """Answer the parent's questions, one a line."""
    try:
        from transformers_egrm.modeling.draft_generate_egrm import generate
        from transformers_egrm.modeling.engine_generate_egrm import generate as ladder
    except ModuleNotFoundError:  # version 0.1
        from transformers_egrm.modeling.generate_egrm import generate as ladder  # pyright: ignore
        from transformers_egrm.modeling.speculative_egrm import generate  # pyright: ignore
    from transformers_egrm import load_mini
    from transformers_egrm.data.synthetic import examples

    judge = load_mini()
    draft, target = judge.generator, grown(judge.generator)
    stream = examples("test", seed=1, mix={3: 0.4, 4: 0.3, 5: 0.3})
    suffix = judge.task.long_suffix_ids
    prompts = [[*judge.processor.encode(next(stream).record()).prompts[0], *suffix] for _ in range(64)]

    def write(cell: Cell, number: int, drafted: bool, new_tokens: int = NEW_TOKENS) -> tuple[float, Any]:
        own = [prompts[(number * cell.rows + row) % len(prompts)] for row in range(cell.rows)]
        width = max(map(len, own))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in own])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in own])
        shared = {"attention_mask": mask, "seed": number, "max_new_tokens": new_tokens, "eos_token_id": []}
        started = time.process_time()
        if not drafted:
            ladder(target, ids, temperatures=[TEMPERATURE], top_ps=1.0, **shared)  # pyright: ignore
            return time.process_time() - started, None
        output = generate(
            target, ids, draft_model=draft, num_drafts=cell.drafts, draft_length=LENGTH, verification=cell.method,
            do_sample=True, temperature=TEMPERATURE, top_p=1.0, top_k=0, return_dict_in_generate=True, **shared,
        )  # fmt: skip
        return time.process_time() - started, output.statistics  # pyright: ignore

    def cost(cell: Cell, new_tokens: int) -> tuple[int, int, int]:
        counted, real = Cost(), torch.Tensor.tolist
        torch.Tensor.tolist = lambda self: (counted.waits.update(["tolist"]), real(self))[1]
        try:
            with counted:
                _, statistics_ = write(cell, 1, True, new_tokens)
        finally:
            torch.Tensor.tolist = real
        return counted.operations, sum(counted.waits.values()), statistics_.rounds // cell.rows

    for line in sys.stdin:
        asked = json.loads(line)
        cell = Cell(**asked["cell"])
        if asked["what"] == "cost":
            write(cell, 1, True, 4)  # trials of the models are made once
            few, many = cost(cell, 20), cost(cell, 65)
            answer: Any = [(b - a) / max(1, many[2] - few[2]) for a, b in zip(few[:2], many[:2], strict=True)]
        else:
            plain, _ = write(cell, asked["round"], False)
            seconds, found = write(cell, asked["round"], True)
            answer = {"plain": plain, "drafted": seconds, "rounds": found.rounds, "tokens": found.tokens}
        print(json.dumps(answer), flush=True)


def grown(source: Any) -> Any:
    """The same model with three layers for each of its own, of which two change nothing."""
    config = copy.deepcopy(source.config)
    config.num_hidden_layers *= 3
    config.layer_types = [kind for kind in source.config.layer_types for _ in range(3)]
    model, weights = type(source)(config), {}
    for name, weight in source.state_dict().items():
        parts = name.split(".")
        if "layers" not in parts:
            weights[name] = weight
            continue
        at = parts.index("layers") + 1
        for copy_ in range(3):
            silent = copy_ > 0 and name.endswith(("o_proj.weight", "down_proj.weight"))
            place = [*parts[:at], str(3 * int(parts[at]) + copy_), *parts[at + 1 :]]
            weights[".".join(place)] = weight * (0 if silent else 1)
    model.load_state_dict(weights)
    return model.eval()


# -- both ---------------------------------------------------------------------------------------------------------------------


class Version:
    """One version's process.

    Args:
        tree: Its source tree.
    """

    def __init__(self, tree: Path) -> None:
        environment = os.environ | {"PYTHONPATH": str(tree.resolve())}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker"], env=environment, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def ask(self, **question: Any) -> Any:
        """Ask, and wait for the answer."""
        assert self.process.stdin is not None, "a pipe"
        assert self.process.stdout is not None, "a pipe"
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def spread(values: list[float]) -> str:
    """Median with the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def named(cell: Cell) -> str:
    """A cell's first column."""
    return f"`{cell.method}`, {cell.drafts}, {cell.rows}"


def main() -> None:
    """Print two tables, a row for each cell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--old", type=Path, help="source tree of the other version")
    parser.add_argument(
        "--rounds", type=int, default=15, help="counted rounds of every cell; 0: only count operations"
    )
    given = parser.parse_args()
    if given.worker:
        return work()
    versions = {"old": Version(given.old), "new": Version(Path(__file__).parent.parent)}
    print("| method, S, rows | operations a round, old | new | waits a round, old | new |\n|---|---:|---:|---:|---:|")
    for cell in CELLS:
        (before, waited), (now, waits) = (version.ask(what="cost", cell=asdict(cell)) for version in versions.values())
        print(f"| {named(cell)} | {before:,.0f} | {now:,.0f} | {waited:.1f} | {waits:.1f} |", flush=True)
    if not given.rounds:
        return None
    print("\n| method, S, rows | SR, old | SR, new | old / new time |\n|---|---|---|---|")
    for cell in CELLS:
        found: dict[str, list[dict[str, Any]]] = {"old": [], "new": []}
        for number in range(given.rounds + 1):  # the first warms up
            for name in sorted(versions, reverse=number % 2 == 0):
                answer = versions[name].ask(what="round", cell=asdict(cell), round=number)
                if number:
                    found[name].append(answer)
        ratios = {name: [run["plain"] / run["drafted"] for run in runs] for name, runs in found.items()}
        saved = [a["drafted"] / b["drafted"] for a, b in zip(found["old"], found["new"], strict=True)]
        print(f"| {named(cell)} | {spread(ratios['old'])} | {spread(ratios['new'])} | {spread(saved)} |", flush=True)
    return None


if __name__ == "__main__":
    main()
