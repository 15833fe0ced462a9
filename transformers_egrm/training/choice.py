"""How well a scorer chooses among candidates, beside ways to choose that know nothing."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transformers_egrm.evaluation.metrics import auroc, pairwise_accuracy, wilson
from transformers_egrm.modeling.judge_long_egrm import first_best
from transformers_egrm.modeling.judge_scorer_egrm import encode_pairs
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.training.candidates import Group


def pairs_of(qualities: Sequence[float]) -> list[tuple[int, int]]:
    """Every pair (better, worse) of one group.

    Args:
        qualities: Of its candidates.
    """
    places = range(len(qualities))
    return [(good, bad) for good, bad in product(places, places) if qualities[good] > qualities[bad]]


def encode_groups(model: EGRMRewardModel, groups: Sequence[Group]) -> dict[str, Tensor]:
    """Candidates as a scorer's inputs, as judging makes them.

    Args:
        model: The reward model.
        groups: At least one.

    Returns:
        `states` [N, H], or `input_ids`, `attention_mask` and, where the encoder reads some, `token_type_ids`.
    """
    candidates = [candidate for group in groups for candidate in group.candidates]
    if model.state_pooling is not None:
        return {"states": torch.stack([c.state for c in candidates if c.state is not None])}
    tokenizer, scorer = model.processor.scorer_tokenizer, model.scorer
    assert tokenizer is not None, "an encoder comes with its tokenizer"
    assert scorer is not None, "there is a scorer to read"
    prompts = [group.prompt for group in groups for _ in group.candidates]
    pairs = encode_pairs(prompts, [c.text for c in candidates], tokenizer, scorer.token_limit(tokenizer))
    return {name: tensor.cpu() for name, tensor in scorer.collate(pairs, tokenizer).items()}


@torch.no_grad()
def score_groups(model: EGRMRewardModel, groups: Sequence[Group], per_batch: int = 64) -> list[list[float]]:
    """The scorer's opinion of every candidate.

    Args:
        model: A reward model with a scorer.
        groups: Any number.
        per_batch: Groups scored at once.
    """
    assert model.scorer is not None, "there is a scorer to ask"
    scores: list[list[float]] = []
    for start in range(0, len(groups), per_batch):
        batch = groups[start : start + per_batch]
        inputs = {name: tensor.to(model.scorer.device) for name, tensor in encode_groups(model, batch).items()}
        states = inputs.get("states")
        flat = (model.scorer(**inputs) if states is None else model.scorer.score_states(states)).tolist()
        for group in batch:
            scores.append(flat[: len(group.candidates)])
            flat = flat[len(group.candidates) :]
    return scores


def measure_choice(scores: Sequence[Sequence[float]], groups: Sequence[Group]) -> dict[str, Any]:
    """How well scores choose, beside ways to choose that know nothing.

    Args:
        scores: One per candidate of each group.
        groups: At least one.

    Returns:
        Over groups with better and worse candidates: share whose highest score is a best candidate (with 95 % interval),
        the same for a random, the first and the longest candidate, and the share of pairs in the right order. Over those of
        them where a chain is among the best candidates, and not only a reused probe: the same for the pick and for a
        random chain; and once more over those where some chains are among the best and others are not. Over all
        candidates: AUROC of the score against quality 1.
    """
    flat = [(score, candidate.quality) for own, group in zip(scores, groups, strict=True)
            for score, candidate in zip(own, group.candidates, strict=True)]  # fmt: skip
    mixed = [(own, group.candidates) for own, group in zip(scores, groups, strict=True) if group.is_mixed]
    measured: dict[str, Any] = {"groups": len(groups), "mixed_groups": len(mixed)}
    if flat:
        measured["auroc"] = auroc([score for score, _ in flat], [quality == 1 for _, quality in flat])
    if not mixed:
        return measured
    best = [[c.quality == max(c.quality for c in candidates) for c in candidates] for _, candidates in mixed]
    picked = [own[first_best(scored)] for own, (scored, _) in zip(best, mixed, strict=True)]
    chains = [[good for good, c in zip(own, candidates, strict=True) if c.is_chain]
              for own, (_, candidates) in zip(best, mixed, strict=True)]  # fmt: skip
    from_chains = [pick for pick, own in zip(picked, chains, strict=True) if any(own)]
    if from_chains:
        measured |= {
            "right_chain_groups": len(from_chains),
            "right_chain_random_accuracy": float(np.mean([np.mean(own) for own in chains if any(own)])),
            "right_chain_pick_accuracy": float(np.mean(from_chains)),
            "right_chain_pick_interval": asdict(wilson(sum(from_chains), len(from_chains))),
        }
    from_mixed = [
        (pick, float(np.mean(own))) for pick, own in zip(picked, chains, strict=True) if 0 < sum(own) < len(own)
    ]
    if from_mixed:
        picks, randoms = zip(*from_mixed, strict=True)
        measured |= {
            "mixed_chains_groups": len(picks),
            "mixed_chains_random_accuracy": float(np.mean(randoms)),
            "mixed_chains_pick_accuracy": float(np.mean(picks)),
            "mixed_chains_pick_interval": asdict(wilson(sum(picks), len(picks))),
        }
    pairs = [(scored[good], scored[bad]) for scored, candidates in mixed
             for good, bad in pairs_of([c.quality for c in candidates])]  # fmt: skip
    return measured | {
        "pick_accuracy": float(np.mean(picked)),
        "pick_interval": asdict(wilson(sum(picked), len(picked))),
        "random_accuracy": float(np.mean([np.mean(own) for own in best])),
        "first_accuracy": float(np.mean([own[0] for own in best])),
        "longest_accuracy": float(np.mean([
            own[int(np.argmax([len(c.text) for c in candidates]))] for own, (_, candidates) in zip(best, mixed, strict=True)
        ])),
        "pair_accuracy": pairwise_accuracy(*zip(*pairs, strict=True)),
        "pairs": len(pairs),
    }  # fmt: skip


__all__ = ["encode_groups", "measure_choice", "pairs_of", "score_groups"]
