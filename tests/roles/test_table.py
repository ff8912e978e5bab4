"""Tables: updated like a dense variable by the optimizer's sparse rule, read as they were while they
change.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_by_row import every_row
from whole_mean import mean

from dtrain.errors import InputError
from dtrain.learning import optimizers
from dtrain.learning.core.drawn_table import DrawnTable
from dtrain.learning.core.initializers import RandomNormal
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.optimizers import legacy
from dtrain.parameters import placement
from dtrain.parameters.replica_memory import RowRoutes
from dtrain.parameters.store import Store
from dtrain.parameters.table import VALUES
from dtrain.parameters.versions import CopyOnWriteSnapshot
from dtrain.variables import VariableSpec

ROWS = 11
VARIABLES = [
    VariableSpec("bias", (2,)),
    VariableSpec("table", (ROWS, 3), sparse=True),
    VariableSpec("kernel", (4,)),
]
SOURCE = DrawnTable.of((ROWS, 3), RandomNormal(), [0])
RULES = [
    optimizers.SGD(0.1),
    optimizers.Adagrad(0.1, clipvalue=0.5),
    optimizers.Adam(0.1, weight_decay=0.1),
    optimizers.SGD(0.1, momentum=0.9, use_ema=True),
    legacy.SGD(0.1, momentum=0.9),
    legacy.Ftrl(0.1),
    legacy.Nadam(0.1),
]


def stores(optimizer, servers=1, shards=1):
    plan = placement.plan(VARIABLES, servers, partitioner={"fixed_shards": shards})
    made = []
    for layout in plan.layouts:
        store = Store(
            layout,
            optimizers.serialize(optimizer),
            [np.zeros(group.size, group.dtype) for group in layout.groups],
        )
        for table in store.tables:
            for name, array in optimizer.initial_slots(np.asarray(SOURCE)).items():
                table.fill(name, array)
            table.fill(VALUES, SOURCE)
        made.append(store)
    return plan, made


def row_gradients(draw_ids, seed):
    ids = np.unique(np.array(draw_ids, np.int64))
    return SparseRows(ids, np.random.default_rng(seed).normal(size=(len(ids), 3)).astype(np.float32))


FIRST, SCALE = 5, 0.5
"""A later `fit` begins at this version with a new optimizer; its gradients are late."""


@every_row(
    "optimizer", RULES, ids=lambda rule: f"{type(rule).__module__.rpartition('.')[2]}-{type(rule).__name__}"
)
def test_a_later_fit_is_the_optimizer_s_own_from_its_first_step_to_its_last(optimizer):
    layout = placement.plan(VARIABLES, 1).layout(0)
    store = Store(
        layout, optimizers.serialize(optimizer), [np.zeros(6, np.float32)], origin=FIRST, max_steps=FIRST + 3
    )
    whole = {"dense": np.zeros(6, np.float32), "table": np.asarray(SOURCE)}
    slots = {name: optimizer.initial_slots(value) for name, value in whole.items()}
    for name, array in {VALUES: whole["table"], **slots["table"]}.items():
        store.tables[0].fill(name, array)
    for step in range(3):
        dense, rows = np.full(6, step - 0.5, np.float32), row_gradients([step, 4, 9], step)
        limited = optimizer.clip({"table": rows})["table"]
        optimizer.update(whole["dense"], dense, slots["dense"], step, rate_scale=SCALE)
        optimizer.update_rows(
            whole["table"], limited.ids, limited.rows, slots["table"], step, rate_scale=SCALE
        )
        store.apply([dense, rows.ids, rows.rows.reshape(-1)], FIRST + step, SCALE)
    for name, value in whole.items():
        optimizer.finalize(value, slots[name])
    assert store.values[0].tobytes() == whole["dense"].tobytes()
    assert store.tables[0].values.tobytes() == whole["table"].tobytes()


STEPS = st.lists(st.lists(st.integers(0, ROWS - 1), max_size=6), min_size=1, max_size=4)


def dense_part(store):
    return [np.ones(group.size, group.dtype) for group in store.groups]


@pytest.mark.parametrize(
    "optimizer", RULES, ids=lambda rule: f"{type(rule).__module__.rpartition('.')[2]}-{type(rule).__name__}"
)
@settings(deadline=None, max_examples=15)
@given(steps=STEPS, servers=st.integers(1, 3), shards=st.integers(1, 4))
def test_rows_on_any_servers_are_those_of_the_optimizer_on_the_whole_table(optimizer, steps, servers, shards):
    plan, made = stores(optimizer, servers, shards)
    routes = RowRoutes(plan)
    whole = np.asarray(SOURCE)
    slots = optimizer.initial_slots(whole)
    for step, ids in enumerate(steps):
        gradient = row_gradients(ids, step)
        optimizer.apply({"table": whole}, {"table": gradient}, {"table": slots}, step)
        blocks = routes.blocks({"table": gradient} if ids else {})
        for store, rows in zip(made, blocks, strict=True):
            store.received([*dense_part(store), *rows])
            store.apply([*dense_part(store), *rows], step)
    for store in made:
        for table in store.tables:
            rows = slice(table.shard.row_start, table.shard.row_stop)
            assert table.values.tobytes() == whole[rows].tobytes()
            assert all(table.slots[name].tobytes() == slots[name][rows].tobytes() for name in slots)
    looked_up = np.empty_like(whole)
    for piece in routes.pieces("table", np.arange(ROWS)):
        looked_up[piece.where] = made[piece.server].table(piece.table).look_up(piece.ids).reshape(-1, 3)
    assert looked_up.tobytes() == whole.tobytes()


@settings(deadline=None, max_examples=30)
@given(contributions=st.lists(st.lists(st.integers(0, ROWS - 1), max_size=6), min_size=1, max_size=4))
def test_the_mean_has_the_union_of_rows_and_divides_by_the_real_count(contributions):
    gradients = [row_gradients(ids, number) for number, ids in enumerate(contributions)]
    total = np.zeros((ROWS, 3), np.float32)
    for gradient in gradients:
        total[gradient.ids] += gradient.rows
    total /= np.float32(len(gradients))
    ids, rows = mean([(gradient.ids, gradient.rows.reshape(-1)) for gradient in gradients], [])
    assert ids.tolist() == sorted({number for numbers in contributions for number in numbers})
    assert np.array_equal(rows.reshape(len(ids), 3), total[ids])


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_an_image_stays_as_it_was_while_everything_changes(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    arrays = {"": rng.normal(size=(ROWS, 2)), "slot": rng.normal(size=(ROWS, 2))}
    before = {name: array.copy() for name, array in arrays.items()}
    image = CopyOnWriteSnapshot(arrays)
    size = data.draw(st.integers(1, ROWS))
    for name in arrays:
        for start in range(0, ROWS, size):
            for ids in data.draw(
                st.lists(st.none() | st.sets(st.integers(0, ROWS - 1), min_size=1), max_size=3)
            ):
                chosen = np.arange(ROWS) if ids is None else np.array(sorted(ids))
                image.keep_all() if ids is None else image.save_rows(chosen)
                for array in arrays.values():
                    array[chosen] += 1
            for _ in range(data.draw(st.integers(1, 2))):
                stop = min(start + size, ROWS)
                assert np.array_equal(image.read(name, start, stop), before[name][start:stop])


def test_what_does_not_fit_is_refused():
    _, [store] = stores(optimizers.Adagrad(0.1))
    ids, rows = np.array([1, 3]), np.zeros(6, np.float32)
    good = [*dense_part(store), ids, rows]
    assert store.received(good) is good
    dense = dense_part(store)
    wrong = [
        ([*dense, np.array(bad), rows], "ascending row numbers")
        for bad in ([3, 1], [1, 1], [-1, 3], [1, ROWS])
    ]
    wrong += [([*dense, ids, rows[:-1]], "elements"), ([*dense, ids, rows.astype(np.float64)], "elements")]
    wrong += [(good[:-1], "expected 1 blocks and 2"), ([np.zeros(1), ids, rows], r"expected \(dtype")]
    for blocks, reason in wrong:
        with pytest.raises(InputError, match=reason):
            store.received(blocks)
    [table] = store.tables
    with pytest.raises(InputError, match="ascending"):
        table.look_up(np.array([ROWS]))
    for wrong in [
        ("momentum", 0, 1, np.zeros(3, np.float32)),
        (VALUES, ROWS, ROWS + 1, np.zeros(3, np.float32)),
        (VALUES, 0, 1),
    ]:
        with pytest.raises(InputError, match="there are no rows"):
            table.load(*wrong)
    with pytest.raises(InputError, match="are not rows 0 to 2"):
        table.load(VALUES, 0, 2, np.zeros(3, np.float32))
    with pytest.raises(InputError, match="no snapshot of part 0"):
        store.read_snapshot(0, VALUES, 0, 1)
    with pytest.raises(InputError, match="number of a table below 1, found 1"):
        store.table(1)


def test_global_norms_are_limited_over_rows_too():
    _, [store] = stores(optimizers.SGD(1.0, global_clipnorm=1.0))
    before = [store.values[0].copy(), store.tables[0].values.copy()]
    ids, rows = np.array([2, 5]), np.full(6, 3.0, np.float32)
    store.apply([*dense_part(store), ids, rows], 0)
    moved = np.concatenate(
        [(store.values[0] - before[0]).ravel(), (store.tables[0].values - before[1]).ravel()]
    )
    assert np.isclose(np.linalg.norm(moved), 1.0)
    assert np.isclose(moved[:6].min() * 3, moved.min())
