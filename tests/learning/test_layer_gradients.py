"""Every layer's gradients agree with finite differences, over random arguments and shapes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning.finite_differences import check_gradients, initial_weights, spaced

from dtrain.learning import layers
from dtrain.learning.core import activations
from dtrain.learning.layers.preprocessing.image_geometry import FILL_MODES, INTERPOLATIONS, METHODS

lengths = st.integers(1, 4)
batches = st.integers(1, 3)
smooth = st.sampled_from(["linear", "tanh", "sigmoid", "gelu", "softplus", "swish"])
booleans = st.booleans()
paddings = st.sampled_from(["valid", "same"])
pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
shapes = st.lists(lengths, min_size=1, max_size=3).map(tuple)
images = st.tuples(st.integers(5, 6), st.integers(5, 6), st.integers(1, 2))
series = st.tuples(st.integers(5, 7), lengths)


def conv(cls, **more):
    strides = st.one_of(
        st.fixed_dictionaries({"strides": pairs}),
        st.fixed_dictionaries({"dilation_rate": st.tuples(*[st.integers(1, 2)] * 2)}),
    )
    arguments = {
        "kernel_size": pairs,
        "padding": paddings,
        "use_bias": booleans,
        "activation": smooth,
        **more,
    }
    return st.tuples(
        st.tuples(st.fixed_dictionaries(arguments), strides).map(lambda parts: cls(**parts[0], **parts[1])),
        images,
    )


def recurrent(cls, **more):
    arguments = {
        "units": lengths,
        "use_bias": booleans,
        "activation": smooth,
        "return_sequences": booleans,
        "return_state": booleans,
        "go_backwards": booleans,
        "dropout": st.sampled_from([0.0, 0.4]),
        "recurrent_dropout": st.sampled_from([0.0, 0.4]),
        **more,
    }
    return st.tuples(st.builds(cls, **arguments), st.tuples(lengths, lengths))


def pooling(cls, windows, data):
    return st.tuples(st.builds(cls, pool_size=windows, strides=st.none() | windows, padding=paddings), data)


def merging(cls, least=2, most=3):
    """Inputs of one shape, the last of which may broadcast along the last axis."""
    many = st.tuples(shapes, st.integers(least, most), booleans)
    return st.tuples(
        st.builds(cls), many.map(lambda m: [m[0]] * (m[1] - 1) + [(*m[0][:-1], 1) if m[2] else m[0]])
    )


normalized = st.tuples(st.integers(2, 4), st.integers(2, 4), st.integers(2, 4))
fills = st.sampled_from(list(FILL_MODES))
rates = st.sampled_from([0.0, 0.3])
attended = st.tuples(lengths, lengths, lengths, booleans).map(
    lambda n: [(n[0], n[2]), (n[1], n[2])] + [(n[1], n[2])] * n[3]
)
CASES = {
    "InputLayer": st.tuples(st.builds(layers.InputLayer), shapes),
    "Dense": st.tuples(st.builds(layers.Dense, lengths, smooth, booleans), shapes),
    "Activation": st.tuples(
        st.builds(layers.Activation, st.sampled_from([a.name for a in activations.CATALOGUE])), shapes
    ),
    "ReLU": st.tuples(
        st.builds(layers.ReLU, max_value=st.none() | st.just(3.0), negative_slope=st.just(0.1)), shapes
    ),
    "LeakyReLU": st.tuples(st.builds(layers.LeakyReLU), shapes),
    "ELU": st.tuples(st.builds(layers.ELU, alpha=st.sampled_from([0.5, 1.0])), shapes),
    "PReLU": st.tuples(st.builds(layers.PReLU, shared_axes=st.none() | st.just([1])), shapes),
    "Softmax": st.tuples(st.builds(layers.Softmax, axis=st.sampled_from([-1, 1])), shapes),
    "Flatten": st.tuples(st.builds(layers.Flatten), shapes),
    "Reshape": st.tuples(st.builds(layers.Reshape, st.just((-1, 2))), st.tuples(lengths, st.just(4))),
    "Permute": st.tuples(st.builds(layers.Permute, st.permutations([1, 2, 3])), images),
    "RepeatVector": st.tuples(st.builds(layers.RepeatVector, lengths), st.tuples(lengths)),
    "Dropout": st.tuples(st.builds(layers.Dropout, st.sampled_from([0.0, 0.3, 1.0])), shapes),
    "ZeroPadding2D": st.tuples(
        st.builds(layers.ZeroPadding2D, st.integers(0, 2) | pairs | st.tuples(pairs, pairs)), images
    ),
    "UpSampling2D": st.tuples(st.builds(layers.UpSampling2D, st.integers(1, 3) | pairs), images),
    "Conv2D": conv(layers.Conv2D, filters=st.sampled_from([2, 4])),
    "Conv1D": st.tuples(
        st.builds(
            layers.Conv1D,
            filters=lengths,
            kernel_size=st.integers(1, 3),
            strides=st.integers(1, 2),
            padding=st.sampled_from(["valid", "same", "causal"]),
            activation=smooth,
        ),
        series,
    ),
    "DepthwiseConv2D": conv(layers.DepthwiseConv2D, depth_multiplier=st.integers(1, 2)),
    "Conv2DTranspose": conv(layers.Conv2DTranspose, filters=st.integers(1, 3)),
    "MaxPooling1D": pooling(layers.MaxPooling1D, st.integers(1, 3), series),
    "MaxPooling2D": pooling(layers.MaxPooling2D, pairs, images),
    "AveragePooling1D": pooling(layers.AveragePooling1D, st.integers(1, 3), series),
    "AveragePooling2D": pooling(layers.AveragePooling2D, pairs, images),
    "GlobalMaxPooling1D": st.tuples(st.builds(layers.GlobalMaxPooling1D, keepdims=booleans), series),
    "GlobalMaxPooling2D": st.tuples(st.builds(layers.GlobalMaxPooling2D, keepdims=booleans), images),
    "GlobalAveragePooling1D": st.tuples(st.builds(layers.GlobalAveragePooling1D, keepdims=booleans), series),
    "GlobalAveragePooling2D": st.tuples(st.builds(layers.GlobalAveragePooling2D, keepdims=booleans), images),
    "BatchNormalization": st.tuples(
        st.builds(
            layers.BatchNormalization, axis=st.sampled_from([-1, 1, 2]), center=booleans, scale=booleans
        ),
        normalized,
    ),
    "LayerNormalization": st.tuples(
        st.builds(
            layers.LayerNormalization, axis=st.sampled_from([-1, 1, (1, 3)]), center=booleans, scale=booleans
        ),
        normalized,
    ),
    "SimpleRNN": recurrent(layers.SimpleRNN),
    "LSTM": recurrent(layers.LSTM, unit_forget_bias=booleans),
    "GRU": recurrent(layers.GRU, reset_after=booleans),
    "RNN": st.tuples(
        st.builds(
            layers.RNN,
            st.builds(layers.LSTMCell, lengths, recurrent_dropout=st.sampled_from([0.0, 0.4]))
            | st.builds(layers.GRUCell, lengths, dropout=st.sampled_from([0.0, 0.4])),
            return_sequences=booleans,
            return_state=booleans,
            go_backwards=booleans,
        ),
        st.tuples(lengths, lengths),
    ),
    "Bidirectional": st.tuples(
        st.builds(
            layers.Bidirectional,
            st.builds(layers.LSTM, lengths, return_sequences=booleans, return_state=booleans),
            st.sampled_from(["concat", "sum", "ave", "mul", None]),
        ),
        st.tuples(lengths, lengths),
    ),
    "TimeDistributed": st.tuples(
        st.builds(layers.TimeDistributed, st.builds(layers.Dense, lengths, smooth)),
        st.tuples(lengths, lengths, lengths),
    ),
    "MultiHeadAttention": st.tuples(
        st.builds(
            layers.MultiHeadAttention,
            *(lengths, lengths, st.none() | lengths, st.sampled_from([0.0, 0.4]), booleans),
        ),
        attended,
    ),
    "Attention": st.tuples(
        st.builds(
            layers.Attention,
            booleans,
            dropout=st.sampled_from([0.0, 0.4]),
        ),
        attended,
    ),
    "Dot": st.tuples(
        st.builds(layers.Dot, st.just((2, 1)), booleans),
        st.tuples(lengths, lengths, st.lists(lengths, max_size=1)).map(
            lambda n: [(n[0], n[1]), (n[1], *n[2])]
        ),
    ),
    "GaussianNoise": st.tuples(st.builds(layers.GaussianNoise, st.just(0.5)), shapes),
    "SpatialDropout1D": st.tuples(st.builds(layers.SpatialDropout1D, rates), series),
    "SpatialDropout2D": st.tuples(st.builds(layers.SpatialDropout2D, rates), images),
    "Cropping1D": st.tuples(st.builds(layers.Cropping1D, st.integers(0, 2)), series),
    "Cropping2D": st.tuples(
        st.builds(layers.Cropping2D, st.integers(0, 2) | st.just((1, 2)) | st.just(((1, 2), (0, 3)))), images
    ),
    "ZeroPadding1D": st.tuples(st.builds(layers.ZeroPadding1D, st.integers(0, 2) | pairs), series),
    "UpSampling1D": st.tuples(st.builds(layers.UpSampling1D, st.integers(1, 3)), series),
    "Conv1DTranspose": st.tuples(
        st.builds(
            layers.Conv1DTranspose,
            lengths,
            st.integers(1, 3),
            strides=st.integers(1, 2),
            padding=paddings,
            activation=smooth,
        ),
        series,
    ),
    "DepthwiseConv1D": st.tuples(
        st.builds(layers.DepthwiseConv1D, st.integers(1, 3), padding=paddings, activation=smooth), series
    ),
    "SeparableConv1D": st.tuples(
        st.builds(layers.SeparableConv1D, lengths, st.integers(1, 3), padding=paddings, use_bias=booleans),
        series,
    ),
    "SeparableConv2D": conv(
        layers.SeparableConv2D, filters=st.integers(1, 3), depth_multiplier=st.integers(1, 2)
    ),
    "Masking": st.tuples(st.builds(layers.Masking), shapes),
    "Rescaling": st.tuples(st.builds(layers.Rescaling, st.just(0.5), st.just(-1.0)), shapes),
    "Normalization": st.tuples(
        st.builds(
            layers.Normalization, axis=st.none(), mean=st.just(1.0), variance=st.just(4.0), invert=booleans
        ),
        shapes,
    ),
    "Resizing": st.tuples(
        st.builds(layers.Resizing, lengths, lengths, st.sampled_from(METHODS), booleans), images
    ),
    "CenterCrop": st.tuples(st.builds(layers.CenterCrop, lengths, lengths), images),
    "RandomCrop": st.tuples(st.builds(layers.RandomCrop, lengths, lengths), images),
    "RandomFlip": st.tuples(st.builds(layers.RandomFlip), images),
    "RandomTranslation": st.tuples(
        st.builds(layers.RandomTranslation, st.just(0.4), st.just(0.4), fills), images
    ),
    "RandomRotation": st.tuples(st.builds(layers.RandomRotation, st.just(0.3), fills), images),
    "RandomZoom": st.tuples(
        st.builds(
            layers.RandomZoom, st.just(0.4), fill_mode=fills, interpolation=st.sampled_from(INTERPOLATIONS)
        ),
        images,
    ),
    "RandomBrightness": st.tuples(
        st.builds(layers.RandomBrightness, st.just(0.5), value_range=st.just((-9, 9))), images
    ),
    "Add": merging(layers.Add),
    "Subtract": merging(layers.Subtract, most=2),
    "Multiply": merging(layers.Multiply),
    "Average": merging(layers.Average),
    "Maximum": merging(layers.Maximum),
    "Minimum": merging(layers.Minimum),
    "Concatenate": st.tuples(
        st.builds(layers.Concatenate),
        st.lists(lengths, min_size=1, max_size=3).map(lambda n: [(2, k) for k in n]),
    ),
}
WITHOUT_INPUT_GRADIENT = {
    *("Embedding", "StringLookup", "IntegerLookup", "CategoryEncoding", "Discretization"),
    *("Hashing", "HashedCrossing", "TextVectorization"),
    *("GRUCell", "LSTMCell", "SimpleRNNCell"),  # in RNN
    "RandomContrast",  # below, of values that are not cut
    *("TensorFunction", "Lambda"),  # in tests/learning/test_tensor_functions.py
}


def test_every_layer_is_checked():
    assert set(CASES) | WITHOUT_INPUT_GRADIENT == set(layers.classes()) - {"Layer"}


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, max_examples=8)
@given(data=st.data())
def test_gradients_agree_with_finite_differences(name, data):
    layer, shape = data.draw(CASES[name])
    batch, rng = (
        data.draw(batches if name != "BatchNormalization" else st.integers(3, 4)),
        np.random.default_rng(0),
    )
    if isinstance(shape, list):
        parts = np.split(
            spaced((sum(batch * int(np.prod(s)) for s in shape),), rng),
            np.cumsum([batch * int(np.prod(s)) for s in shape])[:-1],
        )
        x = [part.reshape(batch, *s) for part, s in zip(parts, shape, strict=True)]
    else:
        x = spaced((batch, *shape), rng)
    check_gradients(layer, x, initial_weights(layer, shape, rng))


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, max_examples=3)
@given(data=st.data())
def test_a_batch_may_be_empty_when_predicting(name, data):
    layer, shape = data.draw(CASES[name])
    several = isinstance(shape, list)
    x = [np.zeros((0, *each), np.float32) for each in (shape if several else [shape])]
    y, _ = layer.forward(
        initial_weights(layer, shape, np.random.default_rng(0)), x if several else x[0], layers.Call()
    )
    shapes = layer.output_shape(shape)
    assert [each.shape for each in (y if isinstance(y, list) else [y])] == [
        (0, *each) for each in (shapes if isinstance(shapes, list) else [shapes])
    ]


def test_contrast():
    x = 128 + 40 * spaced((2, 3, 4, 2), np.random.default_rng(0))
    check_gradients(layers.RandomContrast(0.3), x, {})


@settings(deadline=None, max_examples=5)
@given(groups=st.integers(1, 3), per_group=st.integers(1, 2), bias=booleans)
def test_grouped_convolution(groups, per_group, bias):
    layer = layers.Conv2D(groups * per_group, 2, groups=groups, use_bias=bias)
    rng = np.random.default_rng(0)
    x = spaced((2, 3, 4, 2 * groups), rng)
    weights = initial_weights(layer, x.shape[1:], rng)
    check_gradients(layer, x, weights)
    y, _ = layer.forward(weights, x, layers.Call())
    for group in range(groups):
        alone = layers.Conv2D(per_group, 2, use_bias=bias)
        outer = slice(group * per_group, (group + 1) * per_group)
        part, _ = alone.forward(
            {n: w[..., outer] for n, w in weights.items()}, x[..., 2 * group : 2 * group + 2], layers.Call()
        )
        np.testing.assert_allclose(y[..., outer], part, rtol=1e-5, atol=1e-6)


def test_batch_normalization_by_moving_averages():
    layer, rng = layers.BatchNormalization(), np.random.default_rng(0)
    x = spaced((3, 4), rng)
    check_gradients(layer, x, initial_weights(layer, (4,), rng), training=False)
    check_gradients(layers.BatchNormalization(trainable=False), x, initial_weights(layer, (4,), rng))
