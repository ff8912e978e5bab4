"""One process that does what N synchronous replicas do together: the dumb twin of a deterministic cluster."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

import dtrain as dt

SubBatch = tuple[Any, ...]
"""x, y and perhaps a weight for each example."""


def train_as_one(model: dt.Model, steps: Iterable[Sequence[SubBatch]]) -> Iterator[list[np.ndarray]]:
    """Every variable, in the order of creation, after each step.

    A step is given as one sub-batch a replica. Their gradients, and their new values of variables that are
    not trained, are summed in the order of the replicas and divided once. An empty sub-batch adds nothing to
    either; it counts among those by which the gradients are divided, and not among those by which the values
    are.
    """
    network, optimizer = model.network, model.optimizer
    values = {name: np.array(value) for name, value in model.arrays.items()}
    trained = [spec for spec in network.variables if spec.trainable]
    slots = {spec.name: optimizer.initial_slots(values[spec.name]) for spec in trained}
    for step, sub_batches in enumerate(steps):
        total: dict[str, np.ndarray] = {}
        states = []
        for x, y, *weights in (each for each in sub_batches if len(each[0])):
            gradients = {spec.name: np.empty(spec.shape, spec.dtype) for spec in trained}
            weight, rng = next(iter(weights), None), np.random.default_rng(0)
            result = network.loss_and_gradients(
                values, x, y, model.compiled.losses, gradients, sample_weight=weight, rng=rng
            )
            states.append(result.state_updates)
            for name, array in {**gradients, **result.state_updates}.items():
                total[name] = total[name] + array if name in total else array
        divisors = {name: len(states if name in states[0] else sub_batches) for name in total}
        means = {name: array / np.float32(divisors[name]) for name, array in total.items()}
        for name, first in states[0].items():  # a mean of equal floats need not be one of them
            means[name] = np.where(
                np.any([state[name] != first for state in states], axis=0), means[name], first
            )
        optimizer.apply(values, {spec.name: means.pop(spec.name) for spec in trained}, slots, step)
        values.update(means)
        yield [values[spec.name].copy() for spec in network.variables]
