"""What every version must be: computed from the set of contributions alone, by the obvious lines."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from simulation.disk import Saved
from simulation.model import Model, State

from dtrain.learning.optimizers import Optimizer
from dtrain.protocol.part_dealer import Dealt
from dtrain.roles.parameter_server.table import VALUES

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Commit:
    """What made a version in sync.

    Attributes:
        contributors: as ps:0 named them.
        numbers: of their gradients.
        empty: how many parts of their batch have no examples.
    """

    contributors: tuple[tuple[int, int, int], ...]
    numbers: tuple[int, ...]
    empty: int


class Term:
    """One term: it begins with a checkpoint, and only its own pushes change it.

    Attributes:
        states: by server and version.
        batches: async: of each server, which batches it contains; those that were settled before the checkpoint count as well.
        applied: async: of each server the staleness of every gradient, by its number, in the order in which they were applied.
        offered: sync: the gradients that ps:0 holds for the next version.
        judged: the parts that need not be computed any more.
        counted: at ps:0, by the version that they were counted for, the numbers of the gradients; also those that the
            checkpoint contains.
        refused: the parts of which a gradient was refused, also before the checkpoint.
        too_many: async: the gradients for which there was no step left at ps:0.
        fewest_live: how few ranks were alive at once since the newest version was made.
    """

    def __init__(self, model: Model, saved: Saved, before: "Term | None" = None) -> None:
        self._model = model
        self.newest = [saved.version_of(server) for server in range(len(saved.states))]
        self.states = [{version: state.copy()} for version, state in zip(self.newest, saved.states, strict=True)]
        self.images = [{version: state.image} for version, state in zip(self.newest, saved.states, strict=True)]
        done = saved.dealt.next, saved.dealt.due
        tables = [each.batches for each in saved.contents] or [done] * len(saved.states)
        self.batches = [{batch for batch in range(following) if batch not in missing} for following, missing in tables]
        self.commits: dict[int, Commit] = {}
        self.applied: list[dict[int, int]] = [{} for _ in self.states]
        self.first_version = saved.version
        self.first_step = saved.lineage.first_step
        self.offered: set[int] = set()
        self.judged = set(parts_done(saved.dealt))
        earlier = {} if before is None else before.counted
        self.counted = {version: numbers for version, numbers in earlier.items() if version < saved.version}
        self.refused: set[int] = set() if before is None else set(before.refused)
        self.too_many: set[int] = set()
        self.fewest_live = 1 << 30  # nobody has looked yet
        self._optimizers = {min(self.newest): model.optimizer}

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


def parts_done(dealt: Dealt) -> Iterator[int]:
    """The parts that a dealer will not give to anybody any more."""
    return (part for part in range(dealt.next) if part not in dealt.due)


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


def mean(gradients: Sequence[Gradient], weights: Sequence[int], empty: int, state: Mapping[int, Array]) -> Gradient:
    """Return the weighted mean, summed up in the given order; a row that one does not list counts as zero there.

    Args:
        gradients: of parts, in their order.
        weights: as many; if all are equal they are none.
        empty: how many parts without examples follow, of weight one: they count as zero, and for state as it is.
        state: of dense blocks that are no gradients, what is held at present.
    """
    if len(gradients) == 1 and not empty:
        return gradients[0]
    factors = weights if len(set(weights)) > 1 else [1] * len(weights)
    total = sum(factors) + empty
    dense = []
    for index, blocks in enumerate(zip(*(gradient.dense for gradient in gradients), strict=True)):
        absent = [state[index]] * empty if index in state else []
        terms = [block * factor for block, factor in zip([*blocks, *absent], [*factors, *[1] * len(absent)], strict=True)]
        same = index in state and all(np.array_equal(block, blocks[0]) for block in [*blocks, *absent])
        dense.append(blocks[0] if same else sum(terms[1:], start=terms[0]) / total)
    rows: dict[int, Array] = {}
    for gradient, factor in zip(gradients, factors, strict=True):
        for row, values in gradient.rows.items():
            weighted = values * np.float32(factor)
            rows[row] = rows[row] + weighted if row in rows else weighted
    return Gradient(dense, {row: values / np.float32(total) for row, values in rows.items()})
