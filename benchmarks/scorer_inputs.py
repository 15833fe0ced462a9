"""What a scorer on the generator's states should read: heads on several inputs, choosing among chains of the bundled judge.

Run:
    python benchmarks/scorer_inputs.py                                # about half an hour on one core
    python benchmarks/scorer_inputs.py --train 2000 --test 1500 --only "end state" "mean state"

Every chain that `egrm-mini` writes for answers on which its probes do not all agree is run again behind its prompt, which
gives the hidden state and the log-probability of each token; the last state is that of the verdict, the end state that of
the token which ends the chain. Heads are trained on training answers of levels 2 to 5 with the library's loss (pairs of
chains of one group), and asked to choose among the chains of unseen answers where some are right and others wrong.
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
from transformers_egrm.training.candidates import sample_groups
from transformers_egrm.training.choice import pairs_of
from transformers_egrm.training.items import ItemEncoder
from transformers_egrm.training.loss import HybridLoss


HARD = {2: 0.2, 3: 0.3, 4: 0.3, 5: 0.2}
Chains = list[tuple[dict[str, Tensor], float]]  # of one group: what can be read of each chain, and its quality

INPUTS: dict[str, tuple[str, ...]] = {
    "end state": ("end",),  # `pooling: last`
    "last state": ("last",),
    "log-probability": ("sum",),
    "log-probability: sum, mean, least; entropy: sum, most; length": ("numbers",),
    "last state, log-probability": ("last", "sum"),
    "last state, six numbers": ("last", "numbers"),
    "mean state": ("mean",),
    "mean and last state": ("mean", "last"),
    "mean state, least likely token's state": ("mean", "least"),
    "mean state, how many chains and probes say the same": ("mean", "votes"),
    "all of them": ("last", "mean", "least", "numbers", "votes"),
}
TOKENS = "every token's state"


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
        end = model.task.chain_stop_ids[0]
        ids = torch.tensor([prompt + row + [end] + [0] * (width - len(row)) for row in rows])
        output = model.generator(ids, output_hidden_states=True)
        logs = output.logits[:, len(prompt) - 1 : -1].log_softmax(-1)
        states, entropy = output.hidden_states[-1][:, len(prompt) :], -(logs.exp() * logs).sum(-1)
        own = logs.gather(-1, ids[:, len(prompt) :, None])[..., 0]
        votes = agreement(model.task, group.candidates)
        group_chains = []
        for place, (row, chain, vote) in enumerate(zip(rows, chains, votes, strict=True)):
            length = len(row)
            inputs = described(states[place, :length], own[place, :length], entropy[place, :length])
            group_chains.append((inputs | {"end": states[place, length].clone(), "votes": vote}, chain.quality))
        found.append(group_chains)
    return found


def agreement(task: Any, candidates: Sequence[Any]) -> list[Tensor]:
    """Of each chain: the share of the group's chains, and of its probes, with the same verdict."""
    chains = [task.parse(c.text, reasoning=True) for c in candidates if c.is_chain]
    probes = [task.parse(c.text, reasoning=False) for c in candidates if not c.is_chain]
    return [
        torch.tensor([float(statistics.mean(other == verdict for other in others or [None])) for others in (chains, probes)])
        for verdict in chains
    ]  # fmt: skip


def described(states: Tensor, logs: Tensor, entropy: Tensor) -> dict[str, Tensor]:
    """One chain's inputs from its tokens' states [T, H], log-probabilities [T] and entropies [T]."""
    numbers = [logs.sum(), logs.mean(), logs.min(), entropy.sum(), entropy.max(), torch.tensor(float(len(logs)))]
    return {
        "tokens": states.half(),
        "last": states[-1].clone(),  # a view would keep the whole batch
        "mean": states.mean(0),
        "least": states[int(logs.argmin())].clone(),
        "sum": logs.sum()[None],
        "numbers": torch.stack(numbers),
    }


# -- heads --------------------------------------------------------------------------------------------------------------


class VectorHead(nn.Module):
    """Reads some inputs of a chain side by side: linear, or with one hidden layer.

    Args:
        parts: Names of the inputs.
        hidden: Units of the hidden layer; 0 for none.
        groups: What the inputs are standardised on.
    """

    def __init__(self, parts: Sequence[str], hidden: int, groups: Sequence[Chains]) -> None:
        super().__init__()
        self.parts = parts
        seen = self.vectors(groups)
        self.mean, self.spread = seen.mean(0), seen.std(0) + 1e-6
        size = seen.shape[1]
        layers = [nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, 1)] if hidden else [nn.Linear(size, 1)]
        self.layers = nn.Sequential(*layers)

    def vectors(self, groups: Sequence[Chains]) -> Tensor:
        """[N, D], a row per chain."""
        return torch.stack(
            [torch.cat([inputs[part] for part in self.parts]) for group in groups for inputs, _ in group]
        )

    def forward(self, groups: Sequence[Chains]) -> Tensor:
        """[N] scores in [0, 1]."""
        return self.layers((self.vectors(groups) - self.mean) / self.spread)[:, 0].sigmoid()


class TokenHead(nn.Module):
    """Reads the state of every token: a chain is right where no token is wrong, or by attention over them.

    Args:
        size: H, the width of a state.
        attends: Whether eight heads attend to the tokens, instead of every token having its say.
        hidden: Units of the hidden layer.
    """

    def __init__(self, size: int, attends: bool, hidden: int = 64) -> None:
        super().__init__()
        self.norm, self.attends = nn.LayerNorm(size), attends
        if attends:
            self.weigh, self.value, self.out = nn.Linear(size, 8), nn.Linear(size, 128), nn.Linear(128, 1)
        else:
            verdict = nn.Linear(hidden, 1)
            nn.init.constant_(verdict.bias, -4.0)  # hardly any token is wrong
            self.wrong = nn.Sequential(nn.Linear(size, hidden), nn.GELU(), verdict)

    def forward(self, groups: Sequence[Chains]) -> Tensor:
        """[N] scores in [0, 1]."""
        rows = [inputs["tokens"].float() for group in groups for inputs, _ in group]
        states = self.norm(nn.utils.rnn.pad_sequence(rows, batch_first=True))
        real = nn.utils.rnn.pad_sequence([torch.ones(len(row)) for row in rows], batch_first=True).bool()
        if not self.attends:
            return (nn.functional.logsigmoid(-self.wrong(states)[..., 0]) * real).sum(1).exp()
        weights = self.weigh(states).masked_fill(~real[..., None], -torch.inf).softmax(1)
        pooled = (weights[..., None] * self.value(states).unflatten(-1, (8, 16))).sum(1).flatten(1)
        return self.out(nn.functional.gelu(pooled))[:, 0].sigmoid()


def fit(head: nn.Module, groups: Sequence[Chains], config: Any, epochs: int = 20) -> nn.Module:
    """Train a head in place, with the library's loss."""
    loss, per_step = HybridLoss(config), 32
    optimizer = torch.optim.AdamW(head.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * (len(groups) // per_step))
    for _ in range(epochs):
        order = torch.randperm(len(groups)).tolist()
        for start in range(0, len(order) - per_step + 1, per_step):
            chosen = [groups[place] for place in order[start : start + per_step]]
            better, worse, first = [], [], 0
            for group in chosen:
                pairs = pairs_of([quality for _, quality in group])
                better += [first + good for good, _ in pairs]
                worse += [first + bad for _, bad in pairs]
                first += len(group)
            targets = torch.tensor([quality for group in chosen for _, quality in group])
            value = loss(head(chosen), targets, torch.tensor(better).long(), torch.tensor(worse).long())
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            schedule.step()
    return head


@torch.no_grad()
def accuracy(groups: Sequence[Chains], score: Callable[[list[Chains]], Tensor]) -> str:
    """Share of groups with right and wrong chains whose highest score is a right one, between the bounds of its 95 % interval."""
    mixed = mixed_among(groups)
    right = sum(group[int(score([group]).argmax())][1] == 1 for group in mixed)
    interval = wilson(right, len(mixed))
    return " to ".join(
        "-" if value is None else f"{value:.1%}" for value in (interval.low, interval.value, interval.high)
    )


def mixed_among(groups: Sequence[Chains]) -> list[Chains]:
    """Those with right and wrong chains."""
    return [group for group in groups if 0 < sum(quality for _, quality in group) < len(group)]


def most_common(group: Chains) -> list[float]:
    """Qualities of the chains whose verdict most of the group's chains share."""
    votes = [float(inputs["votes"][0]) for inputs, _ in group]
    return [quality for vote, (_, quality) in zip(votes, group, strict=True) if vote == max(votes)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=12_000, help="training answers judged")
    parser.add_argument("--test", type=int, default=6_000, help="unseen answers judged")
    parser.add_argument(
        "--only", nargs="+", choices=[*INPUTS, TOKENS], metavar="INPUT", help="inputs to read, by name; all by default"
    )
    arguments = parser.parse_args()
    model = load_mini().eval()
    train = read_chains(model, "train", 77, arguments.train, HARD)
    test = read_chains(model, "test", 3, arguments.test, None)
    mixed = [[quality for _, quality in group] for group in mixed_among(test)]
    none = statistics.mean(not any(quality for _, quality in group) for group in test)
    print(f"{len(train)} groups to learn from, {len(mixed_among(train))} of them with right and wrong chains")
    print(
        f"{len(test)} unseen ones, {len(mixed)} of them with right and wrong chains; no chain is right in {none:.1%}"
    )
    majority = statistics.mean(statistics.mean(most_common(group)) for group in mixed_among(test))
    print(f"a random chain: {statistics.mean(map(statistics.mean, mixed)):.1%}; one of the majority: {majority:.1%}\n")
    print("| input | head | parameters | unseen (95 %) | seen |\n|---|---|---|---|---|")

    def report(name: str, kind: str, make: Callable[[], nn.Module]) -> None:
        if arguments.only and name not in arguments.only:
            return
        torch.manual_seed(0)
        head = fit(make(), train, model.config)
        count = sum(weight.numel() for weight in head.parameters())
        print(f"| {name} | {kind} | {count:,} | {accuracy(test, head)} | {accuracy(train, head)} |", flush=True)

    for name, parts in INPUTS.items():
        for hidden in (0, 32):
            kind = f"{hidden} hidden units" if hidden else "linear"
            report(name, kind, lambda parts=parts, hidden=hidden: VectorHead(parts, hidden, train))
    size = model.generator.config.hidden_size
    report(TOKENS, "64 hidden units, no token wrong", lambda: TokenHead(size, False))
    report(TOKENS, "eight attention heads", lambda: TokenHead(size, True))


if __name__ == "__main__":
    main()
