"""Passes over data with fixed weights: evaluate and predict; and the numbers that come of many batches."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dtrain.callbacks import CallbackList
from dtrain.errors import InputError, SpecError
from dtrain.learning import metrics
from dtrain.learning.losses import Loss
from dtrain.learning.metrics import Metric
from dtrain.learning.optimizers import Optimizer
from dtrain.roles.evaluator import Pace
from dtrain.training.batches import Batch, Batches
from dtrain.training.steps import EvaluationStep, Logs

MakeStep = Callable[[Batch], EvaluationStep]
NO_CALLBACKS = CallbackList((), None, {})


@dataclass(frozen=True)
class Validation:
    """What is evaluated beside training.

    Attributes:
        steps: batches of one evaluation; None: all there are.
        frequency: every so many epochs; or the epochs, counted from 1, after which it is done.
        pace: the evaluator's.
        evaluated: told by the evaluator of each evaluation: global step, results, whether it is the last; of the last one twice.
    """

    batches: Batches
    steps: int | None = None
    frequency: int | Collection[int] = 1
    pace: Pace = field(default_factory=Pace)
    evaluated: Callable[[int, dict[str, float], bool], None] = lambda step, results, is_final: None

    def once(self) -> Iterator[Batch]:
        """The batches of one evaluation."""
        return self.batches.once(self.steps)

    def is_due(self, epochs: Iterable[int]) -> bool:
        """Whether it follows one of these epochs, counted from 0."""
        frequency = self.frequency
        return any((epoch + 1) % frequency == 0 if isinstance(frequency, int) else epoch + 1 in frequency for epoch in epochs)


@dataclass(frozen=True)
class Compiled:
    """What `compile` was told.

    Attributes:
        metrics: of every example alike.
        weighted_metrics: to which sample weights apply.
    """

    optimizer: Optimizer
    loss: Loss | None
    metrics: tuple[Metric, ...] = ()
    weighted_metrics: tuple[Metric, ...] = ()


def named(plain: Sequence[str | Metric], weighted: Sequence[str | Metric]) -> tuple[list[Metric], list[Metric]]:
    """Metrics of the model's own, each with a name of its own: a weighted one's begins with ``weighted_`` if it must.

    Raises:
        SpecError: two have the same name.
    """
    own = [each.copy() if isinstance(each, Metric) else metrics.get(each) for each in (*plain, *weighted)]
    taken: set[str] = set()
    for index, metric in enumerate(own):
        if index >= len(plain) and metric.name in taken:
            metric.name = f"weighted_{metric.name}"
        if metric.name in taken or metric.name == "loss":
            raise SpecError(f"compile: expected metrics of different names, found {metric.name!r} twice")
        taken.add(str(metric.name))
    return own[: len(plain)], own[len(plain) :]


class Totals:
    """Means over batches: of what the steps returned, and the metrics. They are its own, in their first state."""

    def __init__(self, compiled: Compiled) -> None:
        self._metrics = [metric.copy() for metric in compiled.metrics]
        self._weighted = [metric.copy() for metric in compiled.weighted_metrics]
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._sums: dict[str, float] = {}
        self.examples = 0
        for metric in (*self._metrics, *self._weighted):
            metric.reset_state()

    def add(self, batch: Batch, step: EvaluationStep, logs: Logs) -> None:
        """A batch is done."""
        self.examples += batch.size
        for name, value in logs.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(value) * batch.size
        if (step.outputs is None or isinstance(step.outputs, list)) and (self._metrics or self._weighted):
            found = "none: set step.outputs" if step.outputs is None else f"{len(step.outputs)}: see `train_step` for your own"
            raise InputError(f"metrics: expected one array of outputs, found {found}")
        for metric in self._metrics:
            metric.update_state(step.y, step.outputs)
        for metric in self._weighted:
            metric.update_state(step.y, step.outputs, sample_weight=step.sample_weight)

    def results(self) -> dict[str, float]:
        """The numbers so far, the loss first."""
        means = {name: total / max(1, self.examples) for name, total in self._sums.items()}
        return means | {str(metric.name): _number(metric.result()) for metric in (*self._metrics, *self._weighted)}


def evaluate(
    batches: Iterable[Batch],
    compiled: Compiled,
    make_step: MakeStep,
    test_step: Callable[[Any], Logs],
    callbacks: CallbackList = NO_CALLBACKS,
) -> dict[str, float]:
    """Loss and metrics over all batches: means over examples.

    Raises:
        InputError: there is no batch.
    """
    totals = Totals(compiled)
    callbacks.call("on_test_begin")
    for number, batch in enumerate(batches):
        callbacks.call_batch("on_test_batch_begin", number, dict)
        step = make_step(batch)
        totals.add(batch, step, test_step(step))
        callbacks.call_batch("on_test_batch_end", number, totals.results)
    if not totals.examples:
        raise InputError("evaluate: expected at least one example, found an empty dataset")
    callbacks.call("on_test_end", results := totals.results())
    return results


def predict(
    batches: Iterable[Batch], make_step: MakeStep, predict_step: Callable[[Any], Any], callbacks: CallbackList = NO_CALLBACKS
) -> Any:
    """The outputs of all batches, one after the other in one array (a list of arrays for several outputs).

    Raises:
        InputError: there is no batch.
    """
    outputs: list[Any] = []
    callbacks.call("on_predict_begin")
    for number, batch in enumerate(batches):
        callbacks.call_batch("on_predict_batch_begin", number, dict)
        outputs.append(predict_step(make_step(batch)))
        callbacks.call_batch("on_predict_batch_end", number, lambda: {"outputs": outputs[-1]})
    if not outputs:
        raise InputError("predict: expected at least one batch, found an empty dataset")
    callbacks.call("on_predict_end")
    if isinstance(outputs[0], list):
        return [np.concatenate(each) for each in zip(*outputs, strict=True)]
    return np.concatenate(outputs)


def _number(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else value
