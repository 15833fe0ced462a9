"""What an assessor decides of items before their probes: its own verdict, the probes, or chains at once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .engine_protocol_egrm import Prompts
from .judge_assessor_egrm import EGRMAssessor, Opinion
from .judge_plan_egrm import JudgePlan
from .judge_values_egrm import Judge, JudgeInputs
from .verdict_consensus_egrm import Consensus, Route, first_argmax


@dataclass(frozen=True)
class Advice:
    """What is decided of B items before their probes; an item in neither column is probed."""

    sure: Tensor
    """[B] float64, calibrated probability that the short path is right."""
    direct: Tensor
    """[B] bool, the assessor's own verdict stands."""
    think: Tensor
    """[B] bool, chains are written at once."""
    verdicts: Tensor
    """[B] int64, its own verdict, in the item's own order; meaningless where it has none."""
    support: Tensor
    """[B] float64, the probability that it gives this verdict; 0 where it has none."""
    flops: list[float]
    """[R] operations that its opinion of each prompt took."""

    def limit(self, plan: JudgePlan) -> JudgePlan:
        """The plan without the probes of items that are settled.

        Args:
            plan: Of the same items.
        """
        settled = (self.direct | self.think).tolist()
        counts = (0 if own else count for own, count in zip(settled, plan.num_probes, strict=True))
        return replace(plan, num_probes=tuple(counts))

    def put_into(self, consensus: Consensus) -> Consensus:
        """The probes' consensus with settled items put in: the own verdict and its probability, or the long path.

        Args:
            consensus: Of the same items; what it says of settled ones does not count.
        """
        agreement = torch.where(self.think, torch.zeros_like(consensus.agreement), consensus.agreement)
        routes = torch.where(self.think, int(Route.LONG), consensus.routes)
        return Consensus(
            verdicts=torch.where(self.direct, self.verdicts, consensus.verdicts),
            agreement=torch.where(self.direct, self.support, agreement),
            is_bound=consensus.is_bound & ~self.direct & ~self.think,
            routes=torch.where(self.direct, int(Route.SHORT), routes),
        )


def ask_encoder(model: Judge, assessor: EGRMAssessor, inputs: JudgeInputs, plan: JudgePlan) -> Advice:
    """The advice of an encoder, before the generator runs.

    Args:
        model: Reads tokens back as text.
        assessor: Of kind `encoder`.
        inputs: R prompts of B items.
        plan: What was decided so far.
    """
    turns = inputs.turn_tokens or (len(inputs.task.judge_turn_ids),) * inputs.num_items
    turn = [turns[item] for item in inputs.item_index.tolist()]
    ids = [row[: len(row) - own] for row, own in zip(inputs.token_ids(), turn, strict=True)]
    opinion = assessor.read_texts(ids, model.decode_tokens(ids))
    return advise(assessor, opinion, inputs, plan, [len(row) for row in ids])


def ask_head(assessor: EGRMAssessor, prompts: Prompts, inputs: JudgeInputs, plan: JudgePlan) -> Advice:
    """The advice of a head on the generator's states, after the prompts were run.

    Args:
        assessor: Of kind `state`.
        prompts: R prompts in short mode.
        inputs: The same prompts and their B items.
        plan: What was decided so far.
    """
    return advise(assessor, assessor.read_states(prompts.states), inputs, plan, prompts.lengths)


def advise(
    assessor: EGRMAssessor, opinion: Opinion, inputs: JudgeInputs, plan: JudgePlan, num_tokens: Sequence[int]
) -> Advice:
    """What to do with B items, from an opinion of their prompts.

    A forced path stays: an item of path `short` never thinks, and where no probes are asked nothing is left to decide.

    Args:
        assessor: Whose opinion it is.
        opinion: Of R prompts.
        inputs: The prompts and their items.
        plan: What was decided so far.
        num_tokens: [R] tokens that were read of each prompt.
    """
    settings, owners, device = assessor.settings, inputs.item_index, inputs.item_index.device
    count = torch.bincount(owners, minlength=inputs.num_items)

    def by_item(values: Tensor) -> Tensor:
        # Both orders of a pair count alike, in float64.
        sums = values.new_zeros(inputs.num_items, *values.shape[1:]).index_add_(0, owners, values)
        return sums / count.view(-1, *(1,) * (values.ndim - 1))

    said = by_item(opinion.logits.detach().to(device).double().sigmoid())
    sure = torch.tensor(assessor.calibrated(said.tolist()), dtype=torch.float64, device=device)
    verdicts, support = torch.zeros_like(count), torch.zeros_like(sure)
    if opinion.verdict_logits is not None:
        probs = opinion.verdict_logits.detach().to(device).double().softmax(-1)
        swap = torch.tensor(inputs.task.space.swap_ids, device=device)
        probs = by_item(torch.where(inputs.swapped[:, None], probs[:, swap], probs))
        verdicts, support = first_argmax(probs), probs.amax(-1)
    open_to = torch.tensor([bool(probes) for probes in plan.num_probes], device=device)
    direct = open_to & (sure >= settings.direct_above) & (support >= settings.direct_floor)
    think = open_to & plan.takes("auto", device) & (sure < settings.think_below) & ~direct
    return Advice(sure, direct, think, verdicts, support, [assessor.flops(own) for own in num_tokens])


__all__ = ["Advice", "advise", "ask_encoder", "ask_head"]
