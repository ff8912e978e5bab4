"""Programs with layers that pass masks and states on, written for `tf.keras` and for `dtrain` alike.

Each function takes the library and returns a model, inputs, targets, and arguments of `compile` and `fit`.
`numbers_of` sets the model's values from a seed, in the order of `get_weights`, trains it, and returns the
numbers that are compared.
"""

import numpy as np

WORDS = np.array(
    [[3, 5, 0, 0, 0], [0, 0, 0, 0, 0], [1, 2, 3, 4, 5], [7, 0, 6, 0, 0], [2, 2, 2, 0, 0], [0, 4, 1, 6, 0]]
)
RNG = np.random.RandomState(7)
SERIES = RNG.normal(size=(6, 5, 3)).astype(np.float32)
SERIES[0, 3:] = 0
SERIES[1, :2] = 0
SERIES[2, 2] = 0
OTHERS = RNG.normal(size=(6, 4, 3)).astype(np.float32)
NUMBERS = RNG.normal(size=(6, 1)).astype(np.float32)
TIMES = RNG.normal(size=(6, 5, 2)).astype(np.float32)
CLASSES = RNG.randint(0, 3, (6, 5))
PAIRS = RNG.normal(size=(6, 2)).astype(np.float32)


def _series(keras):
    return keras.Input((5, 3))


def words_to_number(keras):
    layers = keras.layers
    return (
        keras.Sequential(
            [
                keras.Input((5,), dtype="int32"),
                layers.Embedding(8, 4, mask_zero=True),
                layers.LSTM(3),
                layers.Dense(1),
            ]
        ),
        WORDS,
        NUMBERS,
        {},
    )


def _tagger(keras, cell, **more):
    layers = keras.layers
    return (
        keras.Sequential(
            [
                keras.Input((5,), dtype="int32"),
                layers.Embedding(8, 4, mask_zero=True),
                cell,
                layers.Dropout(0.0),
                layers.TimeDistributed(layers.Dense(3, activation="softmax")),
            ]
        ),
        WORDS,
        CLASSES,
        {
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
            "weighted_metrics": [keras.metrics.SparseCategoricalCrossentropy(name="crossentropy")],
            **more,
        },
    )


def tagger(keras):
    return _tagger(keras, keras.layers.GRU(3, return_sequences=True))


def tagger_with_weights(keras):
    cell = keras.layers.GRU(3, return_sequences=True, reset_after=False)
    return _tagger(keras, cell, sample_weight=np.array([1, 2, 0.5, 1, 3, 1], np.float32))


def tagger_both_ways(keras):
    layers = keras.layers
    return _tagger(keras, layers.Bidirectional(layers.LSTM(3, return_sequences=True)))


def masked_series(keras):
    layers = keras.layers
    return (
        keras.Sequential(
            [
                _series(keras),
                layers.Masking(),
                layers.SimpleRNN(4, return_sequences=True, go_backwards=True),
                layers.LSTM(3),
                layers.Dense(1),
            ]
        ),
        SERIES,
        NUMBERS,
        {},
    )


def masked_average(keras):
    layers = keras.layers
    embedded = [
        keras.Input((5,), dtype="int32"),
        layers.Embedding(8, 4, mask_zero=True),
        layers.Dense(3, activation="tanh"),
        layers.GlobalAveragePooling1D(),
        layers.Dense(1),
    ]
    return keras.Sequential(embedded), WORDS + (WORDS.sum(axis=1, keepdims=True) == 0), NUMBERS, {}


def masked_branches(keras):
    layers = keras.layers
    x = _series(keras)
    masked = layers.Masking()(x)
    one = layers.Dense(3)(masked)
    joined = layers.Concatenate()(
        [layers.Add()([masked, one]), layers.ReLU()(one), layers.LayerNormalization()(x)]
    )
    y = layers.LSTM(3, return_sequences=True)(joined)
    return keras.Model(x, layers.Dense(2)(y)), SERIES, TIMES, {"loss": "mae", "metrics": ["mse"]}


def masked_normalization(keras):
    layers = keras.layers
    stack = [
        _series(keras),
        layers.Masking(),
        layers.Dense(4),
        layers.BatchNormalization(momentum=0.7),
        layers.LSTM(3),
        layers.Dense(1),
    ]
    return keras.Sequential(stack), SERIES, NUMBERS, {}


def mask_as_an_argument(keras):
    layers = keras.layers
    x = _series(keras)
    mask = keras.Input((5,), dtype="bool")
    y = layers.Dense(1)(layers.GRU(3)(x, mask=mask))
    there = RNG_MASK
    return keras.Model([x, mask], y), [SERIES, there], NUMBERS, {}


RNG_MASK = np.random.RandomState(3).rand(6, 5) < 0.6


def _both_ways(keras, mode, **more):
    layers = keras.layers
    return (
        keras.Sequential(
            [_series(keras), layers.Bidirectional(layers.GRU(2, **more), merge_mode=mode), layers.Dense(1)]
        ),
        SERIES,
        NUMBERS if not more else TIMES[..., :1],
        {},
    )


def both_ways_concat(keras):
    return _both_ways(keras, "concat")


def both_ways_sum(keras):
    return _both_ways(keras, "sum", return_sequences=True)


def both_ways_ave(keras):
    return _both_ways(keras, "ave")


def both_ways_mul(keras):
    return _both_ways(keras, "mul", return_sequences=True)


def both_ways_apart(keras):
    layers = keras.layers
    x = _series(keras)
    two = layers.Bidirectional(
        layers.LSTM(2), merge_mode=None, backward_layer=layers.SimpleRNN(2, go_backwards=True)
    )
    one, other = two(layers.Masking()(x))
    return keras.Model(x, layers.Dense(1)(layers.Multiply()([one, other]))), SERIES, NUMBERS, {}


def cells(keras):
    layers = keras.layers
    cells = [layers.LSTMCell(3), layers.GRUCell(2), layers.SimpleRNNCell(2)]
    stack = [layers.RNN(cell, return_sequences=cell is not cells[-1]) for cell in cells]
    return (
        keras.Sequential([_series(keras), layers.Masking(), *stack, layers.Dense(1)]),
        SERIES,
        NUMBERS,
        {},
    )


def one_cell(keras):
    layers = keras.layers
    rnn = layers.RNN(layers.GRUCell(3), return_sequences=True, go_backwards=True)
    return keras.Sequential([_series(keras), rnn, layers.Dense(2)]), SERIES, TIMES, {}


def encoder_and_decoder(keras):
    layers = keras.layers
    source = keras.Input((5,), dtype="int32")
    target = keras.Input((4, 3))
    _, h, c = layers.LSTM(3, return_state=True)(layers.Embedding(8, 4, mask_zero=True)(source))
    y = layers.LSTM(3, return_sequences=True)(target, initial_state=[h, c])
    return keras.Model([source, target], layers.Dense(2)(y)), [WORDS, OTHERS], TIMES[:, :4], {}


def encoder_both_ways(keras):
    layers = keras.layers
    source = _series(keras)
    target = keras.Input((4, 3))
    _, *states = layers.Bidirectional(layers.GRU(2, return_state=True))(source)
    y = layers.Bidirectional(layers.GRU(2))(target, initial_state=states)
    h = layers.GRU(2, return_sequences=True)(layers.Masking()(source), initial_state=states[0])
    joined = layers.Concatenate()([y, layers.Flatten()(h)])
    return keras.Model([source, target], layers.Dense(1)(joined)), [SERIES, OTHERS], NUMBERS, {}


def each_time(keras):
    layers = keras.layers
    images = np.random.RandomState(5).normal(size=(6, 2, 4, 4, 1)).astype(np.float32)
    stack = [
        keras.Input((2, 4, 4, 1)),
        layers.TimeDistributed(layers.Conv2D(2, 3, activation="relu")),
        layers.TimeDistributed(layers.Flatten()),
        layers.TimeDistributed(layers.BatchNormalization()),
        layers.LSTM(2),
        layers.Dense(1),
    ]
    return keras.Sequential(stack), images, NUMBERS, {}


def transformer(keras):
    layers = keras.layers
    words = keras.Input((5,), dtype="int32")
    x = layers.Embedding(8, 6, mask_zero=True)(words)
    attended = layers.MultiHeadAttention(num_heads=2, key_dim=3, value_dim=4)(x, x)
    x = layers.LayerNormalization(epsilon=1e-6)(layers.Add()([x, attended]))
    x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(6, activation="relu")(x)]))
    y = layers.Dense(3, activation="softmax")(layers.GlobalAveragePooling1D()(x))
    there = WORDS + (WORDS.sum(axis=1, keepdims=True) == 0)
    return keras.Model(words, y), there, CLASSES[:, 0], {"loss": "sparse_categorical_crossentropy"}


def cross_attention(keras):
    layers = keras.layers
    query, value, key, seen = (
        keras.Input((4, 3)),
        keras.Input((5, 3)),
        keras.Input((5, 2)),
        keras.Input((4, 5), dtype="bool"),
    )
    attention = layers.MultiHeadAttention(2, 2, use_bias=False)
    y, scores = attention(
        query, layers.Masking()(value), key, attention_mask=seen, return_attention_scores=True
    )
    causal = layers.MultiHeadAttention(1, 3)(query, query, use_causal_mask=True)
    joined = layers.Concatenate()([y, causal])
    outputs = [layers.Dense(1, name="end")(joined), layers.Reshape((40,), name="scores")(scores)]
    visible = np.random.RandomState(4).rand(6, 4, 5) < 0.7
    targets = [TIMES[:, :4, :1], np.random.RandomState(2).rand(6, 40).astype(np.float32)]
    return keras.Model([query, value, key, seen], outputs), [OTHERS, SERIES, TIMES, visible], targets, {}


def _scoring(keras, layer, other):
    layers = keras.layers
    query, value = keras.Input((4, 3)), keras.Input((5, 3))
    masked = layers.Masking()(value)
    y = layer([query, masked])
    z, scores = other(
        [masked, query, layers.Dense(3)(query)], use_causal_mask=True, return_attention_scores=True
    )
    joined = layers.Concatenate()([layers.Flatten()(each) for each in (y, z, scores)])
    return keras.Model([query, value], layers.Dense(1)(joined)), [OTHERS, SERIES], NUMBERS, {}


def attention(keras):
    return _scoring(keras, keras.layers.Attention(), keras.layers.Attention(use_scale=True))


def dots(keras):
    layers = keras.layers
    one, other, pair = keras.Input((5, 3)), keras.Input((4, 3)), keras.Input((2,))
    matrix = layers.Dot(axes=(2, -1))([one, other])
    vector = layers.Dot(axes=(-1, 1), normalize=True)([layers.Dense(2)(one), pair])
    number = layers.Dot(axes=1, normalize=True)([pair, layers.Dense(2)(pair)])
    joined = layers.Concatenate()(
        [layers.Flatten()(matrix), vector, number, layers.dot([pair, pair], axes=-1)]
    )
    return (
        keras.Model([one, other, pair], layers.Dense(1)(joined)),
        [SERIES, OTHERS, PAIRS],
        NUMBERS,
        {"rate": 0.001},
    )


def series_of_convolutions(keras):
    layers = keras.layers
    stack = [
        _series(keras),
        layers.ZeroPadding1D((1, 2)),
        layers.SeparableConv1D(4, 3, depth_multiplier=2, activation="relu"),
        layers.UpSampling1D(2),
        layers.DepthwiseConv1D(2, padding="same"),
        layers.Conv1DTranspose(2, 3, strides=2, padding="same"),
        layers.Cropping1D((1, 2)),
        layers.MaxPool1D(),
        layers.GlobalAvgPool1D(),
        layers.Dense(1),
    ]
    return keras.Sequential(stack), SERIES, NUMBERS, {}


def images_of_convolutions(keras):
    layers = keras.layers
    stack = [
        keras.Input((6, 7, 3)),
        layers.Cropping2D(((1, 0), (2, 1))),
        layers.SeparableConv2D(4, (2, 3), strides=1, padding="same", depth_multiplier=2),
        layers.SpatialDropout2D(0.0),
        layers.AvgPool2D(),
        layers.GlobalMaxPool2D(),
        layers.Dense(1),
    ]
    images = np.random.RandomState(6).normal(size=(6, 6, 7, 3)).astype(np.float32)
    return keras.Sequential(stack), images, NUMBERS, {}


def limits(keras):
    layers = keras.layers
    limit = keras.constraints
    words, pictures = keras.Input((5,), dtype="int32"), keras.Input((6, 7, 3))
    x = layers.Embedding(8, 4, embeddings_constraint=limit.UnitNorm(axis=1))(words)
    x = layers.GRU(
        3, kernel_constraint="non_neg", recurrent_constraint=limit.unit_norm(), bias_constraint="max_norm"
    )(x)
    y = layers.Conv2D(2, 3, kernel_constraint=limit.MinMaxNorm(0.2, 0.5, rate=0.6, axis=[0, 1, 2]))(pictures)
    y = layers.BatchNormalization(beta_constraint="non_neg", gamma_constraint=limit.NonNeg())(y)
    z = layers.Concatenate()([x, layers.Flatten()(y)])
    z = layers.Dense(4, kernel_constraint=limit.max_norm(0.8), bias_constraint=limit.NonNeg())(z)
    frozen = layers.Dense(1, kernel_constraint="unit_norm", trainable=False)
    images = np.random.RandomState(6).normal(size=(6, 6, 7, 3)).astype(np.float32)
    return keras.Model([words, pictures], frozen(z)), [WORDS, images], NUMBERS, {}


PROGRAMS = {
    name: each for name, each in list(globals().items()) if callable(each) and not name.startswith("_")
}


def _flat(predicted):
    arrays = predicted if isinstance(predicted, list) else [predicted]
    return np.concatenate([np.ravel(each) for each in arrays]).astype(float).tolist()


def numbers_of(keras, name):
    """Return losses and metrics of each epoch, an evaluation, predictions, and sums of the trained values."""
    model, x, y, options = PROGRAMS[name](keras)
    rng = np.random.RandomState(1)
    values = [
        np.abs(rng.normal(size=each.shape))
        if "variance" in str(number)
        else rng.normal(size=each.shape) * 0.4
        for number, each in enumerate(model.get_weights())
    ]
    model.set_weights(
        [np.abs(each).astype(np.float32) if each.ndim == 1 else each.astype(np.float32) for each in values]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(options.get("rate", 0.1)),
        loss=options.get("loss", "mse"),
        metrics=options.get("metrics", []),
        weighted_metrics=options.get("weighted_metrics", []),
    )
    weight = options.get("sample_weight")
    history = model.fit(x, y, sample_weight=weight, batch_size=4, epochs=3, shuffle=False, verbose=0).history
    evaluated = model.evaluate(x, y, sample_weight=weight, batch_size=4, verbose=0)
    return {
        "history": {key: [float(each) for each in values] for key, values in history.items()},
        "evaluated": [float(each) for each in np.atleast_1d(evaluated)],
        "predicted": _flat(model.predict(x, batch_size=4, verbose=0))[::3],
        "trained": [float(np.abs(each).sum()) for each in model.get_weights()],
    }
