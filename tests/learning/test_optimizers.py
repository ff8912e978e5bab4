"""What servers rely on: rules are element-wise, in place, shareable, and survive as JSON."""

import json
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_by_row import every_row

from dtrain.errors import InputError, SpecError
from dtrain.learning import optimizers
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.optimizers import legacy, schedules
from dtrain.learning.optimizers.optimizer import BLOCK_ELEMENTS

RULES = [
    optimizers.SGD(0.1),
    optimizers.SGD(0.1, momentum=0.9, nesterov=True, clipvalue=0.5),
    optimizers.Adagrad(0.1, weight_decay=0.01),
    optimizers.Adadelta(1.0),
    optimizers.RMSprop(0.01, momentum=0.9, centered=True),
    optimizers.Adam(schedules.ExponentialDecay(0.1, 2, 0.5), amsgrad=True),
    optimizers.AdamW(0.01),
    optimizers.Adamax(0.01),
    optimizers.Nadam(0.01, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2),
    optimizers.Ftrl(0.1, l1_regularization_strength=0.01, learning_rate_power=-0.6),
    optimizers.Lion(0.01),
    legacy.SGD(0.1, momentum=0.9, decay=0.1),
    legacy.Nadam(0.01),
    legacy.RMSprop(0.01),
]
every_rule = pytest.mark.parametrize(
    "rule", RULES, ids=lambda rule: f"{'legacy.' * rule.is_legacy_optimizer}{rule.name}"
)


def drawn(shape, seed):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def after_steps(rule, value, gradients, **how):
    slots = rule.initial_slots(value)
    for step, gradient in enumerate(gradients):
        rule.update(value, gradient, slots, step, **how)
    return value, slots


@every_rule
def test_a_flat_concatenation_and_shards_give_the_same_bits(rule):
    size = BLOCK_ELEMENTS + 30
    start, gradients = drawn(size, 0), [drawn(size, seed) for seed in (1, 2, 3)]
    whole, slots = after_steps(rule, start.copy(), gradients)
    square, _ = after_steps(
        rule, start.reshape(2, -1).copy(), [gradient.reshape(2, -1) for gradient in gradients]
    )
    np.testing.assert_array_equal(square.reshape(-1), whole)
    for part in (slice(0, 7), slice(7, 5000), slice(5000, None)):
        shard, shard_slots = after_steps(rule, start[part].copy(), [gradient[part] for gradient in gradients])
        np.testing.assert_array_equal(shard, whole[part])
        for name, slot in shard_slots.items():
            np.testing.assert_array_equal(slot, slots[name][part])


@every_rule
def test_an_update_into_another_buffer_leaves_the_first_alone(rule):
    start, gradient = drawn(50, 0), drawn(50, 1)
    expected, _ = after_steps(rule, start.copy(), [gradient])
    old, new, kept = start.copy(), np.empty_like(start), gradient.copy()
    after_steps(rule, old, [gradient], out=new)
    np.testing.assert_array_equal(new, expected)
    np.testing.assert_array_equal(old, start)
    np.testing.assert_array_equal(gradient, kept)


@every_rule
def test_an_optimizer_survives_as_json(rule):
    again = optimizers.from_config(json.loads(json.dumps(optimizers.serialize(rule))))
    assert again == rule
    assert type(again) is type(rule)


@every_rule
def test_sparse_rows_that_list_every_row_are_a_dense_gradient(rule):
    value, gradient = drawn((5, 3), 0), drawn((5, 3), 1)
    dense, slots = after_steps(rule, value.copy(), [gradient])
    table, table_slots = value.copy(), rule.initial_slots(value)
    rule = optimizers.from_config(optimizers.serialize(rule))
    sparse = rule.clip({"table": SparseRows(np.arange(5)[::-1], gradient[::-1])})["table"]
    rule.update_rows(table, sparse.ids, sparse.rows, table_slots, 0)
    np.testing.assert_array_equal(table, dense)
    for name, slot in slots.items():
        np.testing.assert_array_equal(table_slots[name], slot)


def test_large_tables_are_walked_in_blocks_of_rows():
    rule, value = optimizers.Adam(0.1), drawn((3000, 50), 0)
    ids, rows = np.array([1, 1400, 2999]), drawn((3, 50), 1)
    dense, _ = after_steps(rule, value.copy(), [SparseRows(ids, rows).dense(value.shape)])
    rule.update_rows(value, ids, rows, rule.initial_slots(value), 0)
    np.testing.assert_array_equal(value, dense)


def test_threads_may_share_an_optimizer():
    rule, gradient = optimizers.Adam(0.01), drawn(200_000, 1)
    results = [drawn(200_000, 0) for _ in range(4)]
    threads = [threading.Thread(target=after_steps, args=(rule, value, [gradient] * 3)) for value in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected, _ = after_steps(rule, drawn(200_000, 0), [gradient] * 3)
    for value in results:
        np.testing.assert_array_equal(value, expected)


def test_a_late_gradient_moves_less():
    value = np.zeros(3, "float32")
    optimizers.SGD(0.1).update(value, np.ones(3, "float32"), {}, 0, rate_scale=0.25)
    np.testing.assert_allclose(value, -0.025)


def test_the_learning_rate_may_be_changed_between_updates():
    rule, value = optimizers.SGD(0.1), np.zeros(1, "float32")
    rule.learning_rate = 1.0
    rule.update(value, np.ones(1, "float32"), {}, 0)
    assert value[0] == -1.0
    assert rule.learning_rate_at(7) == 1.0
    assert legacy.SGD(1.0, decay=0.5).learning_rate_at(2) == 0.5


def test_what_clipping_needs_is_said():
    assert optimizers.SGD(0.1, clipvalue=1.0).elementwise
    assert not optimizers.SGD(0.1, clipnorm=1.0).elementwise
    assert not optimizers.SGD(0.1, global_clipnorm=1.0).elementwise


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=8))
def test_duplicate_rows_add_up(ids):
    gradient = SparseRows(np.array(ids), drawn((len(ids), 2), 0))
    summed = gradient.summed()
    assert summed.ids.tolist() == sorted(set(ids))
    np.testing.assert_allclose(summed.dense((5, 2)), gradient.dense((5, 2)), atol=1e-6)


def test_numpy_numbers_are_numbers():
    rule = optimizers.SGD(np.float32(0.5), momentum=np.float64(0.25))
    assert optimizers.from_config(json.loads(json.dumps(optimizers.serialize(rule)))) == rule


def test_optimizers_by_name():
    assert optimizers.get("sgd") == optimizers.SGD()
    assert optimizers.get("RMSprop") == optimizers.get("rmsprop")
    rule = optimizers.Adam()
    assert optimizers.get(rule) is rule
    assert optimizers.RMSprop(ema_overwrite_frequency=None).ema_overwrite_frequency is None
    assert (optimizers.SGD().learning_rate, optimizers.Adam().learning_rate) == (0.01, 0.001)


@every_row(
    "build, message",
    [
        (lambda: optimizers.get("sdg"), "unknown optimizer 'sdg'; do you mean SGD\\?$"),
        (
            lambda: optimizers.from_config({"class_name": "SGD", "config": {"rate": 1}}),
            "optimizer SGD: its arguments do not fit",
        ),
        (lambda: optimizers.from_config({"class_name": "os.system", "config": {}}), "unknown optimizer"),
        (lambda: optimizers.from_config({"class_name": "SGD", "config": ["x"]}), "arguments by name"),
        (lambda: optimizers.SGD(0.1, clipnorm=1.0, clipvalue=1.0), "clipnorm and clipvalue"),
        (lambda: optimizers.SGD(0.1, clipnorm=-1.0), "clipnorm > 0"),
        (lambda: optimizers.SGD(float("nan")), "finite number for learning_rate"),
        (lambda: optimizers.SGD("0.1"), "finite number for learning_rate, found '0.1'"),
        (
            lambda: optimizers.SGD({"class_name": "Sawtooth", "config": {}}),
            "unknown learning_rate 'Sawtooth'",
        ),
    ],
)
def test_mistakes_in_arguments_are_named(build, message):
    with pytest.raises(SpecError, match=message):
        build()


def test_mistakes_in_arrays_are_named():
    rule, value = optimizers.SGD(0.1), np.zeros((3, 4), "float32")
    with pytest.raises(InputError, match=r"gradient of shape \(3, 4\), found \(4, 3\)"):
        rule.update(value, value.T, {}, 0)
    with pytest.raises(InputError, match="C-contiguous"):
        rule.update(value.T, value.T, {}, 0)
    with pytest.raises(InputError, match=r"row numbers in \[0, 3\)"):
        rule.update_rows(value, np.array([3]), value[:1], {}, 0)
