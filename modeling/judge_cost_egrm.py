"""What a judgement took, in floating-point operations, from what its engine reports."""

from collections.abc import Sequence

from .engine_flops_egrm import CostModel
from .engine_protocol_egrm import Drawn, Prompts


def start_flops(cost: CostModel, prompts: Prompts, columns: int | None) -> list[float]:
    """[R] operations of running prompts and of the logits at their ends.

    Args:
        cost: The generator's sizes.
        prompts: R prompts.
        columns: How many logits were computed at each end; None: the whole vocabulary; 0: none.
    """
    runs = zip(prompts.tokens_run, prompts.lengths, strict=True)
    return [cost.run(run, length - run) + cost.head(1, columns) for run, length in runs]


def branch_flops(cost: CostModel, prompts: Prompts, drawn: Drawn, columns: int | None) -> list[float]:
    """[N] operations of drawing each row, the first logits left out: they are its prompt's.

    Args:
        cost: The generator's sizes.
        prompts: R prompts with N / R rows each.
        drawn: What was drawn.
        columns: How many logits were computed for a token; None: the whole vocabulary.
    """
    per_prompt = len(drawn.lengths) // len(prompts.lengths)
    told = None if drawn.drafted is None else drawn.drafted.flops.tolist()
    flops = []
    for row, length in enumerate(drawn.lengths.tolist()):
        fed, context = max(0, length - 1), prompts.lengths[row // per_prompt]
        if told is not None and told[row] == told[row]:  # NaN: written without drafts
            flops.append(told[row])
        else:
            flops.append(cost.run(fed, context) + cost.head(fed, columns))
    return flops


def path_flops(cost: CostModel, prompts: Prompts, paths: Sequence[Sequence[int]], columns: int) -> list[float]:
    """[R] operations of reading logits at the ends of given paths; a prompt's own end costs nothing more.

    Args:
        cost: The generator's sizes.
        prompts: R prompts.
        paths: Token ids of each path.
        columns: How many logits were computed at each end.
    """
    longer = [len(path) for path in paths if path]
    return [sum(cost.run(fed, length) + cost.head(1, columns) for fed in longer) for length in prompts.lengths]


__all__ = ["branch_flops", "path_flops", "start_flops"]
