"""Overfitting: a tiny and a large model, penalties, constraints, dropout and noise."""

import numpy as np
from dtrain.keras import layers, regularizers

from dtrain import keras

rng = np.random.default_rng(16)
x = rng.normal(size=(128, 10)).astype("float32")
y = (x[:, 0] * x[:, 1] + rng.normal(0, 0.3, 128) > 0).astype("float32")
loss = keras.losses.BinaryCrossentropy(from_logits=True)


def compile_and_fit(model):
    draw = np.random.default_rng(1)
    model.set_weights([draw.normal(0, 0.3, each.shape) for each in model.get_weights()])
    model.compile(
        keras.optimizers.Adam(0.01), loss, metrics=[keras.metrics.BinaryCrossentropy(from_logits=True)]
    )
    return model.fit(x, y, epochs=3, batch_size=32, validation_split=0.25, shuffle=False, verbose=0).history


def shown(name, history):
    print(
        name,
        {key: round(float(history[key][-1]), 4) for key in ("loss", "val_loss", "val_binary_crossentropy")},
    )


tiny = keras.Sequential([layers.Dense(4, activation="elu", input_shape=(10,)), layers.Dense(1)])
shown("tiny", compile_and_fit(tiny))
large = keras.Sequential([layers.Dense(32, activation="elu", input_shape=(10,)), layers.Dense(1)])
shown("large", compile_and_fit(large))

l2_model = keras.Sequential(
    [
        layers.Dense(32, activation="elu", kernel_regularizer=regularizers.l2(0.001), input_shape=(10,)),
        layers.Dense(16, kernel_regularizer=regularizers.L1L2(0.001, 0.002), activity_regularizer="l2"),
        layers.Dense(1, bias_regularizer="l1"),
    ]
)
shown("penalties", compile_and_fit(l2_model))

constrained = keras.Sequential(
    [
        layers.Dense(
            32, activation="elu", kernel_constraint=keras.constraints.MaxNorm(0.5), input_shape=(10,)
        ),
        layers.Dense(1, kernel_constraint="non_neg"),
    ]
)
shown("constraints", compile_and_fit(constrained))
norms = np.linalg.norm(constrained.layers[0].get_weights()[0], axis=0)
print(bool(norms.max() <= 0.5001), bool(constrained.layers[1].kernel.numpy().min() >= 0))

noisy = keras.Sequential(
    [
        layers.GaussianNoise(0.1, input_shape=(10,)),
        layers.Dense(8, "relu"),
        layers.Dropout(0.5),
        layers.Dense(1),
    ]
)
losses = compile_and_fit(noisy)["loss"]
once, twice = noisy.predict(x, verbose=0), noisy.predict(x, verbose=0)
print("noise", len(losses), "only in training:", np.array_equal(once, twice))
