"""What a simulated run trains: dense variables, and in some runs tables of which every step uses some rows. And how it is kept."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import numpy as np

from dtrain.learning import optimizers
from dtrain.learning.drawn_table import DrawnTable
from dtrain.learning.initializers import Constant, RandomUniform
from dtrain.learning.sparse_rows import SparseRows
from dtrain.protocol import placement
from dtrain.roles.parameter_server.table import VALUES
from dtrain.roles.worker.row_routes import RowRoutes
from dtrain.variables import VariableSpec

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]

OPTIMIZERS = {
    "plain": optimizers.SGD(0.3),
    "momentum": optimizers.SGD(0.3, momentum=0.5),
    "adagrad": optimizers.Adagrad(0.3),
}
DENSE = [VariableSpec(f"v{i}", (2,), "float64") for i in range(4)] + [VariableSpec("mean", (1,), "float64", trainable=False)]


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
    """What one server holds of one version: flat values and slots of the groups, and the arrays of every table."""

    values: list[Array]
    slots: dict[str, list[Array]]
    tables: list[dict[str, Array]]

    @property
    def image(self) -> bytes:
        return image(arrays_of(self.values, self.slots, self.tables))

    def copy(self) -> "State":
        return deepcopy(self)

    @property
    def blocks(self) -> list[Array]:
        """As the leader sends them: values, then slots."""
        return [block.copy() for block in arrays_of(self.values, self.slots, ())]


class Model:
    """The variables of a run on its servers, and gradients by their numbers."""

    def __init__(self, servers: int, rows: int, shards: int, optimizer: str) -> None:
        tables = [VariableSpec("fixed", (3,), trainable=False, sparse=True), VariableSpec("words", (rows, 2), sparse=True)]
        variables = [*DENSE[:2], *(tables if rows else ()), *DENSE[2:]]
        self.plan = placement.plan(variables, servers, partitioner={"fixed_shards": shards} if shards > 1 else None)
        self.routes = RowRoutes(self.plan)
        self.optimizer = OPTIMIZERS[optimizer]
        self.sparse = {spec.name: spec for spec in variables if spec.sparse}
        slots = self.optimizer.initial_slots(np.zeros(1, np.float32))
        self.slots = tuple(slots)
        self.drawn: dict[str, dict[str, DrawnTable]] = {}
        for spec in self.sparse.values():
            self.drawn[spec.name] = {VALUES: DrawnTable(spec.shape, RandomUniform(-1.0, 1.0), (7,))}
            for name in self.slots if spec.trainable else ():
                self.drawn[spec.name][name] = DrawnTable(spec.shape, Constant(float(slots[name][0])), ())

    def first(self, server: int) -> State:
        """A server's part of version 0."""
        layout = self.plan.layout(server)
        values = [np.zeros(group.size) for group in layout.groups]
        made = [self.optimizer.initial_slots(v) for group, v in zip(layout.groups, values, strict=True) if group.trainable]
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
                    target = whole.setdefault(variable.name, {}).setdefault(name, np.empty(variable.shape, np.float32))
                    target[shard.row_start : shard.row_stop] = array
        return whole

    def chosen_rows(self, random: Random) -> dict[str, Array]:
        """Which rows of every table a step uses; perhaps none."""
        numbers = {name: sorted(random.sample(range(spec.shape[0]), random.randint(0, 3))) for name, spec in self.sparse.items()}
        return {name: np.array(ids, np.int64) for name, ids in numbers.items()}

    def gradient(self, server: int, number: int) -> list[Array]:
        """One server's dense part of a gradient: numbers whose sum depends on the order."""
        groups = self.plan.layout(server).groups
        return [np.arange(group.size, dtype=np.float64) * 0.01 + server + number * 0.37 for group in groups]

    def row_gradient(self, ids: Array, number: int) -> SparseRows:
        """A gradient of rows of the table that is trained."""
        return SparseRows(ids, (ids[:, None] * 0.01 + number * 0.37 + np.arange(2) * 0.1).astype(np.float32))

    def push_blocks(self, number: int, ids: Mapping[str, Array]) -> list[list[Array]]:
        """A gradient as it is pushed, for each server."""
        rows = self.routes.blocks({"words": self.row_gradient(ids["words"], number)} if ids else {})
        return [[*self.gradient(server, number), *rows[server]] for server in range(self.plan.servers)]


@cache
def model(servers: int, rows: int, shards: int, optimizer: str) -> Model:
    """Made once for all runs that train the same."""
    return Model(servers, rows, shards, optimizer)
