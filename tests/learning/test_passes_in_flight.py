"""Passes that are in flight at once: each gives what it would give alone, in whatever order they go back."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning.test_networks import two_inputs

from dtrain.errors import ProgramError
from dtrain.learning import layers as L
from dtrain.learning.graphs.graph import Submodel
from dtrain.learning.graphs.networks import Network
from dtrain.learning.graphs.passes import Going
from dtrain.learning.losses import MeanSquaredError

MSE = MeanSquaredError()


def stack(shape, *layers):
    return Network([L.Input(shape), *layers])


def branching():
    """Layers that are used twice, and outputs that are read twice."""
    x = L.Input((4,))
    shared = L.Dense(4, activation="tanh", kernel_regularizer="l2")
    once = shared(x)
    return Network.from_graph(x, [L.Dense(2)(shared(once)), L.Add()([once, L.BatchNormalization()(once)])])


def with_states():
    x = L.Input((5, 3))
    sequence, h, c = L.LSTM(4, return_sequences=True, return_state=True, dropout=0.5)(x)
    return Network.from_graph(x, [L.GRU(2)(sequence), L.Multiply()([h, c])])


def embedded():
    x = L.Input((3,))
    table = L.Embedding(8, 4)
    return Network.from_graph(x, L.SimpleRNN(3)(L.Add()([table(x), table(x)])))


def nested():
    """A model that stands in another twice, once as in inference."""
    inner = stack((4,), L.Dense(4, activation="relu"), L.BatchNormalization(), L.Dropout(0.5)).graph
    part, x = Submodel("inner", "Sequential", inner), L.Input((4,))
    [once], [again] = part([x]), part([L.Dense(4)(x)], training=False)
    return Network.from_graph(x, L.Dense(2)(L.Multiply()([once, again])))


NETWORKS = {
    "dense": lambda: stack((6,), L.Dense(8, activation="relu"), L.Dense(5, activation="gelu"), L.Dense(3)),
    "dropout": lambda: stack((6,), L.Dense(8, activation="relu"), L.Dropout(0.5), L.Dense(3)),
    "normalized": lambda: stack((6,), L.Dense(8), L.BatchNormalization(), L.LayerNormalization(), L.Dense(3)),
    "pooled": lambda: stack(
        (8, 8, 2), L.Conv2D(4, 3, activation="relu"), L.MaxPooling2D(), L.Flatten(), L.Dense(2)
    ),
    "images": lambda: stack(
        *((6, 6, 2), L.Conv2D(3, 3, padding="same"), L.MaxPooling2D(3, 1), L.Activation("tanh")),
        *(
            L.DepthwiseConv2D(2),
            L.AveragePooling2D(),
            L.Conv2DTranspose(2, 2, padding="same"),
            L.GlobalMaxPooling2D(),
        ),
    ),
    "sequences": lambda: stack(
        (7, 3), L.Conv1D(4, 3, padding="causal", activation="swish"), L.GlobalAveragePooling1D()
    ),
    "branching": branching,
    "recurrent": with_states,
    "embedding": embedded,
    "inputs": two_inputs,
    "nested": nested,
}


class Batch:
    """Random data of a number, which also says how many examples there are, and what chance does with
    them.
    """

    def __init__(self, network, number):
        rng = np.random.default_rng(number)
        n = 3 + 4 * (number % 3)
        self.chance = number
        self.x = [
            rng.integers(0, 8, (n, *shape)).astype(np.float32) / (1 if shape == (3,) else 8)
            for shape in network.input_shapes
        ]
        self.x = self.x if len(self.x) > 1 else self.x[0]
        self.y = [rng.normal(size=(n, *shape)).astype(np.float32) for shape in network.output_shapes]
        self.rng = np.random.default_rng(number)


def arrays(network):
    tables = network.sparse_variables
    return {
        v.name: np.full(v.shape, np.nan, np.float32)
        for v in network.variables
        if v.trainable and v.name not in tables
    }


def flat(found):
    """All arrays in what a call has given, by where they stand."""
    if isinstance(found, dict):
        return [array for key in sorted(found) for array in flat(found[key])]
    if isinstance(found, list | tuple):
        return [array for each in found for array in flat(each)]
    return [np.array(found.dense((8, 4)) if hasattr(found, "dense") else found)]


class Calls:
    """The calls of which a program is made, on one network."""

    def __init__(self, network, weights):
        self.network = network
        self.weights = weights
        self.flying = []

    def forward(self, number):
        batch = Batch(self.network, number)
        run = self.network.forward(self.weights, batch.x, Going(True, batch.rng))
        self.flying.append((number, batch, run))
        return number, "forward", [*map(np.array, run.outputs), *flat(run.state_updates())]

    def backward(self, choice):
        if not self.flying:
            return None
        number, batch, run = self.flying.pop(choice % len(self.flying))
        gradients = arrays(self.network)
        rows = run.backward([np.array(y) for y in batch.y], gradients)
        return number, "backward", flat([gradients, rows])

    def drop(self, choice):
        if self.flying:
            self.flying.pop(choice % len(self.flying))

    def predict(self, number):
        return number, "predict", flat(self.network.predict(self.weights, Batch(self.network, number).x))

    def evaluate(self, number):
        batch = Batch(self.network, number)
        found = self.network.loss_and_outputs(self.weights, batch.x, batch.y, [MSE] * len(batch.y))
        return number, "evaluate", flat([found.loss, found.outputs])

    def loss_and_gradients(self, number):
        batch, gradients = Batch(self.network, number), arrays(self.network)
        losses = [MSE] * len(batch.y)
        found = self.network.loss_and_gradients(
            self.weights, batch.x, batch.y, losses, gradients, rng=batch.rng
        )
        return (
            number,
            "loss_and_gradients",
            flat([gradients, found.row_gradients, found.loss, found.outputs, found.state_updates]),
        )


def alone(network, weights, number, what):
    """The same call, and what it needs before it, on a network that has computed nothing else."""
    calls = Calls(Network.from_config(network.get_config()), weights)
    if what == "backward":
        calls.forward(number)
        return calls.backward(0)[2]
    return getattr(calls, what)(number)[2]


NAMES = ("forward", "backward", "drop", "predict", "evaluate", "loss_and_gradients")


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
@settings(max_examples=8)
@given(program=st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 5)), min_size=3, max_size=10))
def test_calls_in_any_order_give_what_they_give_alone(network, program):
    network = network()
    weights = network.initial_values(1)
    calls = Calls(network, weights)
    for name, number in [("forward", 0), *program, ("backward", 0)]:
        done = getattr(calls, name)(number)
        if done is not None:
            number, what, found = done
            for ours, theirs in zip(found, alone(network, weights, number, what), strict=True):
                np.testing.assert_allclose(
                    ours, theirs, rtol=1e-5, atol=1e-6, err_msg=f"{what} of batch {number}"
                )


def test_passes_that_follow_each_other_use_the_same_memory():
    network = NETWORKS["pooled"]()
    calls = Calls(network, network.initial_values(1))

    def memory_of_a_pass():
        calls.forward(2)
        [place] = {output.ctypes.data for output in calls.flying[0][2].outputs}
        return place

    first = memory_of_a_pass()
    calls.backward(0)
    assert memory_of_a_pass() == first, "its pass has gone back"
    calls.drop(0)
    assert memory_of_a_pass() == first, "its pass was dropped"
    calls.predict(2)
    calls.loss_and_gradients(2)
    calls.backward(0)
    assert memory_of_a_pass() in (first, calls.flying[0][2].outputs[0].ctypes.data)


def test_a_pass_goes_back_once():
    network = NETWORKS["dense"]()
    batch = Batch(network, 0)
    run = network.forward(network.initial_values(1), batch.x, Going(True, batch.rng))
    run.backward([np.array(y) for y in batch.y], arrays(network))
    with pytest.raises(ProgramError, match="backward was called twice"):
        run.backward([np.array(y) for y in batch.y], arrays(network))


def test_threads_may_use_one_network():
    network = NETWORKS["pooled"]()
    weights = network.initial_values(1)
    calls = Calls(network, weights)
    expected = {number: alone(network, weights, number, "loss_and_gradients") for number in range(6)}

    def found(number):
        return number, [calls.loss_and_gradients(number)[2] for _ in range(10)]

    with ThreadPoolExecutor(4) as threads:
        for number, several in threads.map(found, [*range(6)] * 4):
            for each in several:
                for ours, theirs in zip(each, expected[number], strict=True):
                    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
