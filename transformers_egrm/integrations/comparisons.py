"""How a group is compared: which pairs or lists the judge sees, and one number for each member of what it says of them.

A pair is a verdict about two, and a trainer wants a number for each. So some pairs (or lists) are chosen, evenly and within
a budget, and the verdicts are added up: as the share of comparisons won, or as strengths that explain all of them at once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import mean

import numpy as np

from transformers_egrm.extras import import_extra
from transformers_egrm.modeling.errors_egrm import is_count, is_finite, need


Outcome = tuple[int, int, float]
"""Two members, and how far the first is better: 1 where it is, 0 where the second is, 0.5 for a tie."""
SPREAD = 2.0
"""Standard deviation of strengths before any verdict, in logits: one member in six beats an average one seven times of eight."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparisons:
    """How a group is compared.

    Raises:
        ConfigError: A setting is unknown or out of range.
    """

    by: str = "pairs"
    """`pairs`, for a judge in a pairwise space, or `lists`, for one that names the best of several."""
    reward: str = "strength"
    """`strength`: the chance to beat another member of the group, of a Bradley-Terry model. `wins`: share of comparisons won, a
    tie counting half, as in a tournament. Both are in [0, 1]."""
    budget: int | None = None
    """Most judgements of one group. A judgement is one judge prompt with its probes and chains; both orders of a pair are two.
    None: all pairs, or lists in which everybody stands twice."""
    orders: str = "both"
    """`both`: each pair is also shown in the other order, each list also backwards. `one`: as drawn; of a pair, the member that
    has come first less often comes first."""
    list_size: int = 4
    """Members of a list, at least 2; a smaller group is one list."""
    spread: float = SPREAD
    """Standard deviation of strengths before any verdict, in logits, above 0. It keeps a member finite that always wins."""
    seed: int = 0
    """Of who meets whom."""

    def __post_init__(self) -> None:
        need(self.by in ("pairs", "lists"), "by", self.by, "one of pairs, lists")
        need(self.reward in ("strength", "wins"), "reward", self.reward, "one of strength, wins")
        need(self.orders in ("both", "one"), "orders", self.orders, "one of both, one")
        fits = self.budget is None or (is_count(self.budget) and self.budget >= self.cost)
        need(fits, "budget", self.budget, f"None, or at least {self.cost}, what one comparison costs")
        need(is_count(self.list_size) and self.list_size >= 2, "list_size", self.list_size, "an integer >= 2")
        need(is_finite(self.spread) and self.spread > 0, "spread", self.spread, "a number above 0")

    @property
    def cost(self) -> int:
        """Judgements of one comparison."""
        return 2 if self.orders == "both" else 1

    def plan(self, count: int, key: str = "") -> list[tuple[int, ...]]:
        """Who is compared with whom, in the order in which they are shown.

        Args:
            count: Members of the group.
            key: What tells the group from others, so that not all of them meet in the same way.
        """
        rng = Random(f"{self.seed} {key}")
        if self.by == "pairs":
            every = count * (count - 1) // 2
            return plan_pairs(count, every if self.budget is None else self.budget // self.cost, rng)
        size = min(self.list_size, count)
        return plan_lists(count, size, -(-2 * count // size) if self.budget is None else self.budget // self.cost, rng)

    def rewards(self, count: int, outcomes: Sequence[Outcome]) -> list[float | None]:
        """One number in [0, 1] for each member, None for one that no verdict speaks of.

        Args:
            count: Members of the group.
            outcomes: What the verdicts say.
        """
        if self.reward == "wins":
            return win_shares(count, outcomes)
        return chances(bradley_terry(count, outcomes, spread=self.spread))


# -- who meets whom -----------------------------------------------------------------------------------------------------


def plan_pairs(count: int, pairs: int, rng: Random) -> list[tuple[int, int]]:
    """Pairs, evenly within a budget; nobody meets the same one twice.

    They are rounds of a tournament, everybody once in each, and one on a break where the number is odd. From `count - 1` pairs
    on, a chain of them leads from each member to each other one. The first of a pair is the one that has come first less often.

    Args:
        count: Members.
        pairs: Most pairs; there are count * (count - 1) / 2.
        rng: Draws who starts where.

    Source:
        The circle method of round-robin tournaments: one member stays, the others move on by one seat each round.
    """
    seats: list[int | None] = list(range(count))
    rng.shuffle(seats)
    seats += [None] * (count % 2)  # whoever meets nobody has a break
    lead, planned = [0] * count, []  # how much more often each one has come first than second
    for _ in range(len(seats) - 1):
        for left, right in zip(seats[: len(seats) // 2], reversed(seats), strict=False):
            if left is not None and right is not None and len(planned) < pairs:
                first, second = (left, right) if lead[left] <= lead[right] else (right, left)
                lead[first], lead[second] = lead[first] + 1, lead[second] - 1
                planned.append((first, second))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return planned


def plan_lists(count: int, size: int, lists: int, rng: Random) -> list[tuple[int, ...]]:
    """Lists, as evenly as a budget allows: nobody is in two more than another one.

    Args:
        count: Members.
        size: Of a list.
        lists: How many.
        rng: Draws who stands where.
    """
    seen, planned = [0] * count, []
    for _ in range(lists if count > 1 else 0):
        chosen = sorted(range(count), key=lambda member: (seen[member], rng.random()))[:size]
        rng.shuffle(chosen)
        for member in chosen:
            seen[member] += 1
        planned.append(tuple(chosen))
    return planned


# -- what it comes to ---------------------------------------------------------------------------------------------------


def win_shares(count: int, outcomes: Iterable[Outcome]) -> list[float | None]:
    """Share of its comparisons that each member won, a tie counting half; None for a member without any.

    Args:
        count: Members.
        outcomes: What the verdicts say.
    """
    won: list[list[float]] = [[] for _ in range(count)]
    for first, second, share in outcomes:
        won[first].append(share)
        won[second].append(1 - share)
    return [mean(own) if own else None for own in won]


def bradley_terry(count: int, outcomes: Sequence[Outcome], *, spread: float = SPREAD) -> list[float | None]:
    """Strengths that explain all outcomes at once: i beats j with the chance 1 / (1 + exp(s_j - s_i)).

    Before any outcome strengths are normal around 0, so that there is one best answer, it is finite, and members that no chain
    of comparisons connects are compared through the average.

    Args:
        count: Members.
        outcomes: What the verdicts say; a tie is half a win of each.
        spread: Standard deviation of strengths before any verdict, in logits.

    Returns:
        `count` strengths in logits; None for a member without any comparison.

    Raises:
        MissingExtraError: scikit-learn is not installed.

    Source:
        Bradley and Terry (1952), fitted as a logistic regression on who stands on which side. A list counts as its best member
        against each other one: given that one of two is the best, its chance is that of the pair alone (Luce 1959, the choice
        axiom).
    """
    judged = sorted({member for outcome in outcomes for member in outcome[:2]})
    if not judged:
        return [None] * count
    column = {member: place for place, member in enumerate(judged)}
    sides = np.zeros((len(outcomes), len(judged)))
    for row, (first, second, _) in enumerate(outcomes):
        sides[row, column[first]], sides[row, column[second]] = 1.0, -1.0
    shares = np.array([share for _, _, share in outcomes])
    regression = import_extra("sklearn.linear_model", "eval").LogisticRegression
    # Each outcome is a win of the first by its share, and a loss by the rest.
    fit = regression(C=spread**2, fit_intercept=False, tol=1e-8, max_iter=1000).fit(
        np.concatenate([sides, sides]), np.repeat([1, 0], len(outcomes)), np.concatenate([shares, 1 - shares])
    )
    strengths = fit.coef_[0]
    return [float(strengths[column[member]]) if member in column else None for member in range(count)]


def chances(strengths: Sequence[float | None]) -> list[float | None]:
    """The mean chance of each member to beat another one: in the order of strengths, and in [0, 1] in every group.

    Args:
        strengths: As `bradley_terry` gives them.
    """
    known = np.array([strength for strength in strengths if strength is not None])
    # All but itself, whom it would beat with a chance of a half.
    return [
        None if own is None else float(((1 / (1 + np.exp(known - own))).sum() - 0.5) / (len(known) - 1))
        for own in strengths
    ]


__all__ = [
    "SPREAD",
    "Comparisons",
    "Outcome",
    "bradley_terry",
    "chances",
    "plan_lists",
    "plan_pairs",
    "win_shares",
]
