"""Which members of a group are worth their chains: chains saved against what becomes of the group's advantages.

Run:
    python benchmarks/group_thinking.py --groups 60

Every member is judged by both paths, the long one without reused probes. Each rule then says which members would have been
thought about: these have the long path's reward, the others the mean reward under their probes' distribution. Rules:
`voi` thinks where an advantage could change by more than a bound, `tau` where consensus is below a threshold, `random`
thinks about a share of the members. Advantages are compared with those of always thinking; `another seed` is what always
thinking reaches against itself.

The distribution is read without a nucleus (`--top-p 1`): a nucleus of 0.95 makes most members look certain, and then no
rule can tell which of them to doubt.
"""

import argparse
import json
import random
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np

from transformers_egrm import JudgeResult, RewardJudge
from transformers_egrm.data.synthetic import groups
from transformers_egrm.integrations.groups import advantages, worth_thinking


BOUNDS = (0.001, 0.003, 0.01, 0.03, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
TAUS = (
    1.0,
    0.999,
    0.998,
    0.997,
    0.996,
    0.995,
    0.994,
    0.993,
    0.992,
    0.991,
    0.99,
    0.95,
    0.9,
    0.8,
    0.7,
    0.6,
    0.5,
    0.4,
    0.3,
)
SHARES = (0.9, 0.7, 0.5, 0.3, 0.1)
Group = list[tuple[JudgeResult, JudgeResult, JudgeResult]]
"""Short result of each member, long one, and long one of another seed."""


def judged_groups(model: str, split: str, count: int, size: int, seed: int, top_p: float) -> list[Group]:
    """Groups of the world, each member judged by both paths."""
    drawn = list(islice(groups(split, seed, size=size), count))
    records = [member.record() for group in drawn for member in group]
    judge = RewardJudge(model, batch_size=size)
    nucleus = (top_p,) * len(judge.model.config.judge_options().temperatures)
    exact = {"path": "short", "consensus": "exact", "reward": "expected", "top_ps": nucleus}
    long = {"path": "long", "reuse_probes": False, "num_chains": 4}
    columns = [RewardJudge(judge.model, batch_size=size, **own)(records) for own in (exact, long, {**long, "seed": 1})]
    members = list(zip(*columns, strict=True))
    return [members[start : start + size] for start in range(0, len(members), size)]


def rules() -> Iterator[tuple[str, float, Callable[[Group], list[bool]]]]:
    """Name, setting and the rule itself."""
    for bound in BOUNDS:
        yield (
            "voi",
            bound,
            lambda group, bound=bound: worth_thinking(
                [short.reward_mean or 0.0 for short, _, _ in group],
                [short.reward_variance or 0.0 for short, _, _ in group],
                bound,
            ),
        )
    for tau in TAUS:
        yield "tau", tau, lambda group, tau=tau: [(short.consensus or 0.0) < tau for short, _, _ in group]
    for share in SHARES:
        rng = random.Random(0)
        yield "random", share, lambda group, share=share, rng=rng: [rng.random() < share for _ in group]


def measure(found: list[Group]) -> list[dict[str, float | str]]:
    """One row for each rule: chains saved, and the correlation of advantages over all members."""
    always = [advantages([long.reward for _, long, _ in group]) for group in found]
    again = [advantages([other.reward for _, _, other in group]) for group in found]
    ceiling = float(np.corrcoef(np.concatenate(always), np.concatenate(again))[0, 1])
    rows: list[dict[str, float | str]] = [
        {"rule": "another seed", "setting": 1, "saved": 0.0, "correlation": round(ceiling, 4)}
    ]
    for name, setting, rule in rules():
        told, thought = [], 0
        for group in found:
            thinks = rule(group)
            thought += sum(thinks)
            told.append(
                advantages(
                    [
                        long.reward if think else short.reward_mean
                        for think, (short, long, _) in zip(thinks, group, strict=True)
                    ]
                )
            )
        correlation = float(np.corrcoef(np.concatenate(always), np.concatenate(told))[0, 1])
        saved = 1 - thought / sum(map(len, found))
        rows.append({"rule": name, "setting": setting, "saved": round(saved, 4), "correlation": round(correlation, 4)})
    return rows


def main() -> None:
    """Judge, and print a line of JSON for each rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="egrm-mini")
    parser.add_argument("--split", default="test")
    parser.add_argument("--groups", type=int, default=60)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--top-p", type=float, default=1.0)
    arguments = parser.parse_args()
    found = judged_groups(
        arguments.model, arguments.split, arguments.groups, arguments.size, arguments.seed, arguments.top_p
    )
    for row in measure(found):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
