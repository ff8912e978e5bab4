"""Passes over data with fixed weights, for evaluate and predict."""

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from dtrain.callbacks import CallbackList
from dtrain.checkpoints import Pace
from dtrain.data.sources import ReadOnce
from dtrain.errors import InputError
from dtrain.training.batches import Batches
from dtrain.training.compiled import Compiled
from dtrain.training.parts import Batch
from dtrain.training.steps import EvaluationStep, Logs, Totals

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
