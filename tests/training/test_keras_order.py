"""The order of `layers`, `variables`, `get_weights` and `set_weights` is Keras's: by depth.

What is expected is worked out here once more, from the description of Keras 2.15's algorithm: with recursion,
on nodes of the test's own.
"""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dtrain as dt
from dtrain.saving.model_files import stored_weights
from dtrain.strategies.single import SingleStrategy

L = dt.layers
WIDTH = 3


@pytest.fixture(autouse=True, scope="module")
def alone():
    with SingleStrategy().scope():
        yield


def dense(name):
    return L.Dense(WIDTH, name=name)


def names(model):
    return [spec.name.removesuffix("/kernel") for spec in model.variables if spec.name.endswith("/kernel")]


def branches():
    x = L.Input((WIDTH,), name="x")
    a = dense("a2")(dense("a1")(x))
    b = dense("b2")(dense("b1")(x))
    return dt.Model(x, dense("o")(L.concatenate([a, b], name="joined")), name="branches")


def test_branches_are_sorted_by_depth():
    model = branches()
    assert names(model) == ["a1", "b1", "a2", "b2", "o"]
    assert [layer.name for layer in model.layers] == ["x", "a1", "b1", "a2", "b2", "joined", "o"]
    assert [spec.name for spec in model.created_variables][::2] == [
        f"{name}/kernel" for name in ("a1", "a2", "b1", "b2", "o")
    ]


def test_a_short_branch_comes_as_late_as_it_can():
    x = L.Input((WIDTH,))
    long = dense("second")(dense("first")(x))
    assert names(dt.Model(x, L.add([dense("short")(x), long]))) == ["first", "short", "second"]


def test_a_shared_layer_is_as_deep_as_its_deepest_use():
    x = L.Input((WIDTH,))
    shared = dense("shared")
    deep = dense("b")(dense("a")(shared(x)))
    assert names(dt.Model(x, [L.add([shared(dense("c")(x)), deep])])) == ["c", "shared", "a", "b"]


def test_outputs_are_walked_in_their_order():
    x = L.Input((WIDTH,))
    one, other = dense("one")(x), dense("other")(x)
    assert names(dt.Model(x, [one, other])) == ["one", "other"]
    assert names(dt.Model(x, [other, one])) == ["other", "one"]


def test_inputs_that_no_output_needs_come_first_of_the_last():
    x, unused = L.Input((WIDTH,), name="x"), L.Input((2,), name="unused")
    model = dt.Model([x, unused], dense("last")(dense("first")(x)))
    assert [layer.name for layer in model.layers] == ["x", "first", "unused", "last"]


def test_layers_of_a_model_within_stay_together():
    x = L.Input((WIDTH,))
    inner = branches()
    model = dt.Model(x, L.add([dense("late")(x), inner(dense("early")(x))]))
    assert names(model) == ["early", "late", *(f"branches/{name}" for name in names(inner))]


def test_a_model_within_has_all_its_weights_also_where_one_of_its_outputs_is_read():
    y = L.Input((WIDTH,))
    inner = dt.Model(y, [dense("read")(y), dense("left")(y)], name="inner")
    x = L.Input((WIDTH,))
    model = dt.Model(x, dense("last")(inner(x)[0]))
    assert names(model) == ["inner/read", "inner/left", "last"]
    model.compile(dt.optimizers.SGD(0.1), "mse")
    before = model.get_weights()
    model.fit(np.ones((4, WIDTH)), np.ones((4, WIDTH)), verbose=0)
    changed = [not np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True)]
    assert changed == [True, True, False, False, True, True]


def test_trained_weights_of_a_layer_come_before_the_others():
    class Counted(L.Layer):
        def declare(self, input_shape):
            return [L.Weight("count", (1,), "zeros", trainable=False), L.Weight("factor", (1,), "ones")]

        def forward(self, weights, x, call):
            return x * weights["factor"], x

    model = dt.Sequential([L.Input((WIDTH,)), Counted()])
    assert [spec.name for spec in model.variables] == ["counted/factor", "counted/count"]


def test_weights_are_got_and_set_in_this_order():
    model = branches()
    shapes = [(WIDTH, WIDTH), (WIDTH,)] * 4 + [(2 * WIDTH, WIDTH), (WIDTH,)]
    values = [np.full(shape, number) for number, shape in enumerate(shapes)]
    model.set_weights(values)
    for ours, theirs in zip(model.get_weights(), values, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert [int(model.arrays[f"{name}/kernel"][0, 0]) for name in ("a1", "b1", "a2", "b2", "o")] == [
        0,
        2,
        4,
        6,
        8,
    ]


def test_files_checkpoints_and_placement_follow_the_order_of_creation(tmp_path, monkeypatch):
    placed, opened = [], SingleStrategy.open

    def watched(strategy, problem):
        placed.append([spec.name for spec in problem.variables])
        return opened(strategy, problem)

    monkeypatch.setattr(SingleStrategy, "open", watched)
    model = branches()
    model.compile("sgd", "mse")
    model.fit(np.ones((4, WIDTH)), np.ones((4, WIDTH)), verbose=0)
    created = [spec.name for spec in model.created_variables]
    assert placed == [created]
    assert created != [spec.name for spec in model.variables]
    model.save_weights(tmp_path / "weights")
    model.save(tmp_path / "model")
    assert (
        list(stored_weights(tmp_path / "weights")[0])
        == list(stored_weights(tmp_path / "model")[0])
        == created
    )


def test_files_come_back_whatever_the_order(tmp_path):
    model = branches()
    model.save_weights(tmp_path / "weights")
    again = branches()
    again.set_weights([np.zeros(spec.shape) for spec in again.variables])
    again.load_weights(tmp_path / "weights")
    for ours, theirs in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


# Random graphs


@dataclass(eq=False)
class Thing:
    """A layer, or a model if it has `outputs`."""

    name: str
    outputs: list["Call"] = field(default_factory=list)
    has_weights: bool = True


@dataclass(eq=False)
class Call:
    thing: Thing
    parents: list["Call"] = field(default_factory=list)


def expected_order(outputs, inputs):
    finished, first_seen = [], {}

    def explore(call):
        if call in finished:
            return
        if call.thing not in first_seen:
            first_seen[call.thing] = len(first_seen)
        for parent in call.parents:
            explore(parent)
        finished.append(call)

    for output in outputs:
        explore(output)
    depth_of_call, depth_of_thing = {}, {}
    for call in finished[::-1]:
        depth = max(depth_of_call.get(call, 0), depth_of_thing.get(call.thing, 0))
        depth_of_thing[call.thing] = depth
        for parent in call.parents:
            if depth_of_call.get(parent, 0) < depth + 1:
                depth_of_call[parent] = depth + 1
    for call in inputs:
        if call.thing not in depth_of_thing:
            depth_of_thing[call.thing] = 0
            first_seen[call.thing] = -1
    by_depth = {}
    for thing, depth in depth_of_thing.items():
        by_depth.setdefault(depth, []).append(thing)
    return [
        thing
        for depth in sorted(by_depth, reverse=True)
        for thing in sorted(by_depth[depth], key=first_seen.get)
    ]


def expected_weights(outputs, inputs, prefix=""):
    for thing in expected_order(outputs, inputs):
        if thing.outputs:
            yield from expected_weights(thing.outputs, [], f"{prefix}{thing.name}/")
        elif thing.has_weights:
            yield prefix + thing.name


class Drawn:
    """A random graph, twice: as a model, and as calls."""

    def __init__(self, draw, name, n_ops, inner=()):
        symbols = [L.Input((WIDTH,), name=f"{name}_in{number}") for number in range(draw(st.integers(1, 2)))]
        ends = [(symbol, Call(Thing(symbol.node.part.name, has_weights=False))) for symbol in symbols]
        self.inputs = ends[:]
        used = [(made.model, made.thing, len(made.inputs)) for made in inner]
        for number in range(n_ops):
            what = draw(st.integers(0, 3 + len(used)))
            if what < 2:
                layer, thing, n = dense(f"{name}{number}"), Thing(f"{name}{number}"), 1
                used.append((layer, thing, n))
            elif what < 4:
                layer, thing, n = (
                    L.Add(name=f"{name}_add{number}"),
                    Thing(f"{name}_add{number}", has_weights=False),
                    2,
                )
            else:
                layer, thing, n = used[what - 4]
            arriving = [ends[draw(st.integers(0, len(ends) - 1))] for _ in range(n)]
            symbol = layer([symbol for symbol, _ in arriving] if n > 1 else arriving[0][0])
            ends.append((symbol, Call(thing, [call for _, call in arriving])))
        outputs = [
            ends[draw(st.integers(len(self.inputs), len(ends) - 1))] for _ in range(draw(st.integers(1, 2)))
        ]
        outputs = outputs[:1] if inner == () else outputs
        self.calls = [call for _, call in outputs]
        self.model = dt.Model(symbols, [symbol for symbol, _ in outputs], name=name)
        self.thing = Thing(name, self.calls)


@settings(max_examples=40)
@given(st.data())
def test_random_graphs_have_keras_s_order(data):
    inner = [Drawn(data.draw, name, data.draw(st.integers(1, 5))) for name in ("p", "q")]
    drawn = Drawn(data.draw, "m", data.draw(st.integers(1, 9)), inner)
    inputs = [call for _, call in drawn.inputs]
    assert [layer.name for layer in drawn.model.layers] == [
        thing.name for thing in expected_order(drawn.calls, inputs)
    ]
    assert names(drawn.model) == list(expected_weights(drawn.calls, inputs))
    again = dt.Model.from_config(drawn.model.get_config())
    assert names(again) == names(drawn.model)
    x = [np.random.default_rng(k).normal(size=(4, WIDTH)).astype(np.float32) for k in range(len(inputs))]
    x = x if len(x) > 1 else x[0]
    again.set_weights(drawn.model.get_weights())
    ours, theirs = drawn.model.predict_on_batch(x), again.predict_on_batch(x)
    np.testing.assert_array_equal(np.stack(np.atleast_3d(ours)), np.stack(np.atleast_3d(theirs)))
