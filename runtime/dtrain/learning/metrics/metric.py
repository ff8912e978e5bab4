"""The base of all metrics: sums that grow with every batch, and a result made of them.

A metric's `state` is a few float64 arrays by name, all of which are sums. States of metrics that saw
different batches add up to the state of one that saw all, so an evaluation may be split (`merge_state`).
"""

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import numpy as np

from dtrain.errors import InputError
from dtrain.learning.core.configuration import Configurable
from dtrain.types import Array

State = dict[str, Array]


@dataclass(eq=False)
class Metric(Configurable):
    """Base of all metrics.

    Attributes:
        name: under which the result is reported; Keras's name of the class unless given.
        state: the sums so far, by name; plain data.
    """

    _: KW_ONLY
    name: str | None = None

    default_name: ClassVar[str] = "metric"

    def __post_init__(self) -> None:
        self.name = self.name or self.default_name
        self.reset_state()

    def reset_state(self) -> None:
        """Forget all batches."""
        self.state: State = {name: np.zeros(shape) for name, shape in self._sums().items()}

    def merge_state(self, others: "Iterable[Metric | State]") -> None:
        """Add the batches of other metrics of the same class and arguments, or of their states."""
        for other in others:
            for name, total in (other.state if isinstance(other, Metric) else other).items():
                self.state[name] = self.state[name] + total

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch."""
        raise NotImplementedError

    def result(self) -> Any:
        """Return the metric over all batches since the last reset; an array if it has several values."""
        raise NotImplementedError

    def _sums(self) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the sums."""
        raise NotImplementedError


@dataclass(eq=False)
class Sum(Metric):
    """Weighted sum of values."""

    name: str | None = None

    default_name: ClassVar[str] = "sum"

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Add values of any shape, each times its weight."""
        weighted, _ = weighted_sum(self, values, sample_weight)
        self.state["total"] += weighted

    def result(self) -> float:
        """Return the sum."""
        return float(self.state["total"])

    def _sums(self) -> dict[str, tuple[int, ...]]:
        return {"total": ()}


@dataclass(eq=False)
class Mean(Metric):
    """Weighted mean of values; 0.0 of none."""

    name: str | None = None

    default_name: ClassVar[str] = "mean"

    def update_state(self, values: Any, sample_weight: Any = None) -> None:
        """Add values of any shape, each with its weight."""
        total, count = weighted_sum(self, values, sample_weight)
        self.state["total"] += total
        self.state["count"] += count

    def result(self) -> float:
        """Return the mean."""
        return float(divide_no_nan(self.state["total"], self.state["count"]))

    def _sums(self) -> dict[str, tuple[int, ...]]:
        return {"total": (), "count": ()}


class MeanOfExamples(Mean):
    """The weighted mean of something computed for each example from its target and prediction."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:  # type: ignore[override]
        """Add a batch of targets and predictions."""
        super().update_state(self._examples(np.asarray(y_true), np.asarray(y_pred)), sample_weight)

    def _examples(self, y_true: Array, y_pred: Array) -> Array:
        """Return one number an example: shape [batch, ...]."""
        raise NotImplementedError


@dataclass(eq=False)
class MeanOfFunction(MeanOfExamples):
    """The mean of a function of your own, ``(y_true, y_pred) -> one number an example``.

    The function is no data, so the metric is not saved. See `tf.keras.metrics.MeanMetricWrapper`.
    """

    function: Callable[[Array, Array], Any] | None = None

    def __post_init__(self) -> None:
        self.name = self.name or getattr(self.function, "__name__", "function")
        super().__post_init__()

    def copy(self) -> Self:
        """Return another metric of the same function."""
        return type(self)(name=self.name, function=self.function)

    def _examples(self, y_true: Array, y_pred: Array) -> Array:
        assert self.function is not None
        return np.asarray(self.function(y_true, y_pred))


def weighted_sum(metric: Metric, values: Any, sample_weight: Any) -> tuple[float, float]:
    """Return the sums of values times weights and of weights; axes that weights lack are averaged over."""
    values = np.asarray(values, np.float64)
    if sample_weight is None:
        return float(values.sum()), float(values.size)
    weights = np.asarray(sample_weight, np.float64)
    if weights.ndim == values.ndim + 1 and weights.shape[-1] == 1:
        weights = weights[..., 0]
    if weights.ndim and values.shape[: weights.ndim] == weights.shape:
        values = values.mean(axis=tuple(range(weights.ndim, values.ndim)))
    try:
        weights = np.broadcast_to(weights, values.shape)
    except ValueError as error:
        raise InputError(
            f"{metric.name}: expected sample_weight to broadcast to shape {values.shape}, found "
            f"{weights.shape}."
        ) from error
    return float((values * weights).sum()), float(weights.sum())


def divide_no_nan(dividend: Any, divisor: Any) -> Any:
    """Return the quotient, 0.0 where the divisor is 0; a float of scalars."""
    quotient = np.divide(dividend, divisor, out=np.zeros(np.shape(divisor)), where=np.asarray(divisor) != 0)
    return float(quotient) if quotient.ndim == 0 else quotient
