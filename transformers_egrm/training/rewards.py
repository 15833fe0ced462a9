"""What a completion of the judge is worth in reinforcement learning: the standard reward, and the pairwise one.

Source:
    https://huggingface.co/papers/2604.10072: `R_pair = S(x, r+) - S(x, r-) + beta * 1[answer(r+) = y]`, mixed into the
    standard objective with a weight lambda. The paper names no way to form pairs: here every completion of a group is
    compared with every other of another quality, each from its own side.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers_egrm.modeling.judge_reading_egrm import verdict_of
from transformers_egrm.modeling.prompt_task_egrm import JudgeTask
from transformers_egrm.training.candidates import quality_of


@dataclass(frozen=True, slots=True)
class Read:
    """What one completion says."""

    verdict: int | None
    """The verdict it states; None where it states none."""
    ended: bool
    """Whether it ended by itself, within its budget."""
    num_tokens: int
    """Tokens written, the end included."""


def read_completion(task: JudgeTask, text: str, token_ids: Sequence[int], *, is_short: bool) -> Read:
    """A completion as the judge would read it.

    Args:
        task: The judging task.
        text: The completion, control tokens spelled out.
        token_ids: Its tokens, the end included where it has one.
        is_short: Whether it answers a short-mode prompt.
    """
    stops = (*task.chain_stop_ids, *task.probe_stop_ids) if is_short else task.chain_stop_ids
    ended = bool(token_ids) and token_ids[-1] in stops
    return Read(verdict_of(task, text, not is_short, ended), ended, len(token_ids))


def verdict_reward(read: Read, truth: int, num_verdicts: int, quality: str) -> float:
    """How right the verdict is, in [0, 1]; 0 without one.

    Args:
        read: The completion.
        truth: Id of the true verdict.
        num_verdicts: How many there are.
        quality: `exact` or `graded`, see `quality_of`.
    """
    return 0.0 if read.verdict is None else quality_of(read.verdict, truth, num_verdicts, quality)


def format_reward(read: Read) -> float:
    """1 for a completion that ends by itself and states one verdict, else 0.

    Args:
        read: The completion.
    """
    return float(read.ended and read.verdict is not None)


def token_reward(read: Read, budget: int) -> float:
    """What the tokens cost, in [-1, 0]: -1 for the whole budget.

    Args:
        read: The completion.
        budget: Tokens that cost 1.
    """
    return -min(read.num_tokens / budget, 1.0)


def pairwise_rewards(scores: Sequence[float], qualities: Sequence[float], bonus: float) -> list[float]:
    """The pairwise reward of each completion of a group.

    A pair is a better and a worse completion. The better one is rewarded by `S(r+) - S(r-) + bonus * 1[answer(r+) = y]`,
    the worse one by the same from its side, `S(r-) - S(r+) + bonus * 1[answer(r-) = y]`, whose second part is 0: a worse
    answer is not the truth. Each completion gets the mean over its pairs.

    Args:
        scores: The scorer's, in [0, 1].
        qualities: How right each verdict is, in [0, 1]; 1 is the truth.
        bonus: beta.

    Returns:
        One reward per completion; 0 where it has no pair, as in a group whose completions are equally good.
    """
    rewards = []
    for score, quality in zip(scores, qualities, strict=True):
        others = [other for other, value in zip(scores, qualities, strict=True) if value != quality]
        contrast = [score - other + bonus * (quality == 1) for other in others]
        rewards.append(sum(contrast) / len(contrast) if contrast else 0.0)
    return rewards


__all__ = ["Read", "format_reward", "pairwise_rewards", "read_completion", "token_reward", "verdict_reward"]
