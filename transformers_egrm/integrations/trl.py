"""TRL: a judge as the reward function of GRPO, RLOO, Online DPO, and of all that call `f(prompts=, completions=)`.

TRL itself is not imported: a reward function is a callable, and this one is of use without a trainer too.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from threading import Lock, RLock
from typing import Any

import torch
from transformers.utils import logging

from transformers_egrm.bundle import folder_of
from transformers_egrm.calibration.audit import Audit, disagrees
from transformers_egrm.integrations.compared_groups import GroupComparison, pairwise_space
from transformers_egrm.integrations.comparisons import Comparisons
from transformers_egrm.integrations.groups import worth_thinking
from transformers_egrm.modeling.errors_egrm import ConfigError, is_finite, need
from transformers_egrm.modeling.judge_options_egrm import JudgeOptions
from transformers_egrm.modeling.judge_results_egrm import JudgeResult, failed_result
from transformers_egrm.modeling.judge_scheduler_egrm import Scheduler, need_model
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.policy.cache import VerdictCache


logger = logging.get_logger(__name__)

RECORD_FIELDS = ("system", "rubric", "reference", "tools")
"""What a dataset column may bring into a record."""
SPACES = ("pointwise", "binary")
"""Verdict spaces that judge one response."""
# Transformers replaces functions of its own while it loads: in two threads at once, tied weights get lost.
_LOADING = RLock()


class EGRMReward:
    """A judge as a reward function: a list of rewards for a batch of prompts and completions.

    A completion has no reward (None) where the judge states no verdict, or where `value` abstains. Completions of equal
    prompts are judged together, wherever they stand in the batch, so that their question is run once; equal completions of
    equal prompts are judged once. Prompts and completions are read as text or messages, never as the policy's token ids.

    The model is loaded at the first call, in the process that calls. The object can be pickled, unless it was given a loaded
    model.

    Args:
        model: `egrm-mini`, a folder or a Hub id; or an `EGRMRewardModel`, which stays in this process.
        scale: What the judge's reward is multiplied by, not 0. Pointwise rewards are 0 to 10.
        clip: Least and greatest reward after scaling; None: no limit.
        value: A result's reward before scaling, None to abstain; by default the judge's own. A function of a module, where
            the object is to be pickled.
        empty_reward: What a completion without any text gets, in the trainer's own scale; None: no reward. The judge is not
            asked.
        columns: Record field -> dataset column, for the fields `system`, `rubric`, `reference` and `tools`. Other columns
            are not read.
        name: What the trainer's logs call it; by default the name of the class, and `egrm` before metrics.
        batch_size: Most completions judged together. A group that is larger runs its question more than once.
        batch_tokens: As in `Scheduler`.
        space: Verdict space of single responses, as `EGRMProcessor.task` takes it; by default the processor's own.
        rubric: Rubric, likewise.
        device: Where a model that is loaded goes; by default this process's accelerator, or the CPU without one.
        model_kwargs: Of `EGRMRewardModel.from_pretrained`, such as `dtype` and `revision`.
        explain: Whether results carry accounts, for `value` to read.
        least_change: Think about a member of a group only if its verdict could move an advantage by more than this; members that
            are not thought about get the mean reward of their probes' distribution. None: wherever probes disagree.
        compare: Compare the completions of a prompt with each other instead of judging each alone. `space` is then a pairwise
            one; rewards are in [0, 1] before scaling.
        audit: Watches results whose short verdict was audited (`audit_share`); an alarm is logged and does not stop the run.
        cache: Where verdicts are kept, and looked for before anything is judged: a `VerdictCache` or its file's path. Not with
            `least_change`, whose rewards depend on the group.
        **options: Fields of `JudgeOptions`.

    Raises:
        ConfigError: A setting is unknown or out of range.

    Example:
        ```python
        trainer = GRPOTrainer("Qwen/Qwen3-0.6B", reward_funcs=EGRMReward("egrm-mini"), train_dataset=questions)
        ```
    """

    def __init__(
        self,
        model: Any,
        *,
        scale: float = 1.0,
        clip: tuple[float, float] | None = None,
        value: Callable[[JudgeResult], float | None] | None = None,
        empty_reward: float | None = None,
        columns: Mapping[str, str] | None = None,
        name: str | None = None,
        batch_size: int = 16,
        batch_tokens: int | None = None,
        space: Any = None,
        rubric: str | None = None,
        device: str | torch.device | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        explain: bool = False,
        least_change: float | None = None,
        compare: Comparisons | None = None,
        audit: Audit | None = None,
        cache: Any = None,
        **options: Any,
    ) -> None:
        if least_change is not None:
            need(is_finite(least_change) and least_change >= 0, "least_change", least_change, "a number >= 0, or None")
            floor = options.get("abstain_below")
            _need_none("together with `least_change`, which rewards what probes disagree on", abstain_below=floor)
            _need_none("together with `least_change`, whose rewards depend on the group", cache=cache)
            options = {"reward": "expected"} | options
        if compare is not None:
            need(isinstance(compare, Comparisons), "compare", compare, "a Comparisons, or None")
            _need_none("with `compare`, which gives no response a verdict of its own", least_change=least_change, audit=audit,
                       audit_share=options.get("audit_share") or None)  # fmt: skip
        need(is_finite(scale) and scale != 0, "scale", scale, "a number other than 0")
        need(clip is None or (len(clip) == 2 and all(map(is_finite, clip)) and clip[0] < clip[1]), "clip", clip,
             "two numbers, the least and the greatest reward, or None")  # fmt: skip
        need(empty_reward is None or is_finite(empty_reward), "empty_reward", empty_reward, "a number, or None")
        need(value is None or callable(value), "value", value, "a function of a JudgeResult, or None")
        columns = dict(columns or {})
        need(set(columns) <= set(RECORD_FIELDS), "columns", columns, f"a mapping from {', '.join(RECORD_FIELDS)}")
        JudgeOptions().with_overrides(**options)  # a wrong name is refused now, and not after the first rollout
        if is_name := isinstance(model, str | PathLike):
            model = str(model)
        else:
            need_model(model)
        self.source: Any = model
        self.scale, self.clip, self.value, self.empty_reward = scale, clip, value, empty_reward
        self.columns, self.device, self.model_kwargs = columns, device, dict(model_kwargs or {})
        self.least_change, self.compare = least_change, compare
        self.audit, self.encoding = audit, {"space": space, "rubric": rubric}
        self.judging = {"batch_size": batch_size, "batch_tokens": batch_tokens, "explain": explain, **options}
        self.cache = self.judging["cache"] = VerdictCache.read(cache)
        self.prefix = name or "egrm"
        self.__name__ = name or type(self).__name__
        self._model: Any = None if is_name else model
        self._lock = Lock()
        if not is_name:
            self._check_space()

    @property
    def model(self) -> EGRMRewardModel:
        """The judge; the first use loads it."""
        with _LOADING:
            if self._model is None:
                model: Any = EGRMRewardModel.from_pretrained(folder_of(self.source), **self.model_kwargs)
                self._model = model if "device_map" in self.model_kwargs else model.to(self.device or _own_device())
                self._check_space()
        return self._model

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Least and greatest reward a trainer can get; None where `value` decides and nothing clips."""
        if self.clip is not None:
            return self.clip
        if self.value is not None:
            return None
        own = (0.0, 1.0) if self.compare else self.model.processor.task(**self.encoding).space.rewards
        ends = [self.scale * reward for reward in own]
        return min(ends), max(ends)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Any = None,
        *,
        log_extra: Callable[[str, list], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> Any:
        """Rewards of N completions.

        Args:
            prompts: N texts or lists of messages.
            completions: N texts or lists of messages.
            completion_ids: Not read: another tokenizer's.
            log_extra: Takes a column's name and its N values.
            log_metric: Takes a metric's name and its value.
            **columns: N values of each dataset column, and what else a trainer passes.

        Returns:
            N numbers or None, in order.

        Raises:
            ConfigError: A column of `columns` is missing, or the model cannot be used as it was set up.
        """
        return self.rewards(self.judge(prompts, completions, **columns), log_extra=log_extra, log_metric=log_metric)

    def judge(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[JudgeResult | None]:
        """Results of N completions; None for one without any text, if that has a reward of its own.

        Args:
            prompts: As in `__call__`.
            completions: As in `__call__`.
            **columns: As in `__call__`.

        Raises:
            ConfigError: As in `__call__`.
        """
        if len(prompts) != len(completions):
            raise ConfigError(f"Each completion needs its prompt, got {len(completions)} and {len(prompts)}.")
        if absent := sorted(set(self.columns.values()) - set(columns)):
            raise ConfigError(
                f"`columns` names {', '.join(absent)}, but the batch has {', '.join(sorted(columns)) or 'no columns'}.",
                "Keep the column in the dataset; some trainers need `remove_unused_columns=False` for that.",
            )
        fields = {field: columns[column] for field, column in self.columns.items()}
        if self.compare is not None:
            rows = [{field: values[row] for field, values in fields.items()} for row in range(len(prompts))]
            return self._compare(prompts, completions, rows, self.compare)
        records = [
            {"messages": [*_turns(prompt, "user"), *_turns(completion, "assistant")]}
            | {field: values[row] for field, values in fields.items()}
            for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
        ]
        asked = [self.empty_reward is None or not _is_empty(completion) for completion in completions]
        return self._judge(records, [_key(prompt) for prompt in prompts], asked)

    def _judge(self, records: list[dict], groups: list[str], asked: list[bool]) -> list[JudgeResult | None]:
        tickets: dict[str, int] = {}
        with self._lock:
            scheduler = Scheduler(self.model, **self.judging)
            keys = [_key(record) if ask else None for record, ask in zip(records, asked, strict=True)]
            for key, record, group in zip(keys, records, groups, strict=True):
                if key is not None and key not in tickets:
                    tickets[key] = scheduler.submit(record, group=group, **self.encoding)
            rows = [None if key is None else tickets[key] for key in keys]
            results: dict[int, JudgeResult] = {}
            if self.least_change is not None:
                undecided = scheduler.probe()
                results = dict(scheduler.take())
                members = [
                    [t for t, own in zip(rows, groups, strict=True) if own == group] for group in dict.fromkeys(groups)
                ]
                needed = {t for group in members for t in _needed(group, results, undecided, self.least_change)}
                scheduler.settle(undecided.keys() - needed)
            while scheduler.step(flush=True):
                pass
            results |= dict(scheduler.take())
        return [None if row is None else results[row] for row in rows]

    def _compare(
        self, prompts: Sequence[Any], completions: Sequence[Any], fields: Sequence[dict], how: Comparisons
    ) -> list[JudgeResult | None]:
        # An empty completion is no candidate: it would only cost others their comparisons.
        silent = None if self.empty_reward is not None else failed_result(None, "The completion is empty.")
        told: list[JudgeResult | None] = [silent] * len(prompts)
        rows_of: dict[str, list[int]] = {}
        for row, completion in enumerate(completions):
            if not _is_empty(completion):
                rows_of.setdefault(_key([prompts[row], fields[row]]), []).append(row)
        with self._lock:
            scheduler = Scheduler(self.model, **self.judging)
            groups = [
                GroupComparison(
                    scheduler, prompts[rows[0]], [completions[row] for row in rows], how, fields=fields[rows[0]],
                    **self.encoding,
                )
                for rows in rows_of.values()
            ]  # fmt: skip
            while scheduler.step(flush=True):
                pass
            results = dict(scheduler.take())
        for rows, group in zip(rows_of.values(), groups, strict=True):
            for row, member in zip(rows, group.result(results).members, strict=True):
                told[row] = member
        return told

    def rewards(
        self, results: Sequence[JudgeResult | None], *, log_extra: Callable[[str, list], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
    ) -> list[float | None]:  # fmt: skip
        """What a trainer gets for N results.

        Args:
            results: As `judge` gives them.
            log_extra: As in `__call__`.
            log_metric: As in `__call__`.
        """
        reasons: Counter[str] = Counter()
        rewards = [self._reward(result, reasons) for result in results]
        if reasons:
            told = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(3))
            lost = f"{sum(reasons.values())} of {len(results)} completions have no reward"
            logger.warning(f"{self.__name__}: {lost}: {told}")
        distinct = list({id(result): result for result in results if result is not None}.values())
        if self.audit is not None:
            for alarm in filter(None, map(self.audit.add, distinct)):
                logger.warning(f"{self.__name__}: {alarm}")
        if log_extra is not None:
            for column, values in _columns(results).items():
                log_extra(f"{self.prefix}_{column}", values)
        if log_metric is not None:
            metrics = _metrics(results, rewards, distinct) | _audit_metrics(distinct, self.audit)
            if self.cache is not None and distinct:
                metrics["cache_share"] = sum(result.stage == "cache" for result in distinct) / len(distinct)
            for metric, value in metrics.items():
                log_metric(f"{self.prefix}/{metric}", value)
        return rewards

    def _reward(self, result: JudgeResult | None, reasons: Counter[str]) -> float | None:
        if result is None:
            return self.empty_reward
        if result.reward is None:
            reasons[f"{result.status}: {result.error}"] += 1
            return None
        try:
            worth = result.reward if self.value is None else self.value(result)
        except Exception as error:  # one strange record must not end a run of days
            reasons[f"`value` raised {type(error).__name__}: {error}"] += 1
            return None
        if worth is None or not is_finite(float(worth)):
            reasons["abstained" if worth is None else f"`value` gave {worth}"] += 1
            return None
        scaled = self.scale * float(worth)
        return scaled if self.clip is None else min(max(scaled, self.clip[0]), self.clip[1])

    def _check_space(self) -> None:
        if self.compare is None:
            kind = self.model.processor.task(**self.encoding).space.kind
            need(kind in SPACES, "space", kind, f"one of {', '.join(SPACES)}, which judge one response")
        elif self.compare.by == "pairs":
            pairwise_space(self.model.processor, self.encoding["space"])
        else:
            space = self.encoding["space"]
            need(space is None, "space", space, "None where lists are compared: their length decides it")
        Scheduler(self.model, **self.judging)

    def __getstate__(self) -> dict[str, Any]:
        """What goes to another process: settings, no model."""
        if not isinstance(self.source, str):
            raise ConfigError(
                "A reward that was given a loaded model cannot be sent to another process.",
                "Give it the model's folder or Hub id: each process then loads its own.",
            )
        return {**self.__dict__, "_model": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Settings of another process."""
        self.__dict__.update(state, _lock=Lock())


class AsyncEGRMReward(EGRMReward):
    """The same as a coroutine: trainers run it beside other asynchronous rewards, and judging takes a thread of its own."""

    async def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Any = None,
        *,
        log_extra: Callable[[str, list], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """As `EGRMReward.__call__`; the trainer's own functions are called in its own thread."""
        results = await asyncio.to_thread(self.judge, prompts, completions, **columns)
        return self.rewards(results, log_extra=log_extra, log_metric=log_metric)


def _need_none(when: str, **settings: Any) -> None:
    for setting, given in settings.items():
        need(given is None, setting, given, f"None {when}")


def _turns(value: Any, role: str) -> list[Any]:
    return [{"role": role, "content": value}] if isinstance(value, str) else list(value)


def _is_empty(completion: Any) -> bool:
    if isinstance(completion, str):
        return not completion.strip()
    # A turn that only calls a tool says something.
    said = [value for message in completion for key, value in message.items() if key != "role"]
    return not any(value.strip() if isinstance(value, str) else value for value in said)


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=repr)


def _needed(
    group: Sequence[int | None], decided: Mapping[int, JudgeResult], undecided: Mapping[int, JudgeResult], bound: float
) -> list[int]:
    # Tickets of a group's members whose chains could change its advantages; a member that stands twice counts twice.
    told = [
        (t, undecided[t].reward_mean, undecided[t].reward_variance) for t in group if t is not None and t in undecided
    ]
    told += [(t, decided[t].reward, 0.0) for t in group if t is not None and t in decided]
    known = [(t, mean, variance) for t, mean, variance in told if mean is not None and variance is not None]
    thinks = worth_thinking([mean for _, mean, _ in known], [variance for _, _, variance in known], bound)
    return [t for (t, _, _), think in zip(known, thinks, strict=True) if think]


def _own_device() -> torch.device:
    # Trainers of several processes have made one accelerator the current one of each.
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    kind = torch.accelerator.current_accelerator()
    return torch.device("cpu" if kind is None else kind.type, torch.accelerator.current_device_index())


def _columns(results: Sequence[JudgeResult | None]) -> dict[str, list]:
    names = ("route", "consensus", "status", "tokens", "error", "audit_verdict", "stage")
    return {name: [None if r is None else getattr(r, name) for r in results] for name in names}


def _metrics(
    results: Sequence[JudgeResult | None], rewards: Sequence[float | None], distinct: Sequence[JudgeResult]
) -> dict[str, float]:
    if not results:
        return {}
    judged = [result for result in results if result is not None]
    routed = [result for result in judged if result.route is not None]
    sure = [result.consensus for result in judged if result.consensus is not None]
    spent = sum(result.tokens for result in distinct)
    metrics = {"none_share": sum(reward is None for reward in rewards) / len(results), "tokens": spent / len(results)}
    if routed:
        metrics["short_share"] = sum(result.route == "short" for result in routed) / len(routed)
    if sure:
        metrics["consensus"] = sum(sure) / len(sure)
    return metrics


def _audit_metrics(distinct: Sequence[JudgeResult], audit: Audit | None) -> dict[str, float]:
    outcomes = [outcome for outcome in map(disagrees, distinct) if outcome is not None]
    metrics = {"audit_disagreement": sum(outcomes) / len(outcomes)} if outcomes else {}
    return (
        metrics
        if audit is None
        else metrics | {"audit_wealth": audit.wealth, "audit_alarm": float(audit.alarm is not None)}
    )


__all__ = ["AsyncEGRMReward", "EGRMReward"]
