"""What replicas do in a test, and the same in one process: values, slots and sums must be those, bit for bit."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from collectives.served import Served
from whole_mean import mean

from dtrain.learning import optimizers
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.messages import Sums
from dtrain.parameters.placement import plan
from dtrain.parameters.store import Change
from dtrain.parameters.updater import BLOCK_ELEMENTS
from dtrain.protocol.tally import Tally
from dtrain.roles.collective.arena import ArenaShape
from dtrain.roles.collective.rules import Rules
from dtrain.variables import VariableSpec

STEPS_PER_EPOCH = 2
VARIABLES = (
    VariableSpec("kernel", (300, 500), "float32", trainable=True),
    VariableSpec("bias", (777,), "float32", trainable=True),
    VariableSpec("mean", (500,), "float32", trainable=False),
    VariableSpec("wide", (1000,), "float64", trainable=True),
    VariableSpec("seen", (), "int64", trainable=False),
)

TINY = (
    VariableSpec("kernel", (5, 3), "float32", trainable=True),
    VariableSpec("mean", (3,), "float32", trainable=False),
    VariableSpec("wide", (6,), "float64", trainable=True),
    VariableSpec("seen", (), "int64", trainable=False),
)
WITH_TABLES = (
    VariableSpec("ids", (4, 2), "float32", trainable=False, sparse=True),
    VariableSpec("few", (7, 2), "float32", sparse=True),
    *TINY,
    VariableSpec("many", (9, 3), "float32", sparse=True),
)
"""The same and tables, of which gradients list rows."""


@dataclass
class Scene:
    """Replicas, and what becomes of them.

    Attributes:
        examples: by (round, part), else 8.
        poisoned: the (round, part)s whose gradient holds NaN.
        orders: by version, what the replica `giver` orders there: optimizer, values or max_steps.
        certain: whether every death comes; a drawn one may be of a point that its replica does not reach.
    """

    optimizer: optimizers.Optimizer = field(default_factory=lambda: optimizers.SGD(0.05, momentum=0.9))
    replicas: int = 3
    parts: int = 3
    steps: int = 4
    variables: tuple[VariableSpec, ...] = VARIABLES
    deaths: dict[int, Any] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)
    examples: dict[tuple[int, int], int] = field(default_factory=dict)
    poisoned: frozenset[tuple[int, int]] = frozenset()
    orders: dict[int, dict[str, Any]] = field(default_factory=dict)
    giver: int = 0
    certain: bool = True
    block_elements: int = BLOCK_ELEMENTS

    @property
    def plan(self):
        return plan(self.variables, 1)

    @property
    def shape(self):
        return ArenaShape(
            self.plan,
            optimizers.serialize(self.optimizer),
            self.parts,
            self.replicas,
            block_elements=self.block_elements,
        )

    def initial(self):
        """Return every variable's first value."""
        return {
            each.name: np.linspace(-1, 1, int(np.prod(each.shape))).reshape(each.shape).astype(each.dtype)
            for each in self.variables
        }

    def fill(self, arena):
        """Write the first values into memory that replicas share."""
        arena.store(self.shape.optimizer).fill(self.initial())

    def train(self, driver, passes, calls):
        """Train to the end, as one member; see `members.train`. No part makes a call."""
        from collectives.members import train

        def compute(part, place):
            passes("before gradient", {})
            number, slot = divmod(part, self.parts)
            gradients, rows = driver.gradients(place).variables, {}
            told = self.compute(number, slot, driver.store.variables, gradients, rows)
            passes("in gradient", gradients)
            driver.give(place, rows)
            if rows:
                given = [*driver.gradients(place).blocks[0], *driver._arena.rows.blocks(place)]
                passes("in gradient", dict(enumerate(given)))
            return told

        return train(self, driver, passes, compute)

    def listed(self, number, part, table, values):
        """Return the rows of a table's gradient, of which some ids come several times, or none at all."""
        chance = np.random.default_rng([number, part])
        ids = chance.integers(0, table.shape[0], chance.integers(0, 2 * table.shape[0] // 3))
        more = chance.integers(-8, 8, (len(ids), *table.shape[1:])) / 64
        return SparseRows(ids, (values[ids] * (0.001 * (part + 1)) + more).astype(table.dtype)).summed()

    def compute(self, number, part, values, gradients, rows):
        """Write the gradient of a part of a round, and its rows of tables; return (examples, sums, finite)."""
        examples = self.examples.get((number, part), 8)
        for each in self.variables:
            if each.sparse:
                if each.trainable:
                    rows[each.name] = self.listed(number, part, each, values[each.name])
                continue
            out = gradients[each.name]
            if each.trainable:
                np.multiply(values[each.name], 0.001 * (part + 1), out=out, casting="unsafe")
                out += np.asarray(number * 0.01 + part, out.dtype)
            else:
                out[...] = values[each.name] + np.asarray(part + number, out.dtype)
        finite = (number, part) not in self.poisoned
        if not finite:
            next(iter(gradients.values())).flat[3] = np.nan
        totals = np.array([examples, examples * (0.5 + part + number)])
        return examples, Sums(names=("loss",), totals=totals.tobytes()) if examples else None, finite


def tear(store, passes):
    """Let the blocks of a store be left torn, half made or half carried, where `passes` ends its process."""
    updater = store.updater
    make, carry = updater.make, updater.carry

    def made(block):
        make(block)
        part = updater._parts[block.part]
        beside = getattr(part, "_rows_beside", None)
        if beside is None:
            torn = [array[block.elements] for array in part._step.new[block.part].values()]
        else:
            torn = beside(block.start, block.stop).values()
        passes("update", dict(enumerate(torn)))

    def carried(block):
        carry(block)
        table = updater._tables[block.part]
        ids = table.ids[block.start : block.stop].tolist()
        passes("carry", dict(enumerate(array[row] for array in table._arrays[0].values() for row in ids)))

    updater.make, updater.carry = made, carried


def twin(scene):
    """Return the variables after the same rounds on one server, the version, and the sums at each version."""
    served = Served(scene)
    store = served.store
    version = 0
    tally = Tally(0, STEPS_PER_EPOCH)
    sums = [tally.open()]
    orders = dict(scene.orders)
    for number in range(1000):
        if version in orders:
            obey(store, orders.pop(version), version)
        if version >= store.max_steps:
            break
        given = [served.gradient(number, part) for part in range(scene.parts)]
        counted = [each for each in given if each[1] and each[3]]
        if not counted:
            continue
        empty = sum(each[1] == 0 for each in given)
        weights = [each[1] for each in counted] if scene.rules.weighting == "examples" else None
        trainable = [group.trainable for group in store.groups]
        blocks = [each[0] for each in counted]
        store.apply(mean(blocks, trainable, len(counted) + empty, weights, store.values), version)
        for each in counted:
            tally.add(version, each[2])
        version += 1
        sums.append(tally.open())
    return served, version, sums


def obey(store, order, version):
    """Follow an order in one process."""
    views = store.layout.views(store.values)
    for name, value in order.get("values", {}).items():
        views[name][...] = value
    if "optimizer" in order:
        store.change(Change(version, order["optimizer"]), version)
    if "max_steps" in order:
        store.end_at(order["max_steps"], version)


def judge(scene, arena, seen):
    """Hold what came out against one process."""
    served, version, sums = twin(scene)
    for rank, told in seen.items():
        assert not isinstance(told, str), f"rank {rank}: {told}"
        assert [each for each in told if each[1] is not None and each[1] != sums[each[0]]] == [], rank
        assert told[-1][0] == version
    written = sum(bool(set(order) - {"optimizer"}) for order in scene.orders.values())
    assert arena.tally(version + written) == sums[version], "sums that the next leader finds"
    served.hold_against(arena, version + written)  # values that were assigned lie on the next side
