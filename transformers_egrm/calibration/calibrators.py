"""Calibrators: from what a judge says of itself to how often it is right. Fitted here, stored as tables.

A table is two rising rows of numbers in [0, 1]; `verdict_calibration_egrm` reads between them. So the model code needs no
scikit-learn, and all methods are applied alike.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transformers_egrm.calibration.records import Labelled
from transformers_egrm.evaluation.metrics.columns import bools, same_length, shares
from transformers_egrm.extras import import_extra
from transformers_egrm.modeling.errors_egrm import ConfigError, DataError


METHODS = ("isotonic", "platt", "temperature")
SIGNALS = ("consensus", "distribution", "scorer")
"""What can be calibrated: consensus and the top of the exact distribution for the short verdict, the scorer for the long."""
_EDGE = 1e-6  # of a share whose logit is taken
_POINTS = np.concatenate([[0.0], 1 / (1 + np.exp(-np.linspace(-10, 10, 81))), [1.0]])
_MOST_POINTS = 200  # of a stored table


def fit(method: str, values: ArrayLike, right: ArrayLike) -> dict[str, Any]:
    """The table of a calibrator.

    Args:
        method: `isotonic`: any rising curve. `platt`: a logistic curve of the logit. `temperature`: the same through one half.
        values: [N] in [0, 1].
        right: [N] bool.

    Returns:
        `method`, and the rows `x` and `y`.

    Raises:
        ConfigError: The method is unknown.
        DataError: All are right, or none is.
        MissingExtraError: scikit-learn is not installed.
    """
    if method not in METHODS:
        raise ConfigError(f"A calibrator is one of {', '.join(METHODS)}, got {method!r}.")
    values, right = shares("values", values), bools("right", right)
    same_length(values=values, right=right)
    if right.all() or not right.any():
        raise DataError(f"A calibrator needs right and wrong verdicts, but all {len(right)} are of one kind.")
    if method == "isotonic":
        return {"method": method} | _isotonic(values, right)
    logistic = import_extra("sklearn.linear_model", "eval").LogisticRegression(
        C=1e6, fit_intercept=method == "platt", max_iter=1000
    )
    logistic.fit(_logit(values)[:, None], right)
    found = logistic.predict_proba(_logit(_POINTS)[:, None])[:, 1]
    if logistic.coef_[0, 0] < 0:  # the surer, the less often right: what no rising curve can say, it leaves out
        found = np.full(len(_POINTS), right.mean() if method == "platt" else 0.5)
    return {"method": method, "x": _rounded(_POINTS), "y": _rounded(found)}


def _isotonic(values: NDArray[np.float64], right: NDArray[np.bool_]) -> dict[str, Any]:
    curve = import_extra("sklearn.isotonic", "eval").IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
    curve.fit(values, right)
    x, y = curve.X_thresholds_, curve.y_thresholds_
    if len(x) > _MOST_POINTS:
        kept = np.unique(np.linspace(0, len(x) - 1, _MOST_POINTS).astype(int))
        x, y = x[kept], y[kept]
    return {"x": _rounded(x), "y": _rounded(y)}


def apply(table: dict[str, Any], values: ArrayLike) -> NDArray[np.float64]:
    """Calibrated shares.

    Args:
        table: See `fit`.
        values: [N] in [0, 1].
    """
    return np.interp(np.asarray(values, dtype=np.float64), table["x"], table["y"])


def signals(data: Labelled) -> dict[str, tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]]:
    """What the judge says of itself, by name: values, whether the verdict they speak of is right, and which items have one.

    Args:
        data: Labelled items.
    """
    found = {
        "consensus": (data.consensus, data.short_right, np.array([item.verdict is not None for item in data.items]))
    }
    known = np.array([bool(item.probs) for item in data.items])
    if known.any():
        top = np.array([max(item.probs, default=0.0) for item in data.items]).clip(0, 1)
        found["distribution"] = (top, data.short_right, known)
    scored = np.array([item.score is not None for item in data.items])
    if scored.any():
        scores = np.array([0.0 if item.score is None else item.score for item in data.items]).clip(0, 1)
        found["scorer"] = (scores, data.long_right, scored)
    return found


def fit_all(data: Labelled, methods: Sequence[str] = METHODS) -> dict[str, dict[str, Any]]:
    """The table of each signal, by the method that says most about questions that it was not fitted on.

    Args:
        data: Labelled items that test nothing.
        methods: To choose from.

    Returns:
        Tables by signal; a signal whose items are all right, or all wrong, has none.
    """
    found = {}
    for name, (values, right, known) in signals(data).items():
        values, right, owner = values[known], right[known], data.owner[known]
        if right.all() or not right.any():
            continue
        found[name] = fit_best(values, right, owner, methods)
    return found


def fit_best(
    values: NDArray[np.float64], right: NDArray[np.bool_], owner: NDArray[np.int64], methods: Sequence[str] = METHODS
) -> dict[str, Any]:
    """The table by the method that says most about questions that it was not fitted on.

    Args:
        values: [N] in [0, 1].
        right: [N].
        owner: [N] the number of each item's question.
        methods: To choose from.

    Raises:
        DataError: All are right, or none is.
    """
    losses = {method: _held_out_loss(method, values, right, owner) for method in methods} if len(methods) > 1 else {}
    return fit(min(methods, key=lambda method: losses.get(method, 0.0)), values, right)


def _held_out_loss(
    method: str, values: NDArray[np.float64], right: NDArray[np.bool_], owner: NDArray[np.int64], folds: int = 5
) -> float:
    # Mean log-loss of questions that were left out, in turn.
    total, counted = 0.0, 0
    for fold in range(folds):
        out = owner % folds == fold
        kept = right[~out]
        if not out.any() or kept.all() or not kept.any():
            continue
        said = apply(fit(method, values[~out], kept), values[out]).clip(1e-3, 1 - 1e-3)
        total -= float(np.log(np.where(right[out], said, 1 - said)).sum())
        counted += int(out.sum())
    return total / counted if counted else np.inf


def _logit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    inside = values.clip(_EDGE, 1 - _EDGE)
    return np.log(inside / (1 - inside))


def _rounded(values: NDArray[np.float64]) -> list[float]:
    return np.round(values, 6).tolist()


__all__ = ["METHODS", "SIGNALS", "apply", "fit", "fit_all", "fit_best", "signals"]
