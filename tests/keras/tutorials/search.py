"""A search by hand: models from a function, each trained alone, and the best of them."""

import itertools

import numpy as np

from dtrain import keras

rng = np.random.default_rng(17)
x = rng.normal(size=(160, 6)).astype("float32")
y = (np.abs(x[:, 0]) > np.abs(x[:, 1])).astype(int)


def build_model(units, learning_rate, activation):
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    model = keras.Sequential()
    model.add(keras.layers.Input(shape=(6,)))
    for width in units:
        model.add(keras.layers.Dense(width, activation=activation))
    model.add(keras.layers.Dense(1, activation="sigmoid"))
    optimizer = keras.optimizers.get("adam")
    optimizer.learning_rate = learning_rate
    model.compile(optimizer=optimizer, loss="binary_crossentropy", metrics=["accuracy"])
    draw = np.random.default_rng(1)
    model.set_weights([draw.normal(0, 0.4, each.shape) for each in model.get_weights()])
    return model


results = {}
for trial in itertools.product([(8,), (8, 8)], [0.01, 0.05], ["relu", "tanh"]):
    model = build_model(*trial)
    names = [layer.name for layer in model.layers]
    stop = keras.callbacks.EarlyStopping("val_loss", patience=2)
    history = model.fit(x, y, epochs=4, validation_split=0.25, shuffle=False, callbacks=[stop], verbose=0)
    results[trial] = min(history.history["val_loss"])
    print(trial, names[-1], f"{results[trial]:.4f}")
best = min(results, key=results.get)
print("best:", best)
