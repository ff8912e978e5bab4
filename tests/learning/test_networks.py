"""A network's variables, predictions and gradients."""

import json

import numpy as np
import pytest
from row_by_row import every_row

from dtrain.errors import InputError, SpecError
from dtrain.learning import layers
from dtrain.learning.graphs.networks import Network
from dtrain.learning.layers import (
    Add,
    BatchNormalization,
    Concatenate,
    Conv2D,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    GlobalAveragePooling1D,
    Input,
    Layer,
    MaxPooling2D,
    Weight,
)
from dtrain.learning.losses import MeanSquaredError, SparseCategoricalCrossentropy

MSE = MeanSquaredError()


class Scale(Layer):
    """The layer of one's own of the base class's docstring."""

    def declare(self, input_shape):
        return [Weight("scale", input_shape[-1:], "ones")]

    def forward(self, weights, x, call):
        return x * weights["scale"], x

    def backward(self, weights, x, dy, gradients, call):
        gradients["scale"][...] = (x * dy).reshape(-1, x.shape[-1]).sum(axis=0)
        return dy * weights["scale"]


def rng():
    return np.random.default_rng(0)


def places(network, leave_out=()):
    return {
        v.name: np.full(v.shape, np.nan, np.float32)
        for v in network.variables
        if v.trainable and v.name not in leave_out
    }


def step(network, weights, x, y, loss=MSE, **more):
    gradients = places(network, leave_out=more.pop("leave_out", ()))
    return network.loss_and_gradients(weights, x, y, loss, gradients, rng=rng(), **more), gradients


def assert_gradients_agree(network, weights, x, y, loss=MSE):
    """Along one random direction over all trained variables at once."""
    result, gradients = step(network, weights, x, y, loss)
    directions = {name: rng().choice([-1, 1], g.shape).astype(np.float32) for name, g in gradients.items()}

    def loss_at(t):
        moved = {name: value + np.float32(t) * directions.get(name, 0) for name, value in weights.items()}
        return step(network, moved, x, y, loss)[0].loss

    expected = (loss_at(5e-3) - loss_at(-5e-3)) / 1e-2
    found = sum(np.vdot(gradients[name], direction) for name, direction in directions.items())
    assert found == pytest.approx(expected, rel=2e-2, abs=1e-3)
    return result, gradients


def two_inputs():
    left, right = Input((3,), name="left"), Input((2,), name="right")
    hidden = Dense(4, activation="tanh")(left)
    skip = Add()([hidden, Dense(4)(right)])
    return Network.from_graph([left, right], [Dense(1)(Concatenate()([skip, hidden])), Dense(2)(skip)])


def test_names_are_kerass_and_numbered_per_network():
    for _ in range(2):
        network = Network([Dense(2), Dense(2, name="mine"), Dense(2)])
        network.build((3,))
        assert [v.name for v in network.variables] == [
            *("dense/kernel", "dense/bias", "mine/kernel", "mine/bias", "dense_1/kernel", "dense_1/bias")
        ]


def test_automatic_names_pass_by_given_ones():
    assert [layer.name for layer in Network([Dense(1), Dense(1, name="dense")]).layers[1:]] == [
        "dense_1",
        "dense",
    ]
    with pytest.raises(SpecError, match=r"unique.*same"):
        Network([Dense(1, name="same"), Dense(1, name="same")])


def test_initial_values_depend_on_seed_and_name_alone():
    small, large = Network([Dense(4, name="a")]), Network([Dense(3, name="b"), Dense(4, name="a")])
    small.build((3,))
    large.build((5,))
    ours, theirs = small.initial_values(7), large.initial_values(7)
    np.testing.assert_array_equal(ours["a/kernel"], theirs["a/kernel"])
    assert not np.array_equal(ours["a/kernel"], small.initial_values(8)["a/kernel"])
    assert all(value.dtype == np.float32 for value in theirs.values())


def test_a_stack_learns():
    network = Network([Dense(16, activation="relu", input_shape=(2,)), Dropout(0.1), Dense(2)])
    weights = network.initial_values(0)
    x = rng().uniform(-1, 1, (64, 2)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(int)
    loss = SparseCategoricalCrossentropy(from_logits=True)
    first = None
    for _ in range(300):
        result, gradients = step(network, weights, x, y, loss)
        first = first or result.loss
        for name, gradient in gradients.items():
            weights[name] -= 0.5 * gradient
    assert result.loss < 0.3 * first
    assert np.mean(network.predict(weights, x).argmax(axis=1) == y) > 0.95


def test_gradients_of_a_convolutional_stack():
    network = Network([Conv2D(3, 3, activation="tanh"), MaxPooling2D(), Flatten(), Dense(2)])
    network.build((6, 6, 1))
    x = rng().standard_normal((3, 6, 6, 1)).astype(np.float32)
    assert_gradients_agree(network, network.initial_values(0), x, np.ones((3, 2)))


def test_gradients_of_branches_skips_and_two_inputs_and_outputs():
    network = two_inputs()
    x = [np.ones((4, 3), np.float32), np.full((4, 2), 0.5, np.float32)]
    weights = network.initial_values(0)
    result, _ = assert_gradients_agree(network, weights, x, [np.zeros((4, 1)), np.ones((4, 2))])
    assert [output.shape for output in result.outputs] == [(4, 1), (4, 2)]
    by_name = network.predict(weights, {"right": x[1], "left": x[0]})
    np.testing.assert_array_equal(by_name[1], network.predict(weights, x)[1])


def test_a_layer_used_twice_adds_its_gradients():
    shared, x = Dense(3, activation="tanh", kernel_regularizer="l2"), Input((3,))
    network = Network.from_graph(x, Dense(1)(shared(shared(x))))
    assert [v.name for v in network.variables] == [
        "dense/kernel",
        "dense/bias",
        "dense_1/kernel",
        "dense_1/bias",
    ]
    assert_gradients_agree(network, network.initial_values(0), np.ones((2, 3), np.float32), np.zeros((2, 1)))


def test_a_layer_with_several_outputs_of_which_one_is_read():
    x = Input((4, 2))
    _, h, _ = layers.LSTM(3, return_state=True)(x)
    network = Network.from_graph(x, Dense(1)(h))
    data = rng().standard_normal((2, 4, 2)).astype(np.float32)
    assert_gradients_agree(network, network.initial_values(0), data, np.zeros((2, 1)))


def test_a_layer_of_ones_own():
    network = Network([Scale(input_shape=(2,)), Dense(1)])
    assert network.variables[0].name == "scale/scale"
    assert_gradients_agree(network, network.initial_values(0), np.ones((3, 2), np.float32), np.zeros((3, 1)))
    config = json.loads(json.dumps(network.get_config()))
    assert Network.from_config(config, custom_objects={"Scale": Scale}).variables == network.variables
    with pytest.raises(SpecError, match="unknown layer 'Scale'"):
        Network.from_config(config)


def test_regularizers_add_to_loss_and_gradient():
    network = Network([Dense(1, kernel_regularizer="l2", input_shape=(2,))])
    weights = network.initial_values(0)
    result, _ = assert_gradients_agree(network, weights, np.ones((2, 2), np.float32), np.zeros((2, 1)))
    penalty = 0.01 * float(np.sum(weights["dense/kernel"] ** 2))
    assert network.regularization_loss(weights) == pytest.approx(penalty, rel=1e-6)
    assert result.loss == pytest.approx(float(np.mean(result.outputs**2)) + penalty, rel=1e-5)


def test_batch_normalization_returns_its_updates_and_leaves_the_weights_alone():
    network = Network([BatchNormalization(momentum=0.9, input_shape=(2,))])
    weights = network.initial_values(0)
    x = np.array([[1, 2], [3, 6]], np.float32)
    result, _ = step(network, weights, x, x)
    np.testing.assert_allclose(result.state_updates["batch_normalization/moving_mean"], [0.2, 0.4], rtol=1e-6)
    np.testing.assert_array_equal(weights["batch_normalization/moving_mean"], [0, 0])
    assert [v.trainable for v in network.variables] == [True, True, False, False]


def test_frozen_layers_pass_gradients_on_without_having_any():
    network = Network([Dense(3, input_shape=(2,)), Dense(3, trainable=False, activation="tanh"), Dense(1)])
    _, gradients = assert_gradients_agree(
        network, network.initial_values(0), np.ones((2, 2), np.float32), np.zeros((2, 1))
    )
    assert set(gradients) == {"dense_2/kernel", "dense_2/bias", "dense/kernel", "dense/bias"}


def test_freezing_after_building_counts():
    network = Network([Dense(2, input_shape=(2,)), Dense(1)])
    network.layers[1].trainable = False
    assert [v.name for v in network.variables if v.trainable] == ["dense_1/kernel", "dense_1/bias"]
    step(network, network.initial_values(0), np.ones((2, 2)), np.zeros((2, 1)))


def test_embedding_gradients_are_rows_unless_an_array_is_passed():
    network = Network([Embedding(50, 3, input_shape=(4,)), GlobalAveragePooling1D(), Dense(1)])
    weights, ids = network.initial_values(0), np.array([[1, 7, 7, 2], [9, 1, 2, 3]])
    assert network.sparse_variables == ("embedding/embeddings",)
    dense, gradients = assert_gradients_agree(network, weights, ids, np.ones((2, 1)))
    sparse, others = step(network, weights, ids, np.ones((2, 1)), leave_out=network.sparse_variables)
    rows = sparse.row_gradients["embedding/embeddings"]
    assert rows.ids.tolist() == [1, 2, 3, 7, 9]
    np.testing.assert_array_equal(rows.dense((50, 3)), gradients["embedding/embeddings"])
    np.testing.assert_array_equal(others["dense/kernel"], gradients["dense/kernel"])
    assert dense.row_gradients == {}


def test_an_embedding_used_twice_sums_its_rows():
    table, x, y = Embedding(9, 2), Input((2,)), Input((3,))
    network = Network.from_graph([x, y], Dense(1)(Concatenate()([Flatten()(table(x)), Flatten()(table(y))])))
    weights, ids = network.initial_values(0), [np.array([[1, 2]]), np.array([[2, 2, 5]])]
    _, gradients = assert_gradients_agree(network, weights, ids, np.ones((1, 1)))
    rows = step(network, weights, ids, np.ones((1, 1)), leave_out=network.sparse_variables)[0].row_gradients
    assert rows["embedding/embeddings"].ids.tolist() == [1, 2, 5]
    np.testing.assert_allclose(
        rows["embedding/embeddings"].dense((9, 2)), gradients["embedding/embeddings"], rtol=1e-5
    )


def test_gradients_are_written_into_views_of_one_buffer():
    network = Network([Conv2D(2, 2, input_shape=(4, 4, 1)), Flatten(), Dense(2)])
    weights, x = network.initial_values(0), rng().standard_normal((3, 4, 4, 1))
    expected = step(network, weights, x, np.ones((3, 2)))[1]
    buffer = np.empty(sum(v.size for v in network.variables), np.float32)
    offsets = np.cumsum([0, *(v.size for v in network.variables)])
    views = {
        v.name: buffer[a:b].reshape(v.shape)
        for v, a, b in zip(network.variables, offsets, offsets[1:], strict=False)
    }
    network.loss_and_gradients(weights, x, np.ones((3, 2)), MSE, views, rng=rng())
    np.testing.assert_array_equal(
        buffer, np.concatenate([expected[v.name].ravel() for v in network.variables])
    )


def test_outputs_outlive_the_next_call():
    network = Network([Dense(2, input_shape=(2,))])
    weights = network.initial_values(0)
    first = network.predict(weights, np.ones((3, 2)))
    kept = first.copy()
    network.predict(weights, np.zeros((3, 2)))
    np.testing.assert_array_equal(first, kept)


def test_batches_of_any_size_order_and_dtype():
    network = Network([Conv2D(2, 3, padding="same", input_shape=(4, 4, 2)), Flatten(), Dense(3)])
    weights = network.initial_values(0)
    images = rng().integers(0, 255, (5, 4, 4, 2)).astype(np.uint8)
    expected = network.predict(weights, images.astype(np.float32))
    np.testing.assert_array_equal(network.predict(weights, images), expected)
    np.testing.assert_allclose(network.predict(weights, images[::-1]), expected[::-1], rtol=1e-4, atol=1e-3)
    fortran = np.asfortranarray(images.astype(np.float64))
    np.testing.assert_allclose(network.predict(weights, fortran), expected, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(network.predict(weights, images[:2]), expected[:2], rtol=1e-4, atol=1e-3)
    assert network.predict(weights, images[:0]).shape == (0, 3)


@every_row(
    "x, message",
    [
        (np.ones((2, 4)), r"dense \(Dense\): expected an input of shape \(batch, 3\), found \(2, 4\)"),
        (np.ones(3), r"dense \(Dense\): expected an input of shape"),
        (1.0, r"dense \(Dense\): expected an input of shape"),
        (np.array([["a", "b", "c"]]), r"dense \(Dense\): expected numbers, found dtype <U1"),
        (np.ones((0, 3)), "expected at least one example, found an empty batch"),
    ],
)
def test_wrong_data_is_refused_by_the_layers_name(x, message):
    network = Network([Dense(2, input_shape=(3,))])
    with pytest.raises(InputError, match=message):
        step(network, network.initial_values(0), x, np.zeros((len(np.atleast_1d(x)), 2)))


def test_wrong_numbers_of_inputs_are_refused():
    network = two_inputs()
    weights = network.initial_values(0)
    with pytest.raises(InputError, match="expected 2 inputs, found 1"):
        network.predict(weights, [np.ones((2, 3))])
    with pytest.raises(InputError, match=r"right \(InputLayer\): expected 2 examples, found 3"):
        network.predict(weights, [np.ones((2, 3)), np.ones((3, 2))])
    with pytest.raises(InputError, match="expected inputs named"):
        network.predict(weights, {"left": np.ones((2, 3))})
    with pytest.raises(InputError, match="expected targets for 2 outputs"):
        step(network, weights, [np.ones((2, 3)), np.ones((2, 2))], [np.ones((2, 1))])


@every_row(
    "stack, shape, message",
    [
        (
            [Conv2D(2, 5)],
            (4, 4, 1),
            r"conv2d \(Conv2D\): expected an input as long as its windows \(5, 5\), found shape",
        ),
        ([Dense(2), MaxPooling2D()], (4,), r"max_pooling2d \(MaxPooling2D\): expected 4 axes"),
        ([Dense(2)], (None,), r"dense \(Dense\): expected a known length"),
        (
            [layers.Reshape((5,))],
            (2, 3),
            r"reshape \(Reshape\): expected .* as \(batch, 5\), found \(batch, 2, 3\)",
        ),
        ([layers.LSTM(2)], (3,), r"lstm \(LSTM\): expected 3 axes"),
        (
            [BatchNormalization(axis=4)],
            (3,),
            r"batch_normalization \(BatchNormalization\): expected an input that has the axes",
        ),
        ([Conv2D(2, 1, groups=2)], (2, 2, 3), "expected a multiple of 2 channels"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_when_building(stack, shape, message):
    with pytest.raises(InputError, match=message):
        Network(stack).build(shape)


def test_an_unbuilt_network_says_so():
    with pytest.raises(InputError, match="not built"):
        Network([Dense(1)]).predict({}, np.ones((1, 1)))


def test_a_graph_must_be_whole():
    x, stray = Input((2,)), Input((2,))
    with pytest.raises(SpecError, match="depend on 2 inputs, but 1"):
        Network.from_graph(x, Add()([x, stray]))
    with pytest.raises(SpecError, match="expected results of Input"):
        Network.from_graph(x, np.ones(2))
    with pytest.raises(InputError, match=r"dense \(Dense\): expected one input, found 2"):
        Dense(1)([x, stray])


def test_lengths_may_vary_where_they_are_unknown():
    network = Network([layers.LSTM(3, input_shape=(None, 2)), Dense(1)])
    weights = network.initial_values(0)
    assert (
        network.predict(weights, np.ones((2, 5, 2))).shape
        == network.predict(weights, np.ones((2, 9, 2))).shape
        == (2, 1)
    )


def test_chance_comes_from_the_generator_that_is_passed():
    network = Network([Dense(8, input_shape=(8,)), Dropout(0.5)])
    weights, x = network.initial_values(0), np.ones((4, 8))
    first, second = (step(network, weights, x, np.zeros((4, 8)))[0].outputs for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert np.mean(first == 0) == pytest.approx(0.5, abs=0.25)
    assert not np.any(network.predict(weights, x) == 0)


def test_a_stack_may_begin_with_an_input():
    network = Network([Input(shape=(3,)), Dense(2)])
    assert network.built
    assert network.layers[0].name == "input"


def test_inputs_of_a_given_dtype():
    words = Input((2,), name="words", dtype="string")
    ids = layers.StringLookup(vocabulary=["a", "b"])(words)
    network = Network.from_graph(words, Dense(1)(Flatten()(Embedding(3, 2)(ids))))
    assert network.predict(network.initial_values(0), np.array([["a", "z"]])).shape == (1, 1)
    with pytest.raises(InputError, match=r"words \(InputLayer\): expected strings, found dtype float64"):
        network.predict(network.initial_values(0), np.ones((1, 2)))
    rounded = Network.from_graph(x := Input((1,), dtype="int32"), layers.Rescaling(2.0)(x))
    assert rounded.predict({}, np.array([[1.7]])).tolist() == [[2]]
