"""The judge's own engine beside a server of the same generator, like for like: one run, one table.

    egrm export egrm-mini -o parts
    python benchmarks/engines.py egrm-mini records.jsonl --engine http://127.0.0.1:8000

Both are given the same real prompts, cut or repeated to so many tokens, and the same budget. The short path is M = 5 probes of a
list of verdicts (exact on both sides, where the server tells log-probabilities), and M = 5 probes of three tokens from the whole
vocabulary. The long path is K = 4 chains of so many tokens that no end token cuts. Rounds alternate between the two, and the
table holds the median of each and of their ratio. The server must run in the same number format and on as many cores.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from transformers_egrm import EGRMRewardModel
from transformers_egrm.bundle import folder_of
from transformers_egrm.engines import connect
from transformers_egrm.modeling.engine_protocol_egrm import Branches, Engine, PromptRows
from transformers_egrm.modeling.engine_vocabulary_egrm import OpenVocabulary, VerdictTrie


PROBES, CHAINS, PROBE_TOKENS = 5, 4, 3
TEMPERATURES = (0.6, 0.7, 0.8, 0.9, 1.0)


def prompts_of(model: EGRMRewardModel, path: str, length: int, count: int) -> list[list[int]]:
    """Judge prompts of a file's records, each of exactly so many tokens, all different from their first token on."""
    with open(path, encoding="utf-8") as lines:
        read = [list(model.processor.encode(json.loads(line)).prompts[0]) for line in lines]
    stream = [token for ids in read for token in ids]
    step = max(1, len(stream) // (count + 1))
    return [(stream[place * step :] + stream * (1 + length // len(stream)))[:length] for place in range(count)]


def rows_of(prompts: Sequence[Sequence[int]]) -> PromptRows:
    """As an engine takes them; nothing is shared, so that each prompt is paid for."""
    ids = torch.tensor(prompts)
    return PromptRows.of(ids, torch.ones_like(ids))


def branches_of(count: int, temperatures: Sequence[float], seed: int) -> Branches:
    """Rows at a nucleus of 0.95."""
    rungs = len(temperatures)
    return Branches(
        torch.tensor(temperatures, dtype=torch.float64).repeat(count), torch.full((count * rungs,), 0.95, dtype=torch.float64),
        torch.arange(count).repeat_interleave(rungs), torch.arange(rungs).repeat(count), rungs, seed,
    )  # fmt: skip


def works(model: EGRMRewardModel, chain_tokens: Sequence[int]) -> dict[str, tuple[int, Callable[..., Any]]]:
    """What is measured: name -> (units for each record, function of engine, prompts and seed)."""
    task = model.task
    trie = VerdictTrie(task.verdict_token_ids, task.probe_stop_ids)

    def exact(engine: Engine, prompts: PromptRows, seed: int) -> None:
        engine.start(prompts, task.short_suffix_ids).read(trie.paths, trie.columns)

    def probes(engine: Engine, prompts: PromptRows, seed: int) -> None:
        drawn = branches_of(len(prompts.input_ids), TEMPERATURES, seed)
        engine.start(prompts, task.short_suffix_ids).sample(drawn, OpenVocabulary(()), PROBE_TOKENS)

    def chains(budget: int) -> Callable[..., None]:
        def write(engine: Engine, prompts: PromptRows, seed: int) -> None:
            drawn = branches_of(len(prompts.input_ids), (0.8,) * CHAINS, seed)
            engine.start(prompts, task.long_suffix_ids).sample(drawn, OpenVocabulary(()), budget)

        return write

    found: dict[str, tuple[int, Callable[..., Any]]] = {
        f"exact verdicts, M = {PROBES}": (1, exact),
        f"{PROBES} probes of {PROBE_TOKENS} tokens": (1, probes),
    }
    return found | {f"{CHAINS} chains of {size} tokens": (CHAINS * size, chains(size)) for size in chain_tokens}


@torch.no_grad()
def seconds(work: Callable[..., Any], engine: Engine, prompts: PromptRows, seed: int) -> float:
    """Of one run."""
    started = time.perf_counter()
    work(engine, prompts, seed)
    return time.perf_counter() - started


def compare(
    work: Callable[..., Any], engines: tuple[Engine, Engine], make: Callable[[int], PromptRows], rounds: int
) -> Any:
    """Medians of ours, theirs and of the ratio, over alternating rounds, each with prompts of its own."""
    taken: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        prompts = make(number)
        own = [seconds(work, engine, prompts, number) for engine in (engines if number % 2 else engines[::-1])]
        taken.append((own[0], own[1]) if number % 2 else (own[1], own[0]))
    ours, theirs = zip(*taken[1:], strict=True)  # the first round warms both
    ratios = [there / here for here, there in taken[1:]]
    return statistics.median(ours), statistics.median(theirs), statistics.median(ratios)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("records", help="JSONL with `prompt` and `response`")
    parser.add_argument("--engine", required=True)
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--chain-tokens", type=int, nargs="*", default=[64, 128])
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    model = EGRMRewardModel.from_pretrained(folder_of(asked.model)).eval()
    theirs = connect(asked.engine, model.processor, model.backbone.cost)
    print(
        f"{theirs.dialect.name} beside the local engine, {torch.get_num_threads()} threads, medians of {asked.rounds} rounds\n"
    )
    print(
        "| prompt | in flight | work | unit | ours /s | theirs /s | ours, times theirs |\n|---|---|---|---|---|---|---|"
    )
    for length in asked.tokens:
        for count in asked.in_flight:
            pool = prompts_of(model, asked.records, length, count * (asked.rounds + 1))

            def make(number: int, pool: Any = pool, count: int = count) -> PromptRows:
                return rows_of(pool[number * count : (number + 1) * count])

            for name, (units, work) in works(model, asked.chain_tokens).items():
                if name.startswith("exact") and "logits" not in theirs.can:
                    continue
                here, there, ratio = compare(work, (model.engine, theirs), make, asked.rounds)
                unit = "records" if units == 1 else "tokens"
                rates = (f"{count * units / taken:.1f}" for taken in (here, there))
                print(f"| {length} | {count} | {name} | {unit} | {' | '.join(rates)} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
