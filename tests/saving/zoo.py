"""One small model for every layer of `dt.layers`, with random shapes: what saving and exporting are tried
on.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import dtrain as dt
from dtrain.strategies.single import SingleStrategy

L = dt.layers
Layers = Callable[[np.random.Generator], tuple[list, tuple]]


def pick(rng, *choices):
    return choices[rng.integers(len(choices))]


def size(rng, low=1, high=6):
    return int(rng.integers(low, high))


def image(rng, low=5, high=9):
    return size(rng, low, high), size(rng, low, high), size(rng, 1, 5)


def padded(rng):
    padding = pick(rng, "same", "valid")
    strides, dilation = pick(rng, (1, 1), (2, 1), (1, 2))
    return {
        "padding": padding,
        "strides": strides,
        "dilation_rate": dilation,
        "use_bias": pick(rng, True, False),
    }


def activation(rng):
    return pick(rng, None, "relu", "tanh", "sigmoid", "gelu", "swish")


def conv2d(rng):
    groups = size(rng, 1, 4)
    shape = (*image(rng)[:2], groups * size(rng, 1, 3))
    kernel = (size(rng, 1, 4), size(rng, 1, 4))
    return [
        L.Conv2D(groups * size(rng, 1, 3), kernel, groups=groups, activation=activation(rng), **padded(rng))
    ], shape


def conv1d(rng):
    keywords = padded(rng) | {"padding": pick(rng, "same", "valid", "causal")}
    return [L.Conv1D(size(rng), size(rng, 1, 4), activation=activation(rng), **keywords)], (
        size(rng, 6, 9),
        size(rng),
    )


def conv_transpose(rng):
    keywords = {"padding": pick(rng, "same", "valid"), "strides": pick(rng, 1, 2, (2, 1))}
    return [L.Conv2DTranspose(size(rng), (size(rng, 1, 4), size(rng, 1, 4)), **keywords)], image(rng)


def pooling(cls):
    rank = 1 if cls.__name__.endswith("1D") else 2
    lengths = lambda rng: (size(rng, 1, 4),) * rank if rank == 1 else (size(rng, 1, 4), size(rng, 1, 4))  # noqa: E731

    def layers(rng):
        strides = pick(rng, None, 1, 2)
        return [cls(lengths(rng), strides, padding=pick(rng, "same", "valid"))], (
            *image(rng)[:rank],
            size(rng),
        )

    return layers


def recurrent(cls, **fixed):
    def layers(rng):
        keywords = {
            "return_sequences": pick(rng, True, False),
            "go_backwards": pick(rng, True, False),
            "use_bias": pick(rng, True, False),
            **fixed,
        }
        return [cls(size(rng), **keywords)], (size(rng, 2, 6), size(rng))

    return layers


def batch_normalization(rng):
    keywords = {"center": pick(rng, True, False), "scale": pick(rng, True, False)}
    return [L.BatchNormalization(**keywords)], pick(rng, (size(rng),), image(rng))


def layer_normalization(rng):
    return [L.LayerNormalization(axis=pick(rng, -1, (1, 2), (2, 3)))], image(rng)


def normalization(rng):
    shape = image(rng)
    layer = L.Normalization(axis=pick(rng, -1, None, (1, 3)), invert=pick(rng, True, False))
    layer.adapt(rng.normal(2, 3, (7, *shape)))
    return [layer], shape


def simple(make, shape):
    return lambda rng: ([make(rng)], shape(rng))


def flat(rng):
    return (size(rng, 2, 8),)


CASES: dict[str, Layers] = {
    "Dense": simple(lambda rng: L.Dense(size(rng), activation(rng), use_bias=pick(rng, True, False)), flat),
    "Dense on sequences": simple(
        lambda rng: L.Dense(size(rng), kernel_regularizer="l2"), lambda rng: image(rng)[:2]
    ),
    "Conv1D": conv1d,
    "Conv2D": conv2d,
    "Conv2DTranspose": conv_transpose,
    "DepthwiseConv2D": lambda rng: (
        [
            L.DepthwiseConv2D(
                size(rng, 1, 4), depth_multiplier=size(rng, 1, 3), activation=activation(rng), **padded(rng)
            )
        ],
        image(rng),
    ),
    **{
        cls.__name__: pooling(cls)
        for cls in (L.MaxPooling1D, L.MaxPooling2D, L.AveragePooling1D, L.AveragePooling2D)
    },
    **{
        cls.__name__: simple(
            lambda rng, cls=cls: cls(keepdims=pick(rng, True, False)), lambda rng, n=n: image(rng)[-n:]
        )
        for cls, n in (
            (L.GlobalMaxPooling1D, 2),
            (L.GlobalAveragePooling1D, 2),
            (L.GlobalMaxPooling2D, 3),
            (L.GlobalAveragePooling2D, 3),
        )
    },
    "Flatten": simple(lambda rng: L.Flatten(), image),
    "Reshape": simple(lambda rng: L.Reshape((-1, 2)), lambda rng: (size(rng), 4)),
    "Permute": simple(lambda rng: L.Permute((3, 1, 2)), image),
    "RepeatVector": simple(lambda rng: L.RepeatVector(size(rng)), flat),
    "ZeroPadding2D": simple(lambda rng: L.ZeroPadding2D(((1, 2), (0, 3))), image),
    "UpSampling2D": simple(lambda rng: L.UpSampling2D((size(rng, 1, 4), size(rng, 1, 4))), image),
    "Dropout": simple(lambda rng: L.Dropout(0.5), flat),
    "BatchNormalization": batch_normalization,
    "LayerNormalization": layer_normalization,
    "SimpleRNN": recurrent(L.SimpleRNN, activation="relu"),
    "LSTM": recurrent(L.LSTM),
    "LSTM of other activations": recurrent(L.LSTM, activation="relu", recurrent_activation="hard_sigmoid"),
    "GRU": recurrent(L.GRU),
    "GRU before": recurrent(L.GRU, reset_after=False),
    "ReLU": simple(lambda rng: L.ReLU(pick(rng, None, 1.5), pick(rng, 0.0, 0.1), pick(rng, 0.0, 0.5)), flat),
    "LeakyReLU": simple(lambda rng: L.LeakyReLU(0.2), flat),
    "ELU": simple(lambda rng: L.ELU(0.7), flat),
    "PReLU": simple(lambda rng: L.PReLU("random_normal", shared_axes=pick(rng, None, (1, 2))), image),
    "Softmax": simple(lambda rng: L.Softmax(axis=pick(rng, -1, 1)), image),
    "Rescaling": simple(lambda rng: L.Rescaling(pick(rng, 0.5, [1.0, 2.0]), offset=-1.0), lambda rng: (3, 2)),
    "Normalization": normalization,
    "RandomFlip": simple(lambda rng: L.RandomFlip("vertical"), image),
    "RandomTranslation": simple(lambda rng: L.RandomTranslation(0.5, (0, 0.3)), image),
    "RandomRotation": simple(lambda rng: L.RandomRotation(0.5, fill_mode="constant", seed=3), image),
    "RandomZoom": simple(lambda rng: L.RandomZoom(0.5, interpolation="nearest"), image),
    "RandomContrast": simple(lambda rng: L.RandomContrast((0.5, 2.0)), image),
    "RandomBrightness": simple(lambda rng: L.RandomBrightness(0.5, value_range=(0, 1)), image),
    **{
        f"Activation {name}": simple(lambda rng, name=name: L.Activation(name), flat)
        for name in (
            *(
                "linear",
                "relu",
                "relu6",
                "sigmoid",
                "tanh",
                "softmax",
                "log_softmax",
                "elu",
                "selu",
                "softplus",
                "softsign",
            ),
            *("exponential", "hard_sigmoid", "swish", "silu", "mish", "gelu", "gelu_tanh"),
        )
    },
}

WITHOUT_ONNX: dict[str, Layers] = {
    "Masking": simple(lambda rng: L.Masking(0.5), lambda rng: (4, 2)),
    "Bidirectional": recurrent(lambda n, **named: L.Bidirectional(L.GRU(n, **named), merge_mode="sum")),
    "TimeDistributed": simple(lambda rng: L.TimeDistributed(L.Conv1D(size(rng), 2)), lambda rng: (3, 4, 2)),
    "RNN": simple(lambda rng: L.RNN(L.LSTMCell(size(rng)), return_sequences=True), lambda rng: (4, 3)),
    "RNN of one cell": simple(lambda rng: L.RNN(L.SimpleRNNCell(2, activation="relu")), lambda rng: (4, 3)),
    "GaussianNoise": simple(lambda rng: L.GaussianNoise(0.3), flat),
    "SpatialDropout1D": simple(lambda rng: L.SpatialDropout1D(0.3), lambda rng: (4, 3)),
    "SpatialDropout2D": simple(lambda rng: L.SpatialDropout2D(0.3), image),
    "Cropping1D": simple(lambda rng: L.Cropping1D((1, 2)), lambda rng: (5, 3)),
    "Cropping2D": simple(lambda rng: L.Cropping2D(((1, 2), (0, 1))), image),
    "ZeroPadding1D": simple(lambda rng: L.ZeroPadding1D((1, 2)), lambda rng: (5, 3)),
    "UpSampling1D": simple(lambda rng: L.UpSampling1D(3), lambda rng: (5, 3)),
    "Conv1DTranspose": simple(lambda rng: L.Conv1DTranspose(2, 3, strides=2), lambda rng: (5, 3)),
    "DepthwiseConv1D": simple(lambda rng: L.DepthwiseConv1D(2, depth_multiplier=2), lambda rng: (5, 3)),
    "SeparableConv1D": simple(lambda rng: L.SeparableConv1D(2, 3), lambda rng: (5, 3)),
    "SeparableConv2D": simple(lambda rng: L.SeparableConv2D(2, 3, activation="relu"), image),
}
"""Layers that ONNX files cannot have."""
MERGING = (L.Add, L.Subtract, L.Multiply, L.Average, L.Maximum, L.Minimum, L.Concatenate)


@dataclass
class Example:
    """A model and a batch for it."""

    model: dt.Model
    x: object

    def predict(self):
        return self.model.predict_on_batch(self.x)


def example(name: str, seed: int) -> Example:
    """The model of a case, of random shapes and weights."""
    rng = np.random.default_rng(seed)
    layers, shape = (CASES | WITHOUT_ONNX)[name](rng)
    with SingleStrategy().scope():
        model = dt.Sequential([L.InputLayer(input_shape=shape), *layers])
    return Example(shaken(model, rng), rng.normal(size=(size(rng), *shape)).astype(np.float32))


def merged(cls: type, seed: int) -> Example:
    """Two inputs, one of which is used twice, merged."""
    rng = np.random.default_rng(seed)
    a, b = L.Input((3, 4), name="a"), L.Input((3, 4), name="b")
    inputs = [a, b] if cls is L.Subtract else [a, b, L.Dense(4)(a)]
    with SingleStrategy().scope():
        model = dt.Model([a, b], cls()(inputs))
    batch = size(rng)
    return Example(shaken(model, rng), [rng.normal(size=(batch, 3, 4)).astype(np.float32) for _ in "ab"])


def branched(seed: int = 0) -> Example:
    """Two inputs (one of integers), a skip, a layer used twice, two outputs."""
    rng = np.random.default_rng(seed)
    words, image = L.Input((4,), name="words", dtype="int32"), L.Input((6, 6, 2), name="image")
    shared = L.Dense(5, activation="tanh", name="shared")
    read = L.GRU(3)(L.Embedding(10, 5)(words))
    seen = L.GlobalAveragePooling2D()(
        L.Add()([image, L.Conv2D(2, 3, padding="same", activation="relu")(image)])
    )
    both = L.Concatenate()([read, seen])
    with SingleStrategy().scope():
        model = dt.Model(
            [words, image],
            [L.Dense(2, activation="softmax")(shared(both)), shared(L.Dropout(0.5)(both))],
            name="two",
        )
    batch = 3
    x = {
        "words": rng.integers(0, 10, (batch, 4)),
        "image": rng.normal(size=(batch, 6, 6, 2)).astype(np.float32),
    }
    return Example(shaken(model, rng), x)


def shaken(model: dt.Model, rng: np.random.Generator) -> dt.Model:
    """The model with weights that are neither 0 nor 1; variances stay positive."""
    model.set_weights([np.abs(value) + rng.uniform(0.1, 0.5, value.shape) for value in model.get_weights()])
    return model
