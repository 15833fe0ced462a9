"""A judge's groups, compared by pairs or lists: the comparisons of one question, and what came of each response."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from transformers_egrm.integrations.comparisons import Comparisons, Outcome
from transformers_egrm.modeling.errors_egrm import InputError, need
from transformers_egrm.modeling.judge_results_egrm import JudgeResult, encode_record
from transformers_egrm.modeling.judge_scheduler_egrm import Scheduler
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace


@dataclass(frozen=True, slots=True)
class ComparedGroup:
    """What came of one group."""

    rewards: tuple[float | None, ...]
    """[G] in [0, 1]; None for a member that no verdict speaks of."""
    members: tuple[JudgeResult, ...]
    """[G] each member's part: its reward, and consensus, route and tokens of the comparisons that it stood in. Equal responses
    share one."""
    outcomes: tuple[Outcome, ...]
    """What the verdicts say, by place in the group."""
    judgements: int
    """Judge prompts that were asked."""
    failed: int
    """Comparisons without a verdict."""


class GroupComparison:
    """One group on its way through a Scheduler: made, it has submitted its comparisons; `result` says what came of them.

    Args:
        scheduler: Takes the comparisons.
        prompt: The question, text or messages.
        responses: G of them, text or an assistant's message; equal ones count as one.
        how: How they are compared.
        space: A pairwise verdict space where pairs are compared; by default the judge's own if it is one, else A or B.
        rubric: By default the judge's own.
        fields: What else the records hold, such as `reference`.
    """

    def __init__(
        self, scheduler: Scheduler, prompt: Any, responses: Sequence[Any], how: Comparisons, *, space: Any = None,
        rubric: str | None = None, fields: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        fields = dict(fields or {})
        self._how, self._key = how, repr((prompt, fields))
        names = [repr(response) for response in responses]
        distinct = list(dict.fromkeys(names))
        self._places = [distinct.index(name) for name in names]
        texts = [responses[names.index(name)] for name in distinct]
        self._shown: dict[int, tuple[int, ...]] = {}  # ticket -> members in the order shown
        self.judgements = 0
        for members in how.plan(len(distinct), self._key):
            shown = [texts[member] for member in members]
            if how.by == "pairs":
                record = {"prompt": prompt, "response_a": shown[0], "response_b": shown[1], **fields}
                self._submit_pair(scheduler, members, record, pairwise_space(scheduler.processor, space), rubric)
            else:
                self._submit_list(scheduler, members, {"prompt": prompt, "responses": shown, **fields}, rubric)

    def _submit_pair(
        self, scheduler: Scheduler, members: tuple[int, ...], record: Mapping[str, Any], space: Any, rubric: str | None
    ) -> None:
        entry = encode_record(scheduler.processor, record, space=space, rubric=rubric)
        if self._how.orders == "one" and not isinstance(entry, JudgeResult):
            # Both orders are one item with two prompts: here it has the first alone.
            prompts, swapped = entry.item.prompts[:1], entry.item.swapped[:1]
            entry = replace(entry, item=replace(entry.item, prompts=prompts, swapped=swapped, shared_tokens=0))
        self._shown[scheduler.submit_entry(entry, group=self._key)] = members
        self.judgements += self._how.cost

    def _submit_list(
        self, scheduler: Scheduler, members: tuple[int, ...], record: dict[str, Any], rubric: str | None
    ) -> None:
        space = VerdictSpace.listwise(len(members))
        for way in (slice(None), slice(None, None, -1))[: self._how.cost]:
            turned = record | {"responses": record["responses"][way]}
            ticket = scheduler.submit(turned, space=space, rubric=rubric, group=self._key)
            self._shown[ticket] = members[way]
            self.judgements += 1

    def result(self, results: Mapping[int, JudgeResult]) -> ComparedGroup:
        """What came of the group.

        Args:
            results: Of the scheduler, by ticket.
        """
        count = max(self._places, default=-1) + 1
        outcomes: list[Outcome] = []
        parts: list[list[tuple[JudgeResult, int]]] = [[] for _ in range(count)]
        for ticket, shown in self._shown.items():
            outcomes += outcomes_of(shown, results[ticket], self._how.by)
            for place, member in enumerate(shown):
                # Whole tokens, which add up to those of the comparison.
                parts[member].append((results[ticket], (results[ticket].tokens + place) // len(shown)))
        rewards = self._how.rewards(count, outcomes)
        if count == 1 and len(self._places) > 1:
            rewards = [0.5]  # all are equal, and so level with each other
        members = [_member(reward, own) for reward, own in zip(rewards, parts, strict=True)]
        by_place: dict[int, list[int]] = {}
        for row, place in enumerate(self._places):
            by_place.setdefault(place, []).append(row)
        return ComparedGroup(
            rewards=tuple(rewards[place] for place in self._places),
            members=tuple(members[place] for place in self._places),
            outcomes=tuple((by_place[first][0], by_place[second][0], share) for first, second, share in outcomes),
            judgements=self.judgements,
            failed=sum(results[ticket].reward is None for ticket in self._shown),
        )


def outcomes_of(shown: Sequence[int], result: JudgeResult, by: str) -> list[Outcome]:
    """What one verdict says of members; nothing where there is none.

    Args:
        shown: Members in the order in which the judge saw them.
        result: The judge's.
        by: As in `Comparisons`.
    """
    if result.reward is None:
        return []
    if by == "pairs":
        return [(shown[0], shown[1], result.reward)]
    best = shown[int(result.reward)]
    return [(best, other, 1.0) for other in shown if other != best]


def compare_group(
    model: Any, prompt: Any, responses: Sequence[Any], how: Comparisons | None = None, *, batch_size: int = 16,
    space: Any = None, rubric: str | None = None, **options: Any,
) -> ComparedGroup:  # fmt: skip
    """Compare the responses to one question.

    Args:
        model: An `EGRMRewardModel` that judges pairs or lists.
        prompt: The question, text or messages.
        responses: G of them, text or an assistant's message each.
        how: By default all pairs, in both orders.
        batch_size: Most comparisons judged together.
        space: As in `GroupComparison`.
        rubric: Likewise.
        **options: Fields of `JudgeOptions`.

    Raises:
        InputError: `responses` is one text.
        ConfigError: A setting is unknown or out of range.

    Example:
        ```python
        group = compare_group(model, "What is 7 + 5?", answers, Comparisons(budget=16))
        print(group.rewards)
        ```
    """
    if isinstance(responses, str | bytes | Mapping):
        raise InputError(f"`responses` must be a list of answers, got {type(responses).__name__} {responses!r:.40}.",
                         "Put one answer in a list.")  # fmt: skip
    scheduler = Scheduler(model, batch_size=batch_size, **options)
    group = GroupComparison(scheduler, prompt, responses, how or Comparisons(), space=space, rubric=rubric)
    while scheduler.step(flush=True):
        pass
    return group.result(dict(scheduler.take()))


def pairwise_space(processor: Any, space: Any) -> Any:
    """The space that pairs are judged in.

    Args:
        processor: The judge's.
        space: As asked for.

    Raises:
        ConfigError: It does not compare two.
    """
    own = processor.task(space).space
    if space is None and own.kind != "pairwise":
        return VerdictSpace.pairwise()
    need(own.kind == "pairwise", "space", own.kind, "pairwise, where pairs are compared")
    return own


def _member(reward: float | None, parts: Sequence[tuple[JudgeResult, int]]) -> JudgeResult:
    results = [result for result, _ in parts]
    sure = [result.consensus for result in results if result.consensus is not None]
    routes, stages = {result.route for result in results} - {None}, {result.stage for result in results}
    reason = None
    if reward is None:
        failed = results[0].error if results else "none of them was asked for"
        reason = f"No verdict speaks of this response; comparisons: {len(results)}; the first: {failed}"
    return JudgeResult(
        id=None,
        reward=reward,
        verdict=None,
        consensus=mean(sure) if sure else None,
        consensus_is_bound=any(result.consensus_is_bound for result in results),
        route="long" if "long" in routes else next(iter(routes), None),
        status="ok" if reward is not None else results[0].status if results else "no_verdict",
        tokens=sum(tokens for _, tokens in parts),
        truncated=any(result.truncated for result in results),
        truncated_tokens=sum(result.truncated_tokens for result in results),
        order=(),
        seed=next((result.seed for result in results), None),
        stage=next((stage for stage in ("chains", "probes", "cache") if stage in stages), None),
        error=reason,
    )


__all__ = ["ComparedGroup", "GroupComparison", "compare_group", "outcomes_of", "pairwise_space"]
