"""Passes over data with fixed weights, for evaluate and predict, and the sums of their numbers."""

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from math import nan
from typing import Any

import msgspec
import numpy as np

from dtrain.callbacks import CallbackList
from dtrain.checkpoints import Pace
from dtrain.data.sources import ReadOnce
from dtrain.errors import InputError
from dtrain.learning.graphs.heads import by_output, masked
from dtrain.messages import Sums
from dtrain.protocol.tally import merged
from dtrain.training.batches import Batches
from dtrain.training.compiled import Compiled
from dtrain.training.parts import Batch
from dtrain.training.steps import EvaluationStep, Logs

MakeStep = Callable[[Batch], EvaluationStep]
NO_CALLBACKS = CallbackList((), None, {})


class Validation(msgspec.Struct, frozen=True, dict=True):
    """The data and times of evaluations beside training.

    Attributes:
        steps: batches of one evaluation; None: all there are.
        frequency: every so many epochs; or the epochs, counted from 1, after which it is done.
        evaluated: called by the evaluator after each evaluation with the global step, the results, and
            whether it is the last; for the last one twice.
    """

    batches: Batches
    steps: int | None = None
    frequency: int | Collection[int] = 1
    pace: Pace = msgspec.field(default_factory=Pace)
    evaluated: Callable[[int, dict[str, float], bool], None] = lambda step, results, is_final: None

    def __post_init__(self) -> None:
        if isinstance(self.frequency, int) and self.frequency < 1:
            raise InputError(
                "validation_freq: expected a number of epochs of at least 1, or epochs, found "
                f"{self.frequency}"
            )

    def once(self) -> Iterator[Batch]:
        """Return the batches of one evaluation; a generator object goes on where the last one has left it."""
        if isinstance(self.batches.dataset.node, ReadOnce):
            return islice(self._only_pass, self.steps)
        return self.batches.once(self.steps)

    @cached_property
    def _only_pass(self) -> Iterator[Batch]:
        return self.batches.once()

    def is_due(self, epochs: Iterable[int]) -> bool:
        """Return whether an evaluation follows one of these epochs, counted from 0."""
        frequency = self.frequency
        return any(
            (epoch + 1) % frequency == 0 if isinstance(frequency, int) else epoch + 1 in frequency
            for epoch in epochs
        )


class Totals:
    """Sums over examples of the steps' numbers, and states of the metrics, which this object owns."""

    def __init__(self, compiled: Compiled) -> None:
        self._names = compiled.names
        self._metrics = compiled.metrics()
        self.reset()

    def reset(self) -> None:
        self._sums: dict[str, float] = {}
        self.examples = 0
        for each in self._metrics:
            each.metric.reset_state()

    def add(self, batch: Batch, step: EvaluationStep, logs: Logs) -> None:
        self.examples += batch.size
        for name, value in logs.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(value) * batch.size
        if not self._metrics:
            return
        outputs = step.outputs if isinstance(step.outputs, list) else [step.outputs]
        if len(outputs) != len(self._names) or step.outputs is None:
            own = f"{len(outputs)}: see `train_step` for your own"
            found = "none: set step.outputs" if step.outputs is None else own
            raise InputError(f"metrics: expected {len(self._names)} outputs, found {found}")
        targets = by_output(step.y, self._names, "targets")
        weights = by_output(step.sample_weight, self._names, "sample weights")
        masks = step.masks or [None] * len(outputs)
        for each in self._metrics:
            weight = weights[each.output] if each.weighted else None
            mask = masks[each.output]
            if mask is not None:
                weight = masked(weight, mask, is_mean=False)
            if each.weighted or mask is not None:
                each.metric.update_state(targets[each.output], outputs[each.output], sample_weight=weight)
            else:
                each.metric.update_state(targets[each.output], outputs[each.output])

    def of_one(self, batch: Batch, step: EvaluationStep, logs: Logs) -> Sums:
        size = batch.size
        numbers = [float(size), *[float(value) * size for value in logs.values()]]
        if self._metrics:
            self.reset()
            self.add(batch, step, logs)
        for each in self._metrics:
            for value in each.metric.state.values():
                numbers += [float(value)] if np.ndim(value) == 0 else np.ravel(value).tolist()
        return Sums(names=tuple(logs), totals=struct.pack(f"<{len(numbers)}d", *numbers))

    def results(self) -> dict[str, float]:
        """Return the numbers so far, the loss first."""
        means = {name: total / max(1, self.examples) for name, total in self._sums.items()}
        return means | {each.label: _number(each.metric.result()) for each in self._metrics}

    def results_of(self, sums: Sequence[Sums]) -> dict[str, float]:
        """Return the numbers that follow from sums of any batches; the loss of no batch is NaN."""
        if not sums:
            return {"loss": nan}
        sizes = [np.size(value) for each in self._metrics for value in each.metric.state.values()]
        means, states = merged(sums, sum(sizes))
        position = 0
        for each in self._metrics:
            state = each.metric.state
            for name, value in state.items():
                size = np.size(value)
                state[name] = states[position : position + size].reshape(np.shape(value))
                position += size
        return means | {each.label: _number(each.metric.result()) for each in self._metrics}


def evaluate(
    batches: Iterable[Batch],
    compiled: Compiled,
    make_step: MakeStep,
    test_step: Callable[[Any], Logs],
    callbacks: CallbackList = NO_CALLBACKS,
) -> dict[str, float]:
    """Return the means over the examples of all batches of loss and metrics; no batch is an `InputError`."""
    totals = Totals(compiled)
    callbacks.call("on_test_begin", {})
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
    batches: Iterable[Batch],
    make_step: MakeStep,
    predict_step: Callable[[Any], Any],
    callbacks: CallbackList = NO_CALLBACKS,
) -> Any:
    """Return the outputs of all batches in one array, or a list of arrays; no batch is an `InputError`."""
    outputs: list[Any] = []
    callbacks.call("on_predict_begin", {})
    for number, batch in enumerate(batches):
        callbacks.call_batch("on_predict_batch_begin", number, dict)
        outputs.append(predict_step(make_step(batch)))
        callbacks.call_batch("on_predict_batch_end", number, lambda: {"outputs": outputs[-1]})
    if not outputs:
        raise InputError("predict: expected at least one batch, found an empty dataset")
    callbacks.call("on_predict_end", {})
    if isinstance(outputs[0], list):
        return [np.concatenate(each) for each in zip(*outputs, strict=True)]
    return np.concatenate(outputs)


def _number(value: Any) -> Any:
    return float(value) if np.ndim(value) == 0 else value
