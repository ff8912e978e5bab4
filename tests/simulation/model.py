"""What a simulated run trains: dense variables, and in some runs tables of which every step uses some rows.
And how it is kept.

Among the variables are a few that count: `COUNTERS` variables, so that every server has one, with an element
for every example of the stream. The gradient of a part is one unit in the elements of its examples, and zero
elsewhere. So the values say which examples they contain, on every server by itself, whatever rule has brought
them there. Element 0 is no example: a callback may assign it.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import numpy as np
from simulation.data import Cut

from dtrain.learning import optimizers
from dtrain.learning.core.drawn_table import DrawnTable
from dtrain.learning.core.initializers import Constant, RandomUniform
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.optimizers.schedules import ExponentialDecay
from dtrain.parameters import placement
from dtrain.parameters.replica_memory import RowRoutes
from dtrain.parameters.table import VALUES
from dtrain.variables import VariableSpec

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]

RATES = (1.0, 0.9, 0.8)
"""So close together that two small updates are more than a large one."""
OPTIMIZERS: dict[str, optimizers.Optimizer] = {
    "plain": optimizers.SGD(1.0),
    "momentum": optimizers.SGD(1.0, momentum=0.995),
    "adagrad": optimizers.Adagrad(1.0),
    "adam": optimizers.Adam(1.0),
    "schedule": optimizers.SGD(ExponentialDecay(1.0, decay_steps=40, decay_rate=0.85)),
    "ema": optimizers.SGD(1.0, use_ema=True, ema_momentum=0.1),
}
COUNTERS = 3
DENSE = [VariableSpec(f"v{i}", (2,), "float64") for i in range(4)] + [
    VariableSpec("mean", (1,), "float64", trainable=False)
]
MARK = 0
"""The element of a counter that is no example."""


def arrays_of(
    values: Iterable[Array], slots: Mapping[str, Iterable[Array]], tables: Iterable[Mapping[str, Array]]
) -> Iterator[Array]:
    """Everything that a server holds, in one order."""
    yield from values
    for name in sorted(slots):
        yield from slots[name]
    for table in tables:
        yield from (table[name] for name in sorted(table))


def image(arrays: Iterable[Array]) -> bytes:
    return b"".join(array.tobytes() for array in arrays)


@dataclass
class State:
    """What one server holds of one version: flat values and slots of the groups, and the arrays of every
    table.
    """

    values: list[Array]
    slots: dict[str, list[Array]]
    tables: list[dict[str, Array]]

    @property
    def image(self) -> bytes:
        return image(arrays_of(self.values, self.slots, self.tables))

    def copy(self) -> "State":
        return State(
            [array.copy() for array in self.values],
            {name: [array.copy() for array in arrays] for name, arrays in self.slots.items()},
            [{name: array.copy() for name, array in table.items()} for table in self.tables],
        )

    @property
    def blocks(self) -> list[Array]:
        """As the leader sends them: values, then slots."""
        return [block.copy() for block in arrays_of(self.values, self.slots, ())]


class Model:
    """The variables of a run on its servers, and the gradients of parts.

    Attributes:
        rows: of the table that is trained; 0: there are no tables.
        examples: how many a counter has elements for.
    """

    def __init__(self, servers: int, rows: int, shards: int, optimizer: str, examples: int) -> None:
        counters = [VariableSpec(f"count{i}", (1, 1 + examples), "float64") for i in range(COUNTERS)]
        tables = [
            VariableSpec("fixed", (3,), trainable=False, sparse=True),
            VariableSpec("words", (rows, 2), sparse=True),
        ]
        variables = [*DENSE[:2], *(tables if rows else ()), *DENSE[2:], *counters]
        self.plan = placement.plan(
            variables, servers, partitioner={"fixed_shards": shards} if shards > 1 else None
        )
        self._counters = [
            [
                (index, offset)
                for index, group in enumerate(layout.groups)
                for shard, offset in zip(group.shards, group.offsets, strict=True)
                if shard.name.startswith("count")
            ]
            for layout in self.plan.layouts
        ]
        self.routes = RowRoutes(self.plan)
        self._ramps = [
            [np.arange(group.size, dtype=np.float64) * 1e-5 for group in layout.groups]
            for layout in self.plan.layouts
        ]
        self.rows = rows
        self.examples = examples
        self._chosen: dict[int, dict[str, Array]] = {}
        self.optimizer = OPTIMIZERS[optimizer]
        self.sparse = {spec.name: spec for spec in variables if spec.sparse}
        slots = self.optimizer.initial_slots(np.zeros(1, np.float32))
        self.slots = tuple(slots)
        self.drawn: dict[str, dict[str, DrawnTable]] = {}
        words = DrawnTable((rows, 2), RandomUniform(-1.0, 1.0), (7,))
        for spec in self.sparse.values():
            self.drawn[spec.name] = {VALUES: DrawnTable(spec.shape, RandomUniform(-1.0, 1.0), (7,))}
            for name in self.slots if spec.trainable else ():
                constant = DrawnTable(spec.shape, Constant(float(slots[name][0])), ())
                self.drawn[spec.name][name] = words if name == "average" else constant

    def first(self, server: int) -> State:
        """A server's part of version 0."""
        layout = self.plan.layout(server)
        values = [np.zeros(group.size) for group in layout.groups]
        made = [
            self.optimizer.initial_slots(v)
            for group, v in zip(layout.groups, values, strict=True)
            if group.trainable
        ]
        tables = []
        for shard in layout.tables:
            drawn = self.drawn[self.plan.variables[shard.variable].name]
            tables.append({name: table[shard.row_start : shard.row_stop] for name, table in drawn.items()})
        return State(values, {name: [slots[name] for slots in made] for name in self.slots}, tables)

    def received(self, server: int, read: Mapping[tuple[int, str], Sequence[Array]]) -> State:
        """What a server has sent of itself, by part and array, in pieces."""
        layout, parts = self.plan.layout(server), defaultdict[int, dict[str, Array]](dict)
        for (part, name), pieces in read.items():
            parts[part][name] = np.concatenate(pieces)
        groups = [parts[part] for part in range(len(layout.groups))]
        trained = [arrays for arrays, group in zip(groups, layout.groups, strict=True) if group.trainable]
        slots = {name: [arrays[name] for arrays in trained] for name in self.slots}
        tables = [
            {name: rows.reshape(shard.shape) for name, rows in parts[part].items()}
            for part, shard in enumerate(layout.tables, len(groups))
        ]
        return State([arrays[VALUES] for arrays in groups], slots, tables)

    def whole_tables(self, states: Sequence[State]) -> dict[str, dict[str, Array]]:
        """The tables of all servers together, by variable and array."""
        whole: dict[str, dict[str, Array]] = {}
        for server, state in enumerate(states):
            for shard, arrays in zip(self.plan.layout(server).tables, state.tables, strict=True):
                variable = self.plan.variables[shard.variable]
                for name, array in arrays.items():
                    target = whole.setdefault(variable.name, {}).setdefault(
                        name, np.empty(variable.shape, np.float32)
                    )
                    target[shard.row_start : shard.row_stop] = array
        return whole

    def whole(self, states: Sequence[State]) -> dict[str, dict[str, Array]]:
        """All arrays of all servers together, by array ("" for the values) and variable."""
        result: dict[str, dict[str, Array]] = defaultdict(dict)
        for server, state in enumerate(states):
            layout = self.plan.layout(server)
            trained = [group for group in layout.groups if group.trainable]
            kinds = [
                (VALUES, layout.groups, state.values),
                *((name, trained, state.slots[name]) for name in self.slots),
            ]
            for name, groups, flats in kinds:
                for group, flat in zip(groups, flats, strict=True):
                    for shard, offset in zip(group.shards, group.offsets, strict=True):
                        spec = self.plan.variables[shard.variable]
                        target = result[name].setdefault(spec.name, np.empty(spec.shape))
                        target[shard.row_start : shard.row_stop] = flat[offset : offset + shard.size].reshape(
                            shard.shape
                        )
        for variable, arrays in self.whole_tables(states).items():
            for name, array in arrays.items():
                result[name][variable] = array
        return result

    def laid_out(self, whole: Mapping[str, Mapping[str, Array]]) -> list[State]:
        """The same arrays as `whole` returns, on this model's servers."""
        states = []
        for server in range(self.plan.servers):
            state, layout = self.first(server), self.plan.layout(server)
            trained = [group for group in layout.groups if group.trainable]
            kinds = [
                (VALUES, layout.groups, state.values),
                *((name, trained, state.slots[name]) for name in self.slots),
            ]
            for name, groups, flats in kinds:
                for group, flat in zip(groups, flats, strict=True):
                    for shard, offset in zip(group.shards, group.offsets, strict=True):
                        rows = whole[name][self.plan.variables[shard.variable].name][
                            shard.row_start : shard.row_stop
                        ]
                        flat[offset : offset + shard.size] = rows.reshape(-1)
            for shard, arrays in zip(layout.tables, state.tables, strict=True):
                for name in arrays:
                    arrays[name] = whole[name][self.plan.variables[shard.variable].name][
                        shard.row_start : shard.row_stop
                    ].copy()
            states.append(state)
        return states

    def counters(self, server: int, values: Sequence[Array]) -> list[Array]:
        """The counters of a server, in flat arrays of its groups or of its trainable ones."""
        return [flat[start : start + 1 + self.examples] for flat, start in self._places(server, values)]

    def _places(self, server: int, values: Sequence[Array]) -> Iterator[tuple[Array, int]]:
        for index, offset in self._counters[server]:
            if index < len(values):
                yield values[index], offset

    def chosen_rows(self, part: int) -> dict[str, Array]:
        """Which rows of every table the step of a part uses; perhaps none."""
        if part not in self._chosen:
            random = Random(part)
            numbers = {
                name: sorted(random.sample(range(spec.shape[0]), random.randint(0, 3)))
                for name, spec in self.sparse.items()
            }
            self._chosen[part] = {name: np.array(ids, np.int64) for name, ids in numbers.items()}
        return self._chosen[part]

    def gradient(self, server: int, cut: Cut, part: int, by_examples: bool) -> list[Array]:
        """One server's dense part of a gradient: numbers whose sum depends on the order, and units of the
        examples.
        """
        rows = cut.rows(part)
        unit = cut.data.size(part // cut.parts) / len(rows) if by_examples else cut.parts
        return self.gradient_of(server, part, np.array(rows, np.int64), unit)

    def gradient_of(self, server: int, part: int, rows: Array, unit: float) -> list[Array]:
        """The same of the rows that a replica has read, as often as it has read them."""
        blocks = [ramp + (server * 0.1 + part * 0.37 % 1) for ramp in self._ramps[server]]
        for flat, start in self._places(server, blocks):
            flat[start : start + 1 + self.examples] = 0.0
            np.add.at(flat, start + 1 + rows, unit)
        return blocks

    def row_gradient(self, ids: Array, part: int) -> SparseRows:
        """A gradient of rows of the table that is trained."""
        return SparseRows(
            ids, (ids[:, None] * 0.01 + part * 0.37 % 1 + np.arange(2) * 0.1).astype(np.float32)
        )

    def push_blocks(self, cut: Cut, part: int, by_examples: bool) -> list[list[Array]]:
        """A gradient as it is pushed, for each server."""
        ids = self.chosen_rows(part)
        rows = self.routes.blocks({"words": self.row_gradient(ids["words"], part)} if ids else {})
        return [
            [*self.gradient(server, cut, part, by_examples), *rows[server]]
            for server in range(self.plan.servers)
        ]


@cache
def model(servers: int, rows: int, shards: int, optimizer: str, examples: int) -> Model:
    """Made once for all runs that train the same."""
    return Model(servers, rows, shards, optimizer, examples)
