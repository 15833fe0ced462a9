"""`Scheduler`: records in, results out, in full batches. Everything that judges more than one record goes through it.

It travels with every checkpoint, because the pipeline needs it where the package is absent.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .configuration_egrm import POOLINGS
from .errors_egrm import ConfigError, is_count, need, need_flag
from .judge_familiar_egrm import familiarity_of, warn_of_unfamiliar_text
from .judge_options_egrm import JudgeOptions
from .judge_packing_egrm import PromptLoad, check_batch_tokens, count_fitting, count_within, load_of
from .judge_plan_egrm import JudgePlan
from .judge_reading_egrm import label_of
from .judge_results_egrm import Entry, JudgeResult, encode_record, failed_result, raise_if_programs, results_of
from .judge_values_egrm import EGRMOutput, LongItem, LongItems, Status
from .prompt_groups_egrm import begin_alike, find_groups


PLAN_OPTIONS = frozenset({"num_probes", "path", "consensus_threshold", "timeout_s", "audit_share"})
"""Options in which items of one batch may differ: they are decided item by item (`JudgePlan`)."""


@dataclass(eq=False, slots=True)
class _Slot:
    # One record in flight.
    ticket: int
    entry: Entry
    options: Mapping[str, Any]
    deadline: float  # `time.monotonic()` at which it is given up, waiting included
    group: Hashable | None
    key: Hashable  # records with equal keys can be judged together
    long_item: LongItem | None = None
    seconds_left: float = math.inf
    probed: JudgeResult | None = None  # what its probes came to, where they disagree
    answer: JudgeResult | None = None  # stands already, where the long path is asked for an audit only


class Scheduler:
    """Judges records in full batches, in whatever order they come.

    Records wait until a batch is full, and are then probed. Records whose probes disagree wait in a pool until a full batch
    of them can think. Records that answer one question are probed together, so that they share its prefill. A batch is
    smaller than `batch_size` where more than a tenth of it (`PADDED_SHARE`) would be padding, and where a pass of so many
    tokens is slower than two (`PASS_TOKENS`). A result depends on record, options and seed alone: not on batches, order or
    neighbours.

    Args:
        model: An `EGRMRewardModel`.
        processor: Makes the judge prompts; by default the model's own.
        batch_size: Most records judged together, at least 1.
        batch_tokens: Most prompts of a batch times its longest prompt, in tokens, which bounds memory where lengths vary; a
            record that is longer is judged alone. None: no limit.
        return_texts: Whether results carry the text of the chosen candidate.
        explain: Whether results carry an account of how they came about.
        states: Which hidden states the account's candidates carry, one of `POOLINGS`; None: none.
        warn: Whether the first text of another world is warned of; results say it in any case (`unfamiliar`).
        **options: Fields of `JudgeOptions` for every record that brings no others.

    Attributes:
        load: Tokens that an engine with shared prefixes runs for the prompts probed so far, padding included.

    Raises:
        ConfigError: A setting is unknown or out of range.

    Example:
        ```python
        scheduler = Scheduler(model, batch_size=16)
        ticket = scheduler.submit({"prompt": "What is 2 + 3?", "response": "5"})
        while scheduler.step(flush=True):
            pass
        ((ticket, result),) = scheduler.take()
        ```
    """

    def __init__(
        self, model: Any, processor: Any = None, *, batch_size: int = 8, batch_tokens: int | None = None,
        return_texts: bool = False, explain: bool = False, states: str | None = None, warn: bool = True,
        **options: Any,
    ) -> None:  # fmt: skip
        need_model(model)
        need(is_count(batch_size), "batch_size", batch_size, "an integer >= 1")
        need_flag("return_texts", return_texts)
        need_flag("explain", explain)
        need_flag("warn", warn)
        need(states in (None, *POOLINGS), "states", states, f"one of {', '.join(POOLINGS)}, or None")
        model.config.judge_options(**options)
        self.model, self.processor = model, model.processor if processor is None else processor
        check_batch_tokens(batch_tokens)
        self.batch_size, self.batch_tokens, self.options = batch_size, batch_tokens, options
        self.load = PromptLoad()
        asked = {"return_texts": return_texts, "explain": explain, "states": states}
        self._familiarity, self._warned = familiarity_of(model.config), not warn
        self._asked = {name: value for name, value in asked.items() if value}
        tables = getattr(model.config, "calibration", None)
        self._calibrated = (tables, model.task if tables else None)
        self._certified = getattr(model.config, "certificate", None) is not None
        self._tickets = 0
        self._waiting: list[_Slot] = []  # to be probed
        self._pool: list[_Slot] = []  # probed, to be thought about
        self._alone: deque[_Slot] = deque()  # from a batch that failed
        self._done: list[tuple[int, JudgeResult]] = []

    def submit(
        self, record: object, *, space: Any = None, rubric: str | None = None, options: Mapping[str, Any] | None = None,
        deadline: float | None = None, group: Hashable | None = None,
    ) -> int:  # fmt: skip
        """Take a record in; nothing is computed yet but its tokens.

        Args:
            record: A mapping as `EGRMProcessor.encode` reads it, or a conversation. One that cannot be judged gives a result
                whose `status` and `error` say why.
            space: Its verdict space, by default the processor's.
            rubric: Its rubric where it brings none.
            options: Fields of `JudgeOptions` beside the scheduler's own.
            deadline: `time.monotonic()` at which it is given up, waiting included; None: never.
            group: Records of one group share what their prompts have in common; by default those whose prompts begin alike.

        Returns:
            A number that `take` gives back with the result.

        Raises:
            ConfigError: Space, rubric or options are wrong for every record.
        """
        read = encode_record(self.processor, record, space=space, rubric=rubric)
        return self.submit_entry(read, options=options, deadline=deadline, group=group)

    def submit_entry(
        self, entry: Entry | JudgeResult, *, options: Mapping[str, Any] | None = None, deadline: float | None = None,
        group: Hashable | None = None,
    ) -> int:  # fmt: skip
        """`submit` of what is encoded already, or has failed already.

        Args:
            entry: An encoded record, or its result.
            options: As in `submit`.
            deadline: As in `submit`.
            group: As in `submit`.
        """
        self._tickets += 1
        if isinstance(entry, JudgeResult):
            self._done.append((self._tickets, entry))
            return self._tickets
        own = {**self.options, **(options or {})}
        task = entry.item.task
        if options:  # the scheduler's own were checked when it was made
            self.model.config.judge_options(task.space.kind, **own)
        shared = tuple((name, _hashable(value)) for name, value in sorted(own.items()) if name not in PLAN_OPTIONS)
        # A certificate is bound to the rubric: a batch of one rubric tells whether it covers the batch.
        rubric = task.judge_turn_ids if self._certified else ()
        key = (task.space, task.short_suffix_ids, task.long_suffix_ids, rubric, shared)
        limit = math.inf if deadline is None else deadline
        self._waiting.append(_Slot(self._tickets, entry, own, limit, group, key))
        return self._tickets

    @property
    def in_flight(self) -> int:
        """How many records have no result yet."""
        return len(self._waiting) + len(self._pool) + len(self._alone)

    @property
    def queues(self) -> dict[str, int]:
        """How many records wait, by what for: `probe` or `think`."""
        return {"probe": len(self._waiting) + len(self._alone), "think": len(self._pool)}

    def withdraw(self, tickets: Iterable[int]) -> int:
        """Forget records that nobody waits for any more: they get no result, and their prefixes are freed.

        Args:
            tickets: Of any records; those that have a result already keep it.

        Returns:
            How many were forgotten.
        """
        gone, before = set(tickets), self.in_flight
        self._waiting = [slot for slot in self._waiting if slot.ticket not in gone]
        self._pool = [slot for slot in self._pool if slot.ticket not in gone]
        self._alone = deque(slot for slot in self._alone if slot.ticket not in gone)
        return before - self.in_flight

    def step(self, *, flush: bool = False, urgent: int | None = None, kind: str | None = None) -> bool:
        """Compute one batch: the fullest kind of work there is.

        Args:
            flush: Whether a batch that is not full may be computed where there is no full one.
            urgent: A ticket whose result is waited for: what it needs may be computed in a batch of any size.
            kind: `probe` or `think`, where only this kind of work may be done, around the record that waits longest. By
                default either, full batches first, whatever waits beside them.

        Returns:
            Whether anything was computed.
        """
        held_up = [slot.ticket for slot in self._waiting]
        if self._alone:
            self._judge_alone()
        elif kind is None and (batch := self._full(self._pool)):
            self._think(self._similar(batch, batch[0]))
        elif kind is None and (batch := self._full(self._waiting)):
            self._probe(self._nearest(batch))
        elif kind != "think" and self._waiting and (flush or urgent in held_up):
            first = self._waiting[0] if urgent not in held_up else self._waiting[held_up.index(urgent)]
            self._probe(self._nearest([slot for slot in self._waiting if slot.key == first.key], first))
        elif kind != "probe" and self._pool and (flush or urgent is not None):
            first = next((slot for slot in self._pool if slot.ticket == urgent), self._pool[0])
            self._think(self._similar([slot for slot in self._pool if slot.key == first.key], first))
        else:
            return False
        return True

    def probe(self) -> dict[int, JudgeResult]:
        """Probe everything that was submitted, and let wait what is undecided.

        Returns:
            Tickets of the records that `step` would think about, and what is known of each: consensus, and where the exact
            distribution is read, mean and variance of the reward.
        """
        while self._alone or self._waiting:
            if self._alone:
                self._judge_alone()
            elif batch := self._full(self._waiting):
                self._probe(self._nearest(batch))
            else:
                first = self._waiting[0]
                self._probe(self._nearest([slot for slot in self._waiting if slot.key == first.key], first))
        return {slot.ticket: slot.probed for slot in self._pool if slot.probed is not None and slot.answer is None}

    def settle(self, tickets: Iterable[int]) -> None:
        """Let probes decide records that they left undecided: the reward is the one that the option `reward` names.

        Args:
            tickets: Of those that `probe` returned.

        Raises:
            ConfigError: The rewards' distribution was not read.
        """
        chosen = set(tickets)
        for slot in [slot for slot in self._pool if slot.ticket in chosen]:
            probed, item = slot.probed, slot.long_item
            assert probed is not None, "in the pool after its probes"
            assert item is not None, "in the pool until it is thought about"
            reward = (
                probed.reward_risk_adjusted if slot.options.get("reward") == "risk_adjusted" else probed.reward_mean
            )
            if reward is None:
                raise ConfigError("Probes alone cannot decide without the distribution of verdicts.",
                                  "Use reward='expected' or 'risk_adjusted', in a space whose rewards are amounts.")  # fmt: skip
            label = label_of(item.task, int(item.short["verdicts"][0]), item.answers)
            self._finish(slot, replace(probed, reward=reward, verdict=label, route="short"))
            self._pool.remove(slot)

    def take(self) -> list[tuple[int, JudgeResult]]:
        """Tickets and results that have come since the last call, in the order in which they came."""
        done, self._done = self._done, []
        return done

    def drain(self) -> list[JudgeResult]:
        """Judge everything that was submitted; its results, in the order of their tickets."""
        while self.step(flush=True):
            pass
        return [result for _, result in sorted(self.take(), key=lambda pair: pair[0])]

    # Batches

    def _full(self, slots: Sequence[_Slot]) -> list[_Slot]:
        # All of the first kind of which there are enough for a batch.
        if len(slots) < self.batch_size:
            return []
        counts = Counter(slot.key for slot in slots)
        key = next((key for key, count in counts.items() if count >= self.batch_size), None)
        return [] if key is None else [slot for slot in slots if slot.key == key]

    def _nearest(self, slots: Sequence[_Slot], first: _Slot | None = None) -> list[_Slot]:
        # A batch around one slot, the oldest by default: those of its question first, then the nearest in length.
        first = first or slots[0]

        def distance(slot: _Slot) -> tuple[bool, int]:
            return not _belong_together(first, slot), abs(slot.entry.num_tokens - first.entry.num_tokens)

        near = sorted(slots, key=distance)[: self.batch_size]
        prompts, suffix = [slot.entry.item.prompts for slot in near], len(first.entry.item.task.short_suffix_ids)
        return near[: count_fitting(prompts, _questions(near), suffix, self.batch_tokens, self.model.device.type)]

    def _similar(self, slots: Sequence[_Slot], first: _Slot) -> list[_Slot]:
        # A batch that thinks: prompts are run already, and padding is only skipped over by attention. It is not split for
        # it, since every chain's step costs a pass through all weights however few rows there are.
        near = sorted(slots, key=lambda slot: (slot is not first, abs(slot.entry.num_tokens - first.entry.num_tokens)))
        near = near[: self.batch_size]
        lengths = [len(slot.entry.item.prompts) * slot.entry.num_tokens for slot in near]
        return near[: count_within(lengths, self.batch_tokens)]

    # Work

    def _probe(self, slots: Sequence[_Slot]) -> None:
        late = [slot for slot in slots if slot.deadline < math.inf and time.monotonic() > slot.deadline]
        for slot in late:
            self._finish(slot, failed_result(slot.entry.record_id, Status.TIMEOUT, slot.entry.item, seed=_seed(slot)))
        on_time = [slot for slot in slots if slot not in late]
        if on_time:
            self._probe_together(on_time)
        gone = set(slots)
        self._waiting = [slot for slot in self._waiting if slot not in gone]

    def _probe_together(self, slots: Sequence[_Slot]) -> None:
        entries = [slot.entry for slot in slots]
        try:
            inputs = self.processor.collate([entry.item for entry in entries], groups=_groups(slots))
            suffix = len(entries[0].item.task.short_suffix_ids)
            self.load += load_of([entry.item.prompts for entry in entries], _questions(slots), suffix)
            stage = self.model.probe(inputs, **self._arguments(slots), **self._accounts())
            results = results_of(entries, stage.output, _seed(slots[0]), *self._calibrated)
        except Exception as error:
            raise_if_programs(error)
            self._alone.extend(slots)
            return
        undecided = dict(zip(stage.long_index, stage.long_items(), strict=True))
        for row, slot in enumerate(slots):
            if row in undecided:
                slot.long_item = undecided[row]
                # Waiting for a full batch is no computing: the clock stops, unless the caller's own deadline runs.
                slot.seconds_left = undecided[row].deadline - time.monotonic()
                slot.probed, slot.answer = results[row], results[row] if results[row].audited else None
                self._pool.append(slot)
            else:
                self._finish(slot, results[row])

    def _think(self, slots: Sequence[_Slot]) -> None:
        now = time.monotonic()
        options = {name: value for name, value in slots[0].options.items() if name not in PLAN_OPTIONS}
        try:
            items = LongItems(
                replace(slot.long_item, deadline=min(now + slot.seconds_left, slot.deadline))
                for slot in slots
                if slot.long_item is not None
            )
            output = self.model.deliberate(items, **options, **self._asked)
            results = results_of([slot.entry for slot in slots], output, _seed(slots[0]), *self._calibrated)
        except Exception as error:
            raise_if_programs(error)
            for slot in slots:
                if slot.answer is None:
                    self._alone.append(slot)
                else:  # an audit that failed costs no reward
                    self._finish(slot, slot.answer)
        else:
            for slot, result in zip(slots, results, strict=True):
                self._finish(slot, result)
        for slot in slots:
            slot.long_item = None  # frees its prefix
        gone = set(slots)
        self._pool = [slot for slot in self._pool if slot not in gone]

    def _judge_alone(self) -> None:
        # Back in the loop, the failed batch's tensors are free, which a retry for lack of memory needs.
        slot = self._alone[0]
        try:
            inputs = self.processor.collate([slot.entry.item])
            output: EGRMOutput = self.model.judge(inputs, **slot.options, **self._asked)
            (result,) = results_of([slot.entry], output, _seed(slot), *self._calibrated)
        except Exception as error:
            raise_if_programs(error)
            result = failed_result(slot.entry.record_id, error, slot.entry.item, seed=_seed(slot))
        self._alone.popleft()
        self._finish(slot, result)

    def _finish(self, slot: _Slot, result: JudgeResult) -> None:
        if self._familiarity is not None and not self._familiarity.knows(slot.entry.item.judged_ids):
            result = replace(result, unfamiliar=True)
            if not self._warned:
                self._warned = True
                warn_of_unfamiliar_text(self.model.config, self._familiarity)
        self._done.append((slot.ticket, result))

    def _accounts(self) -> dict[str, Any]:
        return {name: value for name, value in self._asked.items() if name != "return_texts"}

    def _arguments(self, slots: Sequence[_Slot]) -> dict[str, Any]:
        # Options that all share, and a plan where they differ, or where a deadline cuts a timeout short.
        first, now = slots[0].options, time.monotonic() if any(slot.deadline < math.inf for slot in slots) else 0.0
        if all(slot.options == first for slot in slots) and not now:
            return dict(first)
        resolved = [self._resolved(slot, now) for slot in slots]
        shared = {name: value for name, value in first.items() if name not in PLAN_OPTIONS}
        return {**shared, "plan": JudgePlan.of(resolved, [slot.entry.item.item_id for slot in slots])}

    def _resolved(self, slot: _Slot, now: float) -> JudgeOptions:
        options = self.model.config.judge_options(slot.entry.item.task.space.kind, **slot.options)
        if slot.deadline == math.inf:
            return options
        left = max(slot.deadline - now, 1e-6)
        return options.with_overrides(timeout_s=left if options.timeout_s is None else min(options.timeout_s, left))


def need_model(model: Any) -> None:
    """Refuse what cannot judge.

    Args:
        model: By its abilities: a checkpoint loaded with remote code has a class of its own.

    Raises:
        ConfigError: It is no reward model.
    """
    if not (hasattr(model, "probe") and hasattr(getattr(model, "config", None), "judge_options")):
        raise ConfigError(
            f"Records are judged by an EGRMRewardModel, got {type(model).__name__} {model!r:.80}.",
            "Load one with `EGRMRewardModel.from_pretrained`, or build one with `from_components`.",
        )


def _belong_together(first: _Slot, second: _Slot) -> bool:
    if first.group is not None or second.group is not None:
        return first.group == second.group
    return begin_alike(first.entry.item.prompts[0], second.entry.item.prompts[0])


def _groups(slots: Iterable[_Slot]) -> list[int] | None:
    # None: found by the processor, from the prompts.
    names = [slot.group for slot in slots]
    if all(name is None for name in names):
        return None
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names)) if name is not None}
    return [numbers.get(name, len(names) + place) for place, name in enumerate(names)]


def _questions(slots: Sequence[_Slot]) -> Sequence[int]:
    # The groups that the processor will find or be given.
    groups = _groups(slots)
    return find_groups([slot.entry.item.prompts[0] for slot in slots]) if groups is None else groups


def _hashable(value: Any) -> Hashable:
    return tuple(value) if isinstance(value, list | tuple) else value


def _seed(slot: _Slot) -> int:
    return slot.options.get("seed", JudgeOptions.seed)


__all__ = ["PLAN_OPTIONS", "Scheduler", "need_model"]
