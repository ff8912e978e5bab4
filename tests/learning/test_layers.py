"""What single layers do besides their gradients, which test_layer_gradients.py checks, and their agreement
with Keras.
"""

import json

import numpy as np
import pytest
from learning.finite_differences import initial_weights
from row_by_row import every_row

from dtrain.errors import InputError, ProgramError, SpecError
from dtrain.learning import layers
from dtrain.learning.core.activations import Activation
from dtrain.learning.core.configuration import to_data
from dtrain.learning.core.initializers import HeNormal
from dtrain.learning.layers import Call


def rng():
    return np.random.default_rng(0)


def forward(layer, x, **call):
    x = np.asarray(x)
    return layer.forward(initial_weights(layer, x.shape[1:], rng()), x, Call(rng=rng(), **call))[0]


@every_row("name", sorted(set(layers.classes()) - {"Layer", "Lambda"}))
def test_configs_are_json_and_round_trip(name):
    required = {
        "Dense": {
            "units": 3,
            "kernel_initializer": HeNormal(seed=2),
            "kernel_regularizer": "l1_l2",
            "activation": "gelu",
        },
        "Activation": {"activation": "relu"},
        "Reshape": {"target_shape": (2, -1)},
        "Permute": {"dims": (2, 1)},
        "RepeatVector": {"n": 2},
        "Dropout": {"rate": 0.25},
        "Conv1D": {"filters": 2, "kernel_size": 3},
        "Conv2D": {"filters": 2, "kernel_size": (3, 2), "strides": 2},
        "Conv2DTranspose": {"filters": 2, "kernel_size": 3},
        "DepthwiseConv2D": {"kernel_size": 3},
        "Embedding": {"input_dim": 3, "output_dim": 2},
        **{each: {"units": 2} for each in ("LSTM", "LSTMCell", "GRUCell", "SimpleRNNCell")},
        "Dot": {"axes": (2, -1), "normalize": True},
        "MultiHeadAttention": {"num_heads": 2, "key_dim": 3, "value_dim": 1},
        **{f"SpatialDropout{rank}D": {"rate": 0.25} for rank in (1, 2)},
        "GaussianNoise": {"stddev": 0.5},
        **{f"SeparableConv{rank}D": {"filters": 2, "kernel_size": 3} for rank in (1, 2)},
        "DepthwiseConv1D": {"kernel_size": 3},
        "Conv1DTranspose": {"filters": 2, "kernel_size": 3},
        "RNN": {"cell": layers.GRUCell(2)},
        "Bidirectional": {"layer": layers.LSTM(2), "merge_mode": "mul"},
        "TimeDistributed": {"layer": layers.Dense(2, activation="relu")},
        "GRU": {"units": 2},
        "SimpleRNN": {"units": 2},
        "Rescaling": {"scale": 0.5},
        "CategoryEncoding": {"num_tokens": 3},
        **{each: {"height": 2, "width": 3} for each in ("CenterCrop", "RandomCrop", "Resizing")},
        **{f"Random{each}": {"factor": (0.1, 0.5)} for each in ("Rotation", "Contrast", "Brightness")},
        "RandomTranslation": {"height_factor": 0.5, "width_factor": (-0.5, 0)},
        "RandomZoom": {"height_factor": 0.5, "seed": 3},
        "Hashing": {"num_bins": 3, "salt": (1, 2)},
        "HashedCrossing": {"num_bins": 3},
        "Discretization": {"bin_boundaries": (0, 1.5)},
        "TextVectorization": {"ngrams": 2, "vocabulary": ["a"]},
        "TensorFunction": {"function": "reduce_sum", "arguments": [{"input": 0}, 1]},
    }
    layer = layers.classes()[name](**required.get(name, {}), name="mine", input_shape=(4, 2))
    config = json.loads(json.dumps(layer.get_config()))
    again = layers.classes()[name].from_config(config)
    assert again.get_config() == config
    assert again.name == "mine"


def test_names_are_kerass():
    names = [
        layers.classes()[name].__new__(layers.classes()[name]).base_name
        for name in ("MaxPooling2D", "LSTM", "PReLU", "Conv2D")
    ]
    assert names == ["max_pooling2d", "lstm", "p_re_lu", "conv2d"]


def test_a_layer_is_called_on_an_array_and_on_nothing_else():
    dense = layers.Dense(2, "relu", kernel_initializer="ones")
    np.testing.assert_array_equal(dense([[1.0, 2.0]]), [[3.0, 3.0]])
    with pytest.raises(ProgramError, match=r"dense \(Dense\): expected an array or a symbol, found 'x'"):
        dense("x")
    for second in (layers.Input((2,)), np.ones((1, 2))):
        with pytest.raises(ProgramError, match="found another tensor; give several inputs as one list"):
            dense(second, second)


@every_row(
    "make",
    [
        lambda: layers.Dense(0),
        lambda: layers.Dense(1, activation="rely"),
        lambda: layers.Dense(1, activation=np.tanh),
        lambda: layers.Dropout(1.5),
        lambda: layers.Conv2D(3, 2, groups=2),
        lambda: layers.Conv2D(1, (2, 2, 2)),
        lambda: layers.Conv2D(1, 0),
        lambda: layers.Conv2D(1, 2, padding="causal"),
        lambda: layers.Conv2D(1, 2, data_format="channels_first"),
        lambda: layers.MaxPooling2D(padding="full"),
        lambda: layers.ZeroPadding2D(((1, 2), 3, 4)),
        lambda: layers.LSTM(2, dropout=1.0),
        lambda: layers.Normalization(mean=1.0),
        lambda: layers.StringLookup(vocabulary=["a", "a"]),
        lambda: layers.StringLookup(vocabulary=["[UNK]", "a"], mask_token=""),
        lambda: layers.StringLookup(num_oov_indices=-1),
        lambda: layers.StringLookup(output_mode="binary"),
    ],
)
def test_wrong_arguments_are_refused(make):
    with pytest.raises(SpecError):
        make()


def test_an_activation_of_ones_own():
    square = Activation("square", lambda x: x * x, lambda x, y, dy: 2 * x * dy, needs_x=True)
    layer = layers.Activation(square)
    y, cache = layer.forward({}, np.array([[3.0]], np.float32), Call())
    assert (y.item(), layer.backward({}, cache, np.ones((1, 1), np.float32), {}, Call()).item()) == (9, 6)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("padding", ["valid", "same"])
def test_large_batches_are_convolved_in_parts(channels, padding):
    """The windows of 40 images take several times the memory that is laid out at once; the parts must add
    up.
    """
    layer = layers.Conv2D(5, 3, padding=padding, activation="relu")
    x = rng().standard_normal((40, 28, 28, channels)).astype(np.float32)
    weights = initial_weights(layer, x.shape[1:], rng())
    y, cache = layer.forward(weights, x, call := Call())
    dy = rng().standard_normal(y.shape).astype(np.float32)
    gradients = {name: np.empty_like(value) for name, value in weights.items()}
    dx = layer.backward(weights, cache, dy.copy(), gradients, call)
    sums = {name: np.zeros_like(value) for name, value in weights.items()}
    for k in range(len(x)):
        y_k, cache_k = layer.forward(weights, x[k : k + 1], call_k := Call())
        np.testing.assert_allclose(y[k], y_k[0], rtol=1e-4, atol=1e-5)
        part = {name: np.empty_like(value) for name, value in weights.items()}
        np.testing.assert_allclose(
            layer.backward(weights, cache_k, dy[k : k + 1].copy(), part, call_k)[0],
            dx[k],
            rtol=1e-4,
            atol=1e-4,
        )
        for name in sums:
            sums[name] += part[name]
    for name in sums:
        np.testing.assert_allclose(gradients[name], sums[name], rtol=1e-3, atol=1e-2)


def test_scratch_memory_is_reused_and_grows():
    call = Call()
    first = call.scratch("a", (2, 3))
    assert np.shares_memory(first, call.scratch("a", (3, 2)))
    assert not np.shares_memory(first, call.scratch("b", (3, 2)))
    assert call.scratch("a", (10,)).shape == (10,)


def test_dropout_keeps_the_mean_and_drops_whole_lines():
    x = np.ones((200, 50), np.float32)
    y = forward(layers.Dropout(0.4), x, training=True)
    assert set(np.unique(y)) == {0, np.float32(1 / 0.6)}
    assert y.mean() == pytest.approx(1, abs=0.02)
    lines = forward(layers.Dropout(0.4, noise_shape=(None, 1)), x, training=True)
    assert np.all(lines == lines[:, :1])
    np.testing.assert_array_equal(forward(layers.Dropout(1.0), x, training=True), np.zeros_like(x))
    with pytest.raises(SpecError, match="random generator"):
        layers.Dropout(0.5).forward({}, x, Call(training=True))


def test_maximum_and_minimum():
    a, b = np.array([[1.0, 5.0]], np.float32), np.array([[3.0, 2.0]], np.float32)
    assert layers.Maximum().forward({}, [a, b], Call())[0].tolist() == [[3, 5]]
    assert layers.Minimum().forward({}, [a, b], Call())[0].tolist() == [[1, 2]]


@every_row(
    "layer, shapes, message",
    [
        (layers.Add(), [(2,), (3,)], r"add \(Add\): expected inputs that broadcast"),
        (layers.Add(), [(2,)], "expected at least 2 inputs"),
        (layers.Subtract(), [(2,)] * 3, "expected 2 inputs, found 3"),
        (layers.Concatenate(), [(2, 3), (4, 3)], "differ along the axis only"),
        (layers.Concatenate(axis=0), [(2,), (2,)], "an axis of 2 axes but the batch's"),
    ],
)
def test_inputs_that_do_not_fit_together_are_refused(layer, shapes, message):
    with pytest.raises(InputError, match=message):
        layer.output_shape(shapes)


def test_merging_shapes_that_are_partly_unknown():
    assert layers.Add().output_shape([(None, 3), (1, 3)]) == (None, 3)
    assert layers.Add().output_shape([(3,), (2, 1)]) == (2, 3)
    assert layers.Concatenate(axis=1).output_shape([(None, 3), (2, 3)]) == (None, 3)


@pytest.mark.parametrize("ids", [[[0, 9]], [[-1, 2]]])
def test_ids_outside_an_embedding_are_refused(ids):
    with pytest.raises(
        InputError, match=r"embedding \(Embedding\): expected integers from 0 to 4, found (9|-1)"
    ):
        forward(layers.Embedding(5, 2), ids)


def test_ids_of_an_embedding_may_be_floats_but_not_strings():
    assert forward(layers.Embedding(5, 2), np.array([[1.0, 2.0]], np.float32)).shape == (1, 2, 2)
    with pytest.raises(InputError, match="expected integers, found dtype <U1"):
        forward(layers.Embedding(5, 2), np.array([["a"]]))


def test_the_forget_gate_begins_open():
    bias = initial_values_of(layers.LSTM(2), (3, 4))["bias"]
    assert bias.tolist() == [0, 0, 1, 1, 0, 0, 0, 0]
    assert not initial_values_of(layers.LSTM(2, unit_forget_bias=False), (3, 4))["bias"].any()


def initial_values_of(layer, shape):
    from dtrain.learning.core import initializers

    return {w.name: initializers.get(w.initializer)(w.shape, rng()) for w in layer.declare(shape)}


def test_recurrent_layers_return_sequences_and_states():
    x = rng().standard_normal((2, 5, 3)).astype(np.float32)
    sequence, h, c = forward(layers.LSTM(4, return_sequences=True, return_state=True), x)
    last = forward(layers.LSTM(4), x)
    np.testing.assert_array_equal(sequence[:, -1], last)
    np.testing.assert_array_equal(h, last)
    assert c.shape == (2, 4)
    backwards = forward(layers.GRU(4, go_backwards=True), x)
    np.testing.assert_allclose(backwards, forward(layers.GRU(4), x[:, ::-1]), rtol=1e-5, atol=1e-6)


def test_normalization_learns_mean_and_variance():
    data = rng().normal([3, -2], [2, 5], (500, 2)).astype(np.float32)
    layer = layers.Normalization()
    with pytest.raises(SpecError, match="call adapt"):
        forward(layer, data)
    layer.adapt(data)
    y = forward(layer, data)
    np.testing.assert_allclose(y.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(y.std(axis=0), 1, atol=1e-4)
    again = layers.Normalization.from_config(json.loads(json.dumps(layer.get_config())))
    np.testing.assert_array_equal(forward(again, data), y)
    undone = layers.Normalization(mean=layer.mean, variance=layer.variance, invert=True)
    np.testing.assert_allclose(forward(undone, y), data, rtol=1e-4, atol=1e-4)
    whole = layers.Normalization(axis=None)
    whole.adapt([[1, 2], [3, 6]])
    in_batches = layers.Normalization(axis=None)
    in_batches.adapt(np.array([batch], np.float32) for batch in ([1, 2], [3, 6]))
    assert (in_batches.mean, in_batches.variance) == (whole.mean, whole.variance)
    assert (whole.mean, whole.variance) == (3, 3.5)
    with pytest.raises(InputError, match="at least one example"):
        whole.adapt([])


def test_a_constant_feature_is_normalized_without_dividing_by_zero():
    layer = layers.Normalization()
    layer.adapt(np.ones((4, 1)))
    assert forward(layer, np.ones((2, 1), np.float32)).tolist() == [[0], [0]]


def test_string_lookup():
    layer = layers.StringLookup(vocabulary=["a", "b", "c"])
    assert forward(layer, [["c", "x"], ["a", "b"]]).tolist() == [[3, 0], [1, 2]]
    assert layer.get_vocabulary() == ["[UNK]", "a", "b", "c"]
    assert layers.StringLookup(vocabulary=["", "[UNK]", "a"], mask_token="").get_vocabulary() == [
        "",
        "[UNK]",
        "a",
    ]
    assert forward(layers.StringLookup(vocabulary=["a"], mask_token=""), [["", "a", "x"]]).tolist() == [
        [0, 2, 1]
    ]
    back = layers.StringLookup(vocabulary=["a", "b", "c"], invert=True)
    assert forward(back, [[3, 0, 9]]).tolist() == [["c", "[UNK]", "[UNK]"]]
    strict = layers.StringLookup(vocabulary=["a"], num_oov_indices=0)
    with pytest.raises(InputError, match="expected a token of the vocabulary, found 'x'"):
        forward(strict, [["x"]])
    with pytest.raises(SpecError, match="call adapt"):
        forward(layers.StringLookup(), [["x"]])


def test_string_lookup_learns_the_most_frequent_tokens_first():
    layer = layers.StringLookup(max_tokens=4)
    layer.adapt([["b", "a", "c"], ["d", "c", "a"], ["c", "[UNK]", b"d"]])
    assert layer.get_vocabulary() == ["[UNK]", "c", "d", "a"]  # d before a: equals go from high to low
    again = layers.StringLookup.from_config(json.loads(json.dumps(layer.get_config())))
    assert again.get_vocabulary() == layer.get_vocabulary()


def test_integer_lookup():
    layer = layers.IntegerLookup(vocabulary=[12, 36], num_oov_indices=2)
    assert forward(layer, [[12, 36], [7, 8]]).tolist() == [[2, 3], [1, 0]]
    assert layer.get_vocabulary() == [-1, -1, 12, 36]
    with pytest.raises(InputError, match=r"expected integers, found 1\.5"):
        forward(layer, [[1.5]])
    learned = layers.IntegerLookup(mask_token=0)
    learned.adapt([0, 3, 3, 5])
    assert learned.get_vocabulary() == [0, -1, 3, 5]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("one_hot", None), ("multi_hot", [[1, 1, 0], [0, 1, 1]]), ("count", [[1, 2, 0], [0, 1, 1]])],
)
def test_lookups_can_encode(mode, expected):
    layer = layers.StringLookup(vocabulary=["a", "b"], mask_token="", output_mode=mode)
    x = np.array([["x", "a", "a"], ["", "b", "a"]])
    y = forward(layer, x)
    assert y.shape[1:] == layer.output_shape(x.shape[1:])
    if expected is None:
        assert y[1].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 0]]
        assert forward(layer, x[:, 2:]).tolist() == [[0, 1, 0], [0, 1, 0]]
    else:
        assert y.tolist() == expected


def test_what_cannot_be_written_as_data_is_refused():
    with pytest.raises(SpecError, match="cannot be written as data"):
        to_data({"f": lambda: None})
