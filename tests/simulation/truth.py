"""What every version must be: computed from the set of contributions alone, by the obvious lines."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from dtrain.protocol.batch_dealer import Dealt
from simulation.disk import Saved
from simulation.model import Model, State

from dtrain.learning.optimizers import Optimizer
from dtrain.roles.parameter_server.table import VALUES

Array = np.ndarray[Any, Any]


class Term:
    """One term: it begins with a checkpoint, and only its own pushes change it.

    Attributes:
        states: by server and version.
        applied: async: of each server the staleness of every gradient, by its number, in the order in which they were applied.
        offered: sync: the gradients that ps:0 holds for the next version.
        judged: the batches that need not be computed any more.
    """

    def __init__(self, model: Model, saved: Saved) -> None:
        self._model = model
        self.states = [{saved.version: state.copy()} for state in saved.states]
        self.images = [{saved.version: state.image} for state in saved.states]
        self.newest = [saved.version] * len(self.states)
        self.commits: dict[int, tuple[tuple[int, int, int], ...]] = {}
        self.applied: list[dict[int, int]] = [{} for _ in self.states]
        self.first_version = saved.version
        self.offered: set[int] = set()
        self.judged = set(batches_done(saved.dealt))
        self._optimizers = {saved.version: model.optimizer}

    def ordered(self, version: int, optimizer: Optimizer) -> None:
        """From this version on every server must use these numbers, whatever was ordered before."""
        earlier = {since: rule for since, rule in self._optimizers.items() if since < version}
        self._optimizers = {**earlier, version: optimizer}

    def _optimizer_at(self, version: int) -> Optimizer:
        return self._optimizers[max(since for since in self._optimizers if since <= version)]

    def next_state(self, server: int, gradient: "Gradient", scale: float = 1.0) -> State:
        """A server's newest version after one update."""
        version = self.newest[server]
        state, rule, layout = self.states[server][version].copy(), self._optimizer_at(version), self._model.plan.layout(server)
        position = 0
        for group, value, block in zip(layout.groups, state.values, gradient.dense, strict=True):
            if group.trainable:
                slots = {name: arrays[position] for name, arrays in state.slots.items()}
                rule.update(value, block, slots, version, rate_scale=scale)
                position += 1
            else:
                value[...] = block
        for shard, arrays in zip(layout.tables, state.tables, strict=True):
            if shard.trainable:
                mine = {row - shard.row_start: g for row, g in gradient.rows.items() if shard.row_start <= row < shard.row_stop}
                for row in mine if rule.touches_listed_rows_only else range(len(arrays[VALUES])):
                    slots = {name: array[row] for name, array in arrays.items() if name != VALUES}
                    rule.update(arrays[VALUES][row], mine.get(row, np.zeros(2, np.float32)), slots, version, rate_scale=scale)
        return state

    def made(self, server: int, state: State) -> None:
        """A server has this newest version."""
        self.newest[server] += 1
        self.states[server][self.newest[server]] = state
        self.images[server][self.newest[server]] = state.image


def batches_done(dealt: Dealt) -> Iterator[int]:
    """The batches that a dealer will not give to anybody any more."""
    lanes, due = dealt
    for lane, following in enumerate(lanes):
        yield from (batch for batch in range(lane, following, len(lanes)) if batch not in due)


class Gradient:
    """A server's dense blocks of a gradient, and all rows of it, by number."""

    def __init__(self, dense: Sequence[Array], rows: Mapping[int, Array]) -> None:
        self.dense = list(dense)
        self.rows = dict(rows)

    def compensated(self, strength: float, now: "Gradient", then: "Gradient") -> "Gradient":
        """Corrected for the way from the weights that it was computed with to those of now; the last dense block is no gradient."""

        def corrected(gradient: Array, now: Array, then: Array) -> Array:
            step: Array = ((now - then) * gradient * gradient.dtype.type(strength) + gradient.dtype.type(1)) * gradient
            return step

        dense = [corrected(*blocks) for blocks in zip(self.dense, now.dense, then.dense, strict=True)]
        rows = {row: corrected(gradient, now.rows[row], then.rows[row]) for row, gradient in self.rows.items()}
        return Gradient(dense, rows)


def mean(gradients: Sequence[Gradient]) -> Gradient:
    """The sum in the given order, divided by how many they are; a row that one does not list counts as zero there."""
    count = len(gradients)
    dense = [sum(blocks[1:], start=blocks[0]) / count for blocks in zip(*(gradient.dense for gradient in gradients), strict=True)]
    rows: dict[int, Array] = {}
    for gradient in gradients:
        for row, values in gradient.rows.items():
            rows[row] = rows[row] + values if row in rows else values
    return Gradient(dense, {row: values / np.float32(count) for row, values in rows.items()})
