"""The base of all metrics: sums that grow with every batch, and a result made of them.

A metric's `state` is a few float64 arrays by name, all of which are sums. States of metrics that saw
different batches add up to the state of one that saw all, so an evaluation may be split (`merge_state`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import wraps
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import numpy as np

from dtrain.errors import InputError, SpecError
from dtrain.learning.core.arrays import without_last_axis
from dtrain.learning.core.configuration import Configurable, OfBaseClass, snake_case
from dtrain.learning.core.results import result_of
from dtrain.learning.functions.tensors import Source, plain
from dtrain.types import Array

State = dict[str, Array]


class CallingReplica(NamedTuple):
    """The replica of a strategy in which a line of a program runs; `number` is among all replicas.

    `total` returns the sums of states over all processes of the strategy; None where there is one.
    """

    number: int
    total: Callable[[str, State], State] | None


class SharedState(Protocol):
    """The sums of a metric where several tasks add to them.

    Attributes:
        under_way: the sums that a call of this thread makes or reads; None: there is no such call.
    """

    under_way: State | None

    def read(self) -> State: ...

    def add(self, state: State) -> None: ...

    def assign(self, state: State) -> None: ...


@contextmanager
def _apart(shared: SharedState, state: State) -> Iterator[None]:
    """Let a metric have these sums in the calling line."""
    shared.under_way = state
    try:
        yield
    finally:
        shared.under_way = None


_NEEDED = "{}: a metric needs update_state and result, expected a method {} of it, found none"
_find_replica: list[Callable[[], CallingReplica | None]] = []


def ask_for_replica(find: Callable[[], CallingReplica | None]) -> None:
    """Let metrics ask this function in which replica a line runs; None: in none."""
    _find_replica[:] = [find]


def _calling_replica() -> CallingReplica | None:
    return _find_replica[0]() if _find_replica else None


def _adding(update: Callable[..., None]) -> Callable[..., None]:
    """Return a method that adds up apart first, where a metric's sums are shared."""

    @wraps(update)
    def add(self: "Metric", *args: Any, **kwargs: Any) -> None:
        if self.shared is None or self.shared.under_way is not None:
            update(self, *args, **kwargs)
            return
        with _apart(self.shared, self._zeros()):
            update(self, *args, **kwargs)
            added = self.state
        self.shared.add(added)

    return add


def _over_all_processes(result: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `result` that first adds up the states of all processes whose replicas have some."""

    @wraps(result)
    def of_all(self: "Metric") -> Any:
        if self.shared is not None and self.shared.under_way is None:
            with _apart(self.shared, self.shared.read()):
                return result_of(plain(result(self)))
        total = self._total
        if total is None or _calling_replica() is not None:
            return result_of(plain(result(self)))
        own = self.state
        self._total = None
        try:
            self._state = total(str(self.name), own)
            return result_of(plain(result(self)))
        finally:
            self._state = own
            self._total = total

    return of_all


def _after_base(reset: Callable[..., None]) -> Callable[..., None]:
    """Return a `reset_state` that first forgets what all replicas have seen."""

    @wraps(reset)
    def whole(self: "Metric") -> None:
        Metric.reset_state(self)
        reset(self)

    return whole


class MetricWeight(Source):
    """A sum of a metric of a program's own (`Metric.add_weight`); it stands for its value."""

    trainable = False

    def __init__(self, metric: "Metric", name: str) -> None:
        self._metric = metric
        self.name = name

    def read(self) -> Array:
        """Return the value as the calling line sees it."""
        return np.asarray(self._metric.state[self.name])

    def assign(self, value: Any) -> None:
        """Take a value."""
        self._metric.state[self.name] = np.full(self.read().shape, value, np.float64)


@dataclass(eq=False)
class Metric(Configurable):
    """Base of all metrics; one of your own has `update_state` and `result`, and sums by `add_weight`.

    Attributes:
        name: under which the result is reported; Keras's name of the class unless given.
        shared: has the sums, where several tasks add to them; None: this task has its own.
    """

    _: KW_ONLY
    name: str | None = None

    default_name: ClassVar[str] = "metric"
    _added: ClassVar[Any] = OfBaseClass()

    def __post_init__(self) -> None:
        self.name = self.name or self.default_name
        self.shared: SharedState | None = None
        vars(self)["_added"] = dict[str, tuple[int, ...]]()
        Metric.reset_state(self)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Name the class as Keras does, and have its methods read and update the sums of all processes."""
        super().__init_subclass__(**kwargs)
        if "default_name" not in vars(cls):
            cls.default_name = snake_case(cls.__name__)
        if "result" in vars(cls):
            cls.result = _over_all_processes(vars(cls)["result"])  # type: ignore[method-assign]
        if (reset := vars(cls).get("reset_state")) is not None:
            cls.reset_state = _after_base(reset)  # type: ignore[method-assign]
        if "update_state" in vars(cls):
            cls.update_state = _adding(vars(cls)["update_state"])  # type: ignore[method-assign]

    def reset_state(self) -> None:
        """Forget all batches."""
        if self.shared is not None:
            self.shared.assign(self._zeros())
            return
        self._of_replicas: dict[int, State] = {}
        self._state = self._zeros()
        self._total: Callable[[str, State], State] | None = None

    def reset_states(self) -> None:
        """Forget all batches; the older name of `reset_state`."""
        self.reset_state()

    @property
    def state(self) -> State:
        """The sums so far, by name; plain data.

        In a function that a strategy runs in its replicas they are those of the calling replica; they are
        added to the others, in the order of the replicas, when they are next read outside. `result` then adds
        up those of all processes, so every process is to call it.
        """
        if self.shared is not None:
            return self.shared.read() if self.shared.under_way is None else self.shared.under_way
        replica = _calling_replica()
        if replica is not None:
            self._total = replica.total
            return self._of_replicas.setdefault(replica.number, self._zeros())
        while self._of_replicas:
            for name, total in self._of_replicas.pop(min(self._of_replicas)).items():
                self._state[name] = self._state[name] + total
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        """Set the sums."""
        if self.shared is not None:
            if self.shared.under_way is None:
                self.shared.assign(state)
            else:
                self.shared.under_way = state
            return
        replica = _calling_replica()
        if replica is not None:
            self._of_replicas[replica.number] = state
        else:
            self._of_replicas = {}
            self._state = state

    @_adding
    def merge_state(self, others: "Iterable[Metric | State]") -> None:
        """Add the batches of other metrics of the same class and arguments, or of their states."""
        for other in others:
            for name, total in (other.state if isinstance(other, Metric) else other).items():
                self.state[name] = self.state[name] + total

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch."""
        raise NotImplementedError(
            _NEEDED.format(type(self).__name__, "update_state(y_true, y_pred, sample_weight)")
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Add a batch as `update_state`, and return the result over all batches since the last reset."""
        self.update_state(*args, **kwargs)
        return self.result()

    def result(self) -> Any:
        """Return the metric over all batches since the last reset; an array if it has several values."""
        raise NotImplementedError(_NEEDED.format(type(self).__name__, "result()"))

    def add_weight(
        self, name: str = "sum", shape: Sequence[int] = (), initializer: Any = "zeros", dtype: Any = None
    ) -> "MetricWeight":
        """Return a new sum of a metric of one's own; see `tf.keras.metrics.Metric.add_weight`.

        Sums of batches that several replicas or tasks have seen are added up, so each begins at 0, and
        `update_state` adds to it with `assign_add`.

        Args:
            name: by which the sum is reported to other tasks.
            shape: of the array.
            initializer: ``zeros``; other first values would be counted once a task.
            dtype: has no effect: sums have float64.

        Raises:
            SpecError: it would not begin at 0.
        """
        if initializer is not None and "zeros" not in str(getattr(initializer, "name", initializer)).lower():
            raise SpecError(
                f"{self.name}: {name}: expected initializer='zeros', found {initializer!r}: the sums of all "
                "tasks are added up"
            )
        self._added[name] = tuple(shape)
        self._state[name] = np.zeros(shape)
        return MetricWeight(self, name)

    def _sums(self) -> dict[str, tuple[int, ...]]:
        added: dict[str, tuple[int, ...]] = self._added
        return added

    def _zeros(self) -> State:
        return {name: np.zeros(shape) for name, shape in self._sums().items()}


@dataclass(eq=False)
class Sum(Metric):
    """Weighted sum of values."""

    name: str | None = None

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
        raise NotImplementedError


@dataclass(eq=False)
class MeanOfFunction(MeanOfExamples):
    """The mean of a function of your own, ``(y_true, y_pred) -> one number an example``.

    The function is no data, so the metric is not saved.
    """

    function: Callable[[Array, Array], Any] | None = None

    def __post_init__(self) -> None:
        self.name = self.name or getattr(self.function, "__name__", "function")
        super().__post_init__()

    def copy(self) -> Self:
        return type(self)(name=self.name, function=self.function)

    def _examples(self, y_true: Array, y_pred: Array) -> Array:
        assert self.function is not None
        return np.asarray(self.function(y_true, y_pred))


def weighted_sum(metric: Metric, values: Any, sample_weight: Any) -> tuple[float, float]:
    """Return the sums of values times weights and of weights; axes that weights lack are averaged over."""
    values = np.asarray(values, np.float64)
    if sample_weight is None:
        return float(values.sum()), float(values.size)
    weights = without_last_axis(np.asarray(sample_weight, np.float64), values.ndim)
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
