"""`Policy`: tau under load, audits, and two arms, read from a file that may change while the server runs.

```json
{"a": {"thresholds": [0.99, 0.95], "audit_share": 0.05, "audit_baseline": [11, 1068]}, "b": {"thresholds": [0.9]}, "seed": 0}
```

`thresholds` fall from the one at rest to the laxest that load may bring; several of them need a checkpoint with a
certificate, and none may lie below the certified one. With `audit_baseline`, which `baseline_of` counts at the threshold at
rest, audits of an arm may raise an alarm. Without `b` every record goes by `a`.
"""

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from transformers_egrm.calibration.audit import PERIOD, Audit
from transformers_egrm.calibration.comparison import arm_of
from transformers_egrm.calibration.load import LoadController, LoadLimits, pressure
from transformers_egrm.modeling.errors_egrm import ConfigError, EGRMError, is_finite, need
from transformers_egrm.modeling.judge_options_egrm import JudgeOptions
from transformers_egrm.modeling.judge_results_egrm import JudgeResult


logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
_LOAD_KEYS = ("high", "low", "hold_s", "step_s")
_AUDIT_KEYS = ("audit_baseline", "audit_alpha", "audit_period")
_ARM_KEYS = ("thresholds", "audit_share", *_LOAD_KEYS, *_AUDIT_KEYS)
_KEYS = ("a", "b", "seed")


@dataclass(slots=True)
class Arm:
    """How the records of one arm are judged."""

    controller: LoadController | None = None
    """Chooses tau; None: the checkpoint's."""
    audit_share: float | None = None
    """Share of the short items that take the long path too; None: as the server was told."""
    audit: Audit | None = None
    """Watches them; None: nobody does."""
    source: Mapping[str, Any] = field(default_factory=dict)
    """What the file says of it: while that stays the same, a changed file takes no evidence away."""

    def options(self, load: float, now_s: float) -> dict[str, Any]:
        """Fields of `JudgeOptions`.

        Args:
            load: As `LoadController.update` takes its pressure.
            now_s: `time.monotonic()`.
        """
        chosen: dict[str, Any] = {} if self.audit_share is None else {"audit_share": self.audit_share}
        if self.controller is not None:
            chosen["consensus_threshold"] = self.controller.update(load, now_s)
        return chosen


@dataclass(slots=True)
class _Rules:
    arms: dict[str, Arm] = field(default_factory=lambda: {"a": Arm()})
    seed: int = 0


class Policy:
    """What decides how a record is judged, beside what its request asks for. One thread decides; any may ask for an arm.

    Args:
        path: The file; None: nothing is decided.
        certificate: The checkpoint's, or None.
        threshold: tau of arms that set none.

    Attributes:
        reloads: How often a changed file was taken over.
        refusals: How often a changed file was wrong, and the rules before it stayed.

    Raises:
        ConfigError: The file is wrong.
    """

    def __init__(
        self, path: str | None, certificate: Mapping[str, Any] | None = None, threshold: float = JudgeOptions.consensus_threshold
    ) -> None:  # fmt: skip
        self.path, self._certificate, self._threshold = None if path is None else Path(path), certificate, threshold
        self.reloads = self.refusals = 0
        self._looked, self._stamp = time.monotonic(), self._read_stamp()
        self._rules = _Rules()
        if self.path is not None:
            self._rules = self._read()

    @property
    def has_arms(self) -> bool:
        """Whether two policies are compared."""
        return "b" in self._rules.arms

    @property
    def thresholds(self) -> dict[str, float]:
        """tau in use, of each arm that sets one."""
        arms = self._rules.arms.items()
        return {name: arm.controller.threshold for name, arm in arms if arm.controller is not None}

    @property
    def audits(self) -> dict[str, Audit]:
        """Of each arm that is watched."""
        return {name: arm.audit for name, arm in self._rules.arms.items() if arm.audit is not None}

    def watch(self, arm: str, result: JudgeResult) -> None:
        """Look at a result for the arm's audit, and log the alarm that it raises.

        Args:
            arm: It was judged by.
            result: Audited or not.
        """
        audit = self.audits.get(arm)
        # Under load verdicts are believed that calibration did not count.
        if audit is None or result.consensus is None or result.consensus < audit.threshold:
            return
        if (alarm := audit.add(result)) is not None:
            logger.warning("audit_alarm", extra={"fields": {"arm": arm, **asdict(alarm), "advice": str(alarm)}})

    def arm(self, key: str | int | None) -> str:
        """`a` or `b`.

        Args:
            key: What decides it, such as the record's id; None: `a`.
        """
        return "a" if key is None or not self.has_arms else arm_of(key, self._rules.seed)

    def decide(
        self, key: str | int | None, queue: int, seconds_each: float, slack_s: float
    ) -> tuple[str, dict[str, Any]]:
        """The arm of a record, and the options that its arm sets now.

        Args:
            key: As in `arm`.
            queue: Records that wait.
            seconds_each: Mean seconds of work for one, above 0.
            slack_s: Seconds until the last of them is given up, above 0.
        """
        now_s = time.monotonic()
        self._look_again(now_s)
        arm = self.arm(key)
        load = pressure(queue, max(seconds_each, 1e-6), slack_s)
        return arm, self._rules.arms[arm].options(load, now_s)

    def _look_again(self, now_s: float) -> None:
        if self.path is None or now_s - self._looked < _LOOK_EVERY_S:
            return
        self._looked = now_s
        if (stamp := self._read_stamp()) == self._stamp:
            return
        self._stamp = stamp
        try:
            self._rules = self._read()
        except EGRMError as error:
            self.refusals += 1
            logger.error("policy_refused", extra={"fields": {"reason": str(error)}})
        else:
            self.reloads += 1
            logger.info("policy_reloaded", extra={"fields": {"thresholds": self.thresholds}})

    def _read_stamp(self) -> tuple[int, int] | None:
        try:
            stat = None if self.path is None else self.path.stat()
        except OSError:
            return None
        return None if stat is None else (stat.st_mtime_ns, stat.st_size)

    def _read(self) -> _Rules:
        assert self.path is not None, "only a policy with a file is read"
        try:
            values = json.loads(self.path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"The policy {self.path} must be a file of JSON, but: {error}.") from error
        _need_keys("policy", values, _KEYS)
        need("a" in values, "policy", sorted(values), 'an object with the key "a"')
        seed = values.get("seed", 0)
        need(isinstance(seed, int) and not isinstance(seed, bool), "seed", seed, "an integer")
        return _Rules({name: self._read_arm(name, values[name]) for name in ("a", "b") if name in values}, seed)

    def _read_arm(self, name: str, values: Any) -> Arm:
        _need_keys(name, values, _ARM_KEYS)
        before = self._rules.arms.get(name)
        if before is not None and before.source == values:
            return before
        share = values.get("audit_share")
        need(share is None or (is_finite(share) and 0 <= share <= 1), "audit_share", share, "a share in [0, 1]")
        taus = values.get("thresholds")
        limits = {key: values[key] for key in _LOAD_KEYS if key in values}
        if taus is None:
            need(not limits, name, sorted(limits), "without limits of load where it has no `thresholds`")
            return Arm(None, share, _audit_of(name, values, self._threshold), values)
        need(isinstance(taus, list), "thresholds", taus, "a list such as [0.99, 0.95]")
        controller = LoadController(taus, LoadLimits(**limits))
        certified = None if self._certificate is None else self._certificate["threshold"]
        if len(taus) > 1 and certified is None:
            raise ConfigError(f"Arm {name!r} lowers tau under load, but the checkpoint has no certificate that says how far.",
                              "Certify it with `egrm calibrate`, or name a single threshold.")  # fmt: skip
        if certified is not None and taus[-1] < certified:
            raise ConfigError(f"Arm {name!r} goes down to {taus[-1]:g}, below the certified threshold {certified:g}.")
        return Arm(controller, share, _audit_of(name, values, taus[0]), values)


def _audit_of(name: str, values: Mapping[str, Any], threshold: float) -> Audit | None:
    given = {key: values[key] for key in _AUDIT_KEYS if key in values}
    if "audit_baseline" not in given:
        need(not given, name, sorted(given), "without settings of an alarm where it has no `audit_baseline`")
        return None
    need(
        bool(values.get("audit_share")),
        "audit_share",
        values.get("audit_share"),
        "above 0 where there is an `audit_baseline`",
    )
    counts = given["audit_baseline"]
    fits = isinstance(counts, list) and len(counts) == 2 and all(is_finite(count) for count in counts)
    need(fits, "audit_baseline", counts, "[disagreements, audited], for example [11, 1068]")
    alpha, period = given.get("audit_alpha", 0.05), given.get("audit_period", PERIOD)
    return Audit(*counts, threshold=min(threshold, 1.0), alpha=alpha, period=period)


def _need_keys(name: str, values: Any, known: tuple[str, ...]) -> None:
    fits = isinstance(values, dict) and set(values) <= set(known)
    need(fits, name, values, f"an object with keys out of {', '.join(known)}")


__all__ = ["Arm", "Policy"]
