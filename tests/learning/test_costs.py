"""What layers cost, by a clock that the layers themselves move, and by memory that Python counts."""

import tracemalloc

import numpy as np
import pytest
from learning.test_stages import ZOO, data_of, weights_of

from dtrain.learning import layers as L
from dtrain.learning.graphs.costs import measure
from dtrain.learning.graphs.networks import Network
from dtrain.learning.graphs.passes import Going
from dtrain.learning.graphs.stages import obstacle


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


class Takes(L.Layer):
    """Moves the clock by what is listed for each pass, the last of which holds for all others."""

    def __init__(self, clock, forward, backward, **given):
        super().__init__(**given)
        self.clock, self.taken = clock, {False: list(forward), True: list(backward)}

    def take(self, back):
        left = self.taken[back]
        self.clock.now_s += left.pop(0) if len(left) > 1 else left[0]

    def declare(self, input_shape):
        return [L.Weight("scale", (1,), "ones")]

    def output_shape(self, input_shape):
        return input_shape

    def forward(self, weights, x, call):
        self.take(False)
        return x * weights["scale"], x

    def backward(self, weights, x, dy, gradients, call):
        self.take(True)
        gradients["scale"][...] = (dy * x).sum()
        return dy * weights["scale"]


def costs_of(network, x, clock):
    weights = network.initial_values(0)
    before = {name: value.copy() for name, value in weights.items()}
    profile = measure(network.graph, network.variables, weights, x, clock)
    assert all(np.array_equal(weights[name], before[name]) for name in before)
    return profile


def test_each_layer_has_the_median_of_its_own_seconds_without_the_first_pass():
    clock = Clock()
    first = Takes(clock, [0.4, 0.01, 0.02, 0.03, 0.01], [0.2, 0.04, 0.05, 0.1, 0.1], input_shape=(3,))
    network = Network([first, Takes(clock, [0.06, 0.01], [0.04, 0.02])])
    found = costs_of(network, np.ones((4, 3), np.float32), clock)
    # The passes take 0.7, 0.08, 0.1 and 0.16 s, with which the second is over.
    assert [(each.forward_s, each.backward_s) for each in found.layers] == [
        pytest.approx((0.02, 0.05)),
        pytest.approx((0.01, 0.02)),
    ]
    assert found.examples == 4


def test_a_pass_that_was_held_up_is_made_again_within_3_seconds():
    """Two passes of 1.2 s, and a third one: the median is of those behind the first."""
    clock = Clock()
    network = Network([Takes(clock, [1.1, 1.0, 0.1], [0.1], input_shape=(3,))])
    [only] = costs_of(network, np.ones((4, 3), np.float32), clock).layers
    assert only.forward_s == pytest.approx(0.55)
    assert clock.now_s == pytest.approx(2.5)


def test_a_slow_model_is_passed_once():
    clock = Clock()
    network = Network([Takes(clock, [2], [3], input_shape=(3,))])
    [only] = costs_of(network, np.ones((4, 3), np.float32), clock).layers
    assert (only.forward_s, only.backward_s, clock.now_s) == (2, 3, 5)


def test_bytes_are_those_of_the_variables_and_of_what_crosses_a_cut():
    frozen = L.Dense(10, trainable=False)
    network = Network([L.Input((6,)), L.Dense(7), frozen, L.BatchNormalization(), L.Dense(3)])
    found = costs_of(network, np.ones((5, 6), np.float32), Clock()).layers
    assert [each.parameter_bytes for each in found] == [4 * 49, 4 * 80, 4 * 40, 4 * 33]
    assert [each.trained_bytes for each in found] == [4 * 49, 0, 4 * 20, 4 * 33]
    assert [each.leaving_bytes for each in found] == [4 * 35, 4 * 50, 4 * 50, None]


@pytest.mark.parametrize("name", ZOO)
def test_a_layer_says_whether_the_model_can_be_cut_behind_it(name):
    network = ZOO[name]()
    found = costs_of(network, data_of(network)[0], Clock()).layers
    places = [number for number, step in enumerate(network.graph.steps) if step.inputs]
    assert [each.layers for each in found] == [(network.graph.steps[place].path,) for place in places]
    may = [obstacle(network.graph, place) is None for place in places[1:]]
    assert [each.leaving_bytes is not None for each in found] == [*may, False]


def large():
    """Layers with activations of some hundred kilobytes, which overheads of Python are small against."""
    return Network(
        [
            L.Input((32, 32, 3)),
            L.Conv2D(8, 3, activation="relu", padding="same"),
            L.MaxPooling2D(2),
            L.Conv2D(8, 3, activation="relu"),
            L.BatchNormalization(),
            L.Dropout(0.5),
            L.Flatten(),
            L.Dense(400, activation="tanh"),
            L.Dense(3),
        ]
    )


def traced_bytes(in_flight):
    """The memory of so many passes of a network, which have gone forward after as many have gone back."""
    network = large()
    x, weights = np.ones((16, 32, 32, 3), np.float32), weights_of(network)
    gradients = {spec.name: np.empty(spec.shape, np.float32) for spec in network.variables if spec.trainable}
    flying = []
    tracemalloc.start()
    try:
        for _ in range(2):
            for run in flying:
                run.backward([np.ones_like(run.outputs[0])], gradients)
            flying = [
                network.forward(weights, x, Going(True, np.random.default_rng(0))) for _ in range(in_flight)
            ]
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_what_is_kept_is_what_each_pass_in_flight_takes():
    found = costs_of(large(), np.ones((16, 32, 32, 3), np.float32), Clock()).layers
    of_one = (traced_bytes(4) - traced_bytes(2)) / 2
    assert sum(each.kept_bytes for each in found) == pytest.approx(of_one, rel=0.1)


def test_what_enters_a_layer_is_not_counted_with_it():
    x = np.ones((8, 1000), np.float32)
    [only] = costs_of(Network([L.Input((1000,)), L.Dense(3)]), x, Clock()).layers
    assert 4 * 8 * 3 <= only.kept_bytes < x.nbytes


def test_gradients_by_rows_take_no_array():
    network = Network([L.Input((5,), dtype="int32"), L.Embedding(9, 4), L.Flatten(), L.Dense(3)])
    found = costs_of(network, np.ones((2, 5), np.int32), Clock()).layers
    assert found[0].trained_bytes == 4 * 36
    assert not np.isnan([each.backward_s for each in found]).any()


def test_the_table_has_a_line_for_each_layer_and_fits_into_80_columns():
    lines = str(costs_of(large(), np.ones((2, 32, 32, 3), np.float32), Clock())).splitlines()
    assert [line.split()[0] for line in lines[2:]] == [
        *("conv2d", "max_pooling2d", "conv2d_1", "batch_normalization", "dropout", "flatten", "dense"),
        *("dense_1", "all"),
    ]
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == ["layer", "forward", "backward", "parameters", "kept", "leaves"]
