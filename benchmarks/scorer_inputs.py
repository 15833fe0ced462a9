"""What a scorer on the generator's states should read: heads on several inputs, choosing among chains of the bundled judge.

Run:
    python benchmarks/scorer_inputs.py                                # about a quarter of an hour on one core
    python benchmarks/scorer_inputs.py --train 2000 --test 1500

Every chain that `egrm-mini` writes for answers on which its probes do not all agree is run again behind its prompt, which
gives the hidden state and the log-probability of each token. Heads are trained on training answers of levels 2 to 5 with
the library's loss (pairs of chains of one group), and asked to choose among the chains of unseen answers where some are
right and others wrong.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from transformers_egrm import load_mini
from transformers_egrm.data.synthetic import examples
from transformers_egrm.evaluation.metrics import wilson
from transformers_egrm.modeling.scorer_egrm import HybridLoss
from transformers_egrm.training.candidates import sample_groups
from transformers_egrm.training.choice import pairs_of
from transformers_egrm.training.items import ItemEncoder


HARD = {2: 0.2, 3: 0.3, 4: 0.3, 5: 0.2}
Chains = list[tuple[dict[str, Tensor], float]]  # of one group: what can be read of each chain, and its quality

INPUTS: dict[str, tuple[str, ...]] = {
    "last state": ("last",),
    "log-probability": ("sum",),
    "log-probability: sum, mean, least; entropy: sum, most; length": ("numbers",),
    "last state, log-probability": ("last", "sum"),
    "last state, six numbers": ("last", "numbers"),
    "mean state": ("mean",),
    "mean and last state": ("mean", "last"),
    "mean state, least likely token's state": ("mean", "least"),
    "all of them": ("last", "mean", "least", "numbers"),
}


@torch.no_grad()
def read_chains(model: Any, split: str, seed: int, count: int, mix: dict[int, float] | None) -> list[Chains]:
    """Groups of chains with what can be read of each."""
    drawn = list(islice(examples(split, seed=seed, mix=mix), count))
    items = ItemEncoder(model.processor).encode_all(drawn)
    groups = sample_groups(
        model, items, [str(place) for place in range(count)], pooling="mean", quality="exact", batch_size=64, seed=seed,
        threshold=1.0,
    )  # fmt: skip
    found = []
    for group in groups:
        prompt = [*items[int(group.question_id)].prompt_ids, *model.task.long_suffix_ids]
        chains = [candidate for candidate in group.candidates if candidate.is_chain]
        rows = [model.processor.tokenizer(c.text, add_special_tokens=False).input_ids for c in chains]
        if not rows:
            continue
        width = max(map(len, rows))
        ids = torch.tensor([prompt + row + [0] * (width - len(row)) for row in rows])
        output = model.generator(ids, output_hidden_states=True)
        logs = output.logits[:, len(prompt) - 1 : -1].log_softmax(-1)
        states, entropy = output.hidden_states[-1][:, len(prompt) :], -(logs.exp() * logs).sum(-1)
        own = logs.gather(-1, ids[:, len(prompt) :, None])[..., 0]
        found.append([
            (described(states[i, : len(row)], own[i, : len(row)], entropy[i, : len(row)]), chain.quality)
            for i, (row, chain) in enumerate(zip(rows, chains, strict=True))
        ])  # fmt: skip
    return found


def described(states: Tensor, logs: Tensor, entropy: Tensor) -> dict[str, Tensor]:
    """One chain's inputs from its tokens' states [T, H], log-probabilities [T] and entropies [T]."""
    numbers = [logs.sum(), logs.mean(), logs.min(), entropy.sum(), entropy.max(), torch.tensor(float(len(logs)))]
    return {
        "last": states[-1].clone(),  # a view would keep the whole batch
        "mean": states.mean(0),
        "least": states[int(logs.argmin())].clone(),
        "sum": logs.sum()[None],
        "numbers": torch.stack(numbers),
    }


def accuracy(groups: Sequence[Chains], score: Callable[[Chains], Sequence[float]]) -> str:
    """Share of groups with right and wrong chains whose highest score is a right one, between the bounds of its 95 % interval."""
    right = 0
    mixed = [group for group in groups if 0 < sum(quality for _, quality in group) < len(group)]
    for group in mixed:
        scores = list(score(group))
        right += group[scores.index(max(scores))][1] == 1
    interval = wilson(right, len(mixed))
    return " to ".join(
        "-" if value is None else f"{value:.1%}" for value in (interval.low, interval.value, interval.high)
    )


def fit(groups: Sequence[Chains], parts: Sequence[str], hidden: int, config: Any) -> Callable[[Chains], list[float]]:
    """Train a head: linear, or with one hidden layer."""
    torch.manual_seed(0)

    def read(group: Chains) -> Tensor:
        return torch.stack([torch.cat([inputs[part] for part in parts]) for inputs, _ in group])

    flat = [read(group) for group in groups]
    mean, spread = torch.cat(flat).mean(0), torch.cat(flat).std(0) + 1e-6
    size = len(mean)
    head: nn.Module = nn.Linear(size, 1)
    if hidden:
        head = nn.Sequential(nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, 1))
    loss, epochs, per_step = HybridLoss(config), 20, 32
    optimizer = torch.optim.AdamW(head.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * (len(groups) // per_step))
    for _ in range(epochs):
        order = torch.randperm(len(groups)).tolist()
        for start in range(0, len(order) - per_step + 1, per_step):
            chosen = order[start : start + per_step]
            better, worse, first = [], [], 0
            for place in chosen:
                pairs = pairs_of([quality for _, quality in groups[place]])
                better += [first + good for good, _ in pairs]
                worse += [first + bad for _, bad in pairs]
                first += len(groups[place])
            scores = head((torch.cat([flat[place] for place in chosen]) - mean) / spread)[:, 0].sigmoid()
            targets = torch.tensor([quality for place in chosen for _, quality in groups[place]])
            value = loss(scores, targets, torch.tensor(better).long(), torch.tensor(worse).long())
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            schedule.step()
    return lambda group: head((read(group) - mean) / spread)[:, 0].tolist()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=12_000, help="training answers judged")
    parser.add_argument("--test", type=int, default=6_000, help="unseen answers judged")
    arguments = parser.parse_args()
    model = load_mini().eval()
    train = read_chains(model, "train", 77, arguments.train, HARD)
    test = read_chains(model, "test", 43, arguments.test, None)
    mixed = [[quality for _, quality in group] for group in test]
    mixed = [own for own in mixed if 0 < sum(own) < len(own)]
    print(f"{len(train)} groups to learn from, {len(mixed)} unseen ones with right and wrong chains")
    print(f"a random chain: {statistics.mean(map(statistics.mean, mixed)):.1%}\n")
    print("| input | head | unseen (95 %) | seen |\n|---|---|---|---|")
    for name, parts in INPUTS.items():
        for hidden in (0, 32):
            score = fit(train, parts, hidden, model.config)
            head = f"{hidden} hidden units" if hidden else "linear"
            print(f"| {name} | {head} | {accuracy(test, score)} | {accuracy(train, score)} |", flush=True)


if __name__ == "__main__":
    main()
