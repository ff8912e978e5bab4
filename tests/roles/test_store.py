"""A server's memory: updates like the optimizer's own, slots, what does not fit, what is not finite."""

import math

import numpy as np
import pytest

from dtrain.errors import InputError, SpecError
from dtrain.learning import optimizers
from dtrain.parameters import placement
from dtrain.parameters.placement import unclippable
from dtrain.parameters.replica_memory import any_non_finite
from dtrain.parameters.store import Store
from dtrain.variables import VariableSpec

VARIABLES = [
    VariableSpec("kernel", (3, 2)),
    VariableSpec("mean", (2,), trainable=False),
    VariableSpec("wide", (4,), "float64"),
    VariableSpec("bias", (2,)),
]
PLAN = placement.plan(VARIABLES, 1)
RNG = np.random.default_rng(0)


def arrays(low=-1.0):
    return [RNG.uniform(low, 1, group.size).astype(group.dtype) for group in PLAN.layout(0).groups]


def store(optimizer, values=None):
    return Store(PLAN.layout(0), optimizers.serialize(optimizer), arrays() if values is None else values)


def everything(held):
    """Values and slots."""
    return [array for arrays in held.parts for array in arrays.values()]


@pytest.mark.parametrize(
    "optimizer",
    [optimizers.SGD(0.1), optimizers.SGD(0.1, momentum=0.9), optimizers.Adam(0.01), optimizers.Adagrad(0.1)],
)
def test_updates_are_those_of_the_optimizer_on_each_variable_bit_for_bit(optimizer):
    held = store(optimizer)
    layout = PLAN.layout(0)
    values = {name: view.copy() for name, view in layout.views(held.values).items()}
    slots = {name: optimizer.initial_slots(value) for name, value in values.items()}
    for step in range(5):
        gradients = arrays()
        scale = 1.0 / (1 + step % 2)
        for name, gradient in layout.views([gradient.copy() for gradient in gradients]).items():
            if name == "mean":
                values[name] = gradient.copy()
            else:
                optimizer.update(values[name], gradient, slots[name], step, rate_scale=scale)
        held.apply(gradients, step, scale)
    for name, view in layout.views(held.values).items():
        assert np.array_equal(view, values[name]), name


def test_it_keeps_arrays_that_may_be_written_and_copies_those_that_may_not():
    values = arrays()
    frozen = arrays()
    for array in frozen:
        array.flags.writeable = False
    assert all(
        mine is value for mine, value in zip(store(optimizers.SGD(0.1), values).values, values, strict=True)
    )
    copied = store(optimizers.SGD(0.1), frozen)
    copied.apply(arrays(), 0)
    assert not any(np.shares_memory(mine, value) for mine, value in zip(copied.values, frozen, strict=True))


def test_a_snapshot_restores_to_the_same_state_and_the_same_future():
    optimizer = optimizers.Adam(0.01)
    one, gradients = store(optimizer), arrays()
    one.apply(arrays(), 0)
    one.mark()
    one.apply([gradient.copy() for gradient in gradients], 1)
    values, slots = [], {name: [] for name in one.slot_names}
    for part, group in enumerate(one.groups):
        values.append(one.read_snapshot(part, "", 0, group.size))
        for name in slots if group.trainable else ():
            slots[name].append(one.read_snapshot(part, name, 0, group.size))
    other = store(optimizer, values)
    other.restore_slots(list(slots), [array for arrays in slots.values() for array in arrays])
    other.apply(gradients, 1)
    for mine, theirs in zip(everything(one), everything(other), strict=True):
        assert mine.tobytes() == theirs.tobytes()


def test_slots_are_seen_by_the_names_and_shapes_of_the_variables_where_they_lie():
    held = store(optimizers.SGD(0.1, momentum=0.9))
    views = held.all_slots()["m"]
    assert {name: view.shape for name, view in views.items()} == {
        "kernel": (3, 2),
        "wide": (4,),
        "bias": (2,),
    }
    for number, name in enumerate(views, 1):
        views[name][...] = number
    assert sorted({number for arrays in held.parts for number in arrays.get("m", ())}) == [1, 2, 3]
    assert {slot: set(views) for slot, views in held.all_slots().items()} == {"m": {"kernel", "wide", "bias"}}


@pytest.mark.parametrize("change", ["missing", "extra", "shorter", "dtype"])
def test_values_of_other_groups_are_refused(change):
    values = arrays()
    wrong = {
        "missing": values[:-1],
        "extra": [*values, values[0]],
        "shorter": [values[0][1:], *values[1:]],
        "dtype": [values[0].astype(np.float16), *values[1:]],
    }[change]
    with pytest.raises(InputError, match="expected \\(dtype, elements\\)"):
        store(optimizers.SGD(0.1), wrong)


def test_slots_of_another_optimizer_or_size_are_refused_and_change_nothing():
    held = store(optimizers.SGD(0.1, momentum=0.9))
    before = [array.tobytes() for array in everything(held)]
    sizes = [held.groups[index] for index in held.trainable]
    good = [np.ones(group.size, group.dtype) for group in sizes]
    for names, blocks in [
        (("v",), good),
        ((), []),
        (("m",), good[:-1]),
        (("m",), [np.ones(1, np.float32), good[1]]),
    ]:
        with pytest.raises(InputError, match="expected the optimizer's slots \\['m'\\]"):
            held.restore_slots(names, blocks)
    assert [array.tobytes() for array in everything(held)] == before


def test_an_optimizer_that_is_none_is_refused():
    with pytest.raises(SpecError):
        Store(PLAN.layout(0), {"class_name": "os.system", "config": {}}, arrays())


def test_norms_are_limited_variable_by_variable():
    held = store(optimizers.SGD(1.0, clipnorm=1.0), [np.zeros_like(array) for array in arrays()])
    gradients = [np.full_like(array, 3.0) for array in arrays()]
    held.apply(gradients, 0)
    views = PLAN.layout(0).views(held.values)
    assert views["kernel"].ravel().tolist() == pytest.approx([-1 / math.sqrt(6)] * 6)
    assert views["bias"].tolist() == pytest.approx([-1 / math.sqrt(2)] * 2)
    assert views["wide"].tolist() == pytest.approx([-0.5] * 4)
    assert views["mean"].tolist() == [3.0, 3.0]


def test_norms_that_no_server_can_know_are_refused_with_the_remedy():
    two = placement.plan(VARIABLES, 2)
    split = placement.plan(VARIABLES, 1, partitioner={"fixed_shards": 2})
    assert unclippable(optimizers.serialize(optimizers.SGD(1.0, clipnorm=1.0)), two) is None
    assert "found 2; use clipnorm" in unclippable(
        optimizers.serialize(optimizers.SGD(1.0, global_clipnorm=1.0)), two
    )
    assert "use clipvalue" in unclippable(optimizers.serialize(optimizers.SGD(1.0, clipnorm=1.0)), split)
    assert unclippable(optimizers.serialize(optimizers.SGD(1.0, clipvalue=1.0)), split) is None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 1.0], False),
        ([0.0, math.nan], True),
        ([math.inf, -math.inf], True),
        ([-math.inf, 0.0], True),
        ([3e38, 3e38], False),
        ([], False),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nan_and_infinity_are_found_and_large_numbers_are_not_taken_for_them(values, expected, dtype):
    assert any_non_finite([np.zeros(3, np.int64), np.array(values, dtype)]) is expected
