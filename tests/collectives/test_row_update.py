"""Rows of tables, block by block in memory that replicas share, and on a server: the same bits."""

import os
import random

import numpy as np
import pytest
from collectives.scene import Scene
from collectives.served import Served
from hypothesis import given, settings
from hypothesis import strategies as st
from whole_mean import mean

from dtrain.errors import InputError
from dtrain.learning import optimizers
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.parameters.updater import Contributions
from dtrain.roles.collective.arena import Arena
from dtrain.variables import VariableSpec

ROWS, WIDTH = 9, 3
VARIABLES = (
    VariableSpec("table", (ROWS, WIDTH), "float32", sparse=True),
    VariableSpec("kernel", (4, 2), "float32"),
)
RULES = (
    optimizers.SGD(0.1),
    optimizers.SGD(0.1, momentum=0.9, clipnorm=0.3),
    optimizers.Adam(0.01, clipvalue=0.2),
    optimizers.Adagrad(0.1, clipnorm=0.3),
    optimizers.Adagrad(0.1, global_clipnorm=0.3, weight_decay=0.01),
    optimizers.legacy.SGD(0.1, momentum=0.9, clipvalue=0.2),
    optimizers.legacy.Nadam(0.01, global_clipnorm=0.3),
)


class Drawn(Scene):
    """A scene whose gradients list given rows."""

    lists: tuple = ()

    def listed(self, number, part, table, values):
        ids = np.array(self.lists[number][part], np.int64)
        chance = np.random.default_rng([number, part])
        return SparseRows(ids, chance.normal(size=(len(ids), WIDTH)).astype(np.float32)).summed()


def make(store, given, chance):
    """Make a step of a store that replicas share, in any order, and some blocks again."""
    store.stand_at(given.version)
    updater = store.begin(given)
    for piece in updater.pieces:
        updater.square(piece)
    updater.limit()
    for do, blocks in [
        (updater.make, updater.beside),
        (updater.make, updater.blocks),
        (updater.carry, updater.beside),
    ]:
        for block in chance.sample(blocks, len(blocks)):
            for _ in range(chance.choice((1, 1, 2))):
                do(block)
    store.stand_at(given.version + 1)


some_ids = st.lists(st.integers(0, ROWS - 1), max_size=12)


@settings(max_examples=40, deadline=None)
@given(
    rule=st.sampled_from(RULES),
    lists=st.lists(st.lists(some_ids, min_size=3, max_size=3), min_size=2, max_size=2),
    counted=st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True),
    weighted=st.booleans(),
    block_elements=st.integers(1, 4 * WIDTH),
    seed=st.integers(0, 99),
)
def test_any_ids_in_any_number_of_parts_give_the_bits_of_a_server(
    rule, lists, counted, weighted, block_elements, seed
):
    """Ids are repeated within a part and between parts; blocks are done in any order, and some again."""
    chance = random.Random(seed)
    scene = Drawn(rule, parts=3, steps=len(lists), variables=VARIABLES, block_elements=block_elements)
    scene.lists = lists
    served = Served(scene)
    arena = Arena(scene.shape, np.zeros(scene.shape.starts()[-1], np.uint8), [0] * 1000)
    scene.fill(arena)
    store = arena.store(optimizers.serialize(rule), max_steps=scene.steps)
    for version in range(scene.steps):
        counts = [chance.randint(1, 5) for _ in counted] if weighted else None
        for part in range(3):
            rows = {}
            scene.compute(version, part, store.variables, arena.gradients[part].variables, rows)
            arena.rows.put(part, rows)
        given_by = [arena.counted(part) for part in sorted(counted)]
        make(store, Contributions.of(given_by, 3 - len(counted), counts, version), chance)
        blocks = [served.gradient(version, part)[0] for part in sorted(counted)]
        served.store.apply(mean(blocks, [True], 3, counts, served.store.values), version)
    served.hold_against(arena, scene.steps)


def test_a_table_takes_memory_for_the_rows_that_are_given_alone():
    rows, width, listed = 40_000, 16, 50
    scene = Scene(variables=(VariableSpec("table", (rows, width), "float32", sparse=True),), parts=2)
    arena = Arena.make(scene.shape)
    ids = np.arange(0, rows, rows // listed, dtype=np.int64)
    arena.rows.put(1, {"table": SparseRows(ids, np.ones((listed, width), np.float32))})
    taken = os.fstat(arena.rows_fd).st_blocks * 512
    assert taken <= 4 * 64 * 1024 < rows * width * 4, "pages are taken in strides of 64 KiB"
    other = Arena.received(os.dup(arena.fd), os.dup(arena.rows_fd), scene.shape)
    found, values = other.counted(1)
    assert found.tolist() == ids.tolist()
    assert values.tolist() == [1.0] * (listed * width)
    assert [len(block) for block in other.counted(0)] == [0, 0]


@pytest.mark.parametrize("ids", [[1, 0], [2, 2], [-1, 0], [0, ROWS]], ids=str)
def test_ids_of_no_gradient_are_refused_where_they_are_given(ids):
    """Replicas of other hosts would refuse them, too, and could not say of whose program they are."""
    arena = Arena.make(Scene(variables=VARIABLES).shape)
    rows = SparseRows(np.array(ids), np.ones((2, WIDTH), np.float32))
    with pytest.raises(InputError, match="the gradient of table: expected ascending row numbers from 0 to 8"):
        arena.rows.put(0, {"table": rows})
