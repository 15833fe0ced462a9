"""Which prompts begin alike, so that what they share is run once."""

from collections.abc import Sequence


SHARED_SHARE = 4  # prompts belong together where at least this part (one in four) of the shorter one is common to both
MIN_SHARED_TOKENS = 8


def common_prefix(rows: Sequence[list[int]] | Sequence[tuple[int, ...]]) -> int:
    """How many leading tokens all rows share, leaving at least the last one of each row to itself.

    Args:
        rows: Token ids of at least one row.

    Returns:
        0 for a single row: it shares with no one.
    """
    if len(rows) < 2:
        return 0
    first, last = min(rows), max(rows)
    shortest = min(len(row) for row in rows)
    length = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), shortest)
    return max(min(length, shortest - 1), 0)


def begin_alike(first: Sequence[int], second: Sequence[int]) -> bool:
    """Whether two prompts share enough to be run together: a question that both answer, or a long system prompt.

    Args:
        first: Token ids.
        second: Token ids.
    """
    enough = max(MIN_SHARED_TOKENS, min(len(first), len(second)) // SHARED_SHARE)
    return len(first) >= enough <= len(second) and first[:enough] == second[:enough]


def find_groups(prompts: Sequence[Sequence[int]]) -> list[int]:
    """The group of each prompt: that of the first one it begins like, whose place is the group's number.

    Args:
        prompts: Token ids of each, all of one sequence type.
    """
    leaders: list[int] = []
    groups = []
    for place, prompt in enumerate(prompts):
        leader = next((leader for leader in leaders if begin_alike(prompts[leader], prompt)), None)
        if leader is None:
            leaders.append(leader := place)
        groups.append(leader)
    return groups


__all__ = ["begin_alike", "common_prefix", "find_groups"]
