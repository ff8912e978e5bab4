"""A small training whose callbacks steer, that tells its History in every task and keeps its weights. Not a test itself."""

import argparse
import hashlib
import json
import os

import numpy as np

import dtrain as dt

ROWS, BATCH, EPOCHS, RATE = 44, 10, 3, 0.1


class Steers(dt.callbacks.Callback):
    """Changes the learning rate, assigns weights and stops, at the ends of epochs or in their midst."""

    def __init__(self, assign_at, stop_at):
        super().__init__()
        self.assign_at, self.stop_at, self.seen = assign_at, stop_at, 0

    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.learning_rate = RATE / (epoch + 2)

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if self.seen == self.assign_at:
            self.model.set_weights([0.5 * weight for weight in self.model.get_weights()])
        if self.seen == self.stop_at:
            self.model.stop_training = True


def data_of():
    chance = np.random.default_rng(3)
    x = chance.normal(size=(ROWS, 6)).astype(np.float32)
    return x, np.eye(3, dtype=np.float32)[chance.integers(0, 3, ROWS)]


def layers_of(plain=False):
    """`plain`: no layer holds state."""
    layers = dt.layers
    return [
        layers.Dense(9, activation="tanh", input_shape=(6,)),
        layers.Dropout(0.3),
        *([] if plain else [layers.BatchNormalization()]),
        layers.Dense(7, activation="relu", kernel_regularizer="l2"),
        layers.GaussianNoise(0.1),
        layers.Dense(3),
    ]


def placed(places):
    """Two halves that read each other, and a layer of sequences; layers are on the tasks of their names in `places`."""
    layers = dt.layers

    def on(name, make, *inputs):
        with dt.device(places.get(name)):
            return make(*inputs)

    x = layers.Input((6,))
    left, right = (
        on(name, lambda name=name: layers.Dense(5, activation="tanh", name=name))(x)
        for name in ("left", "right")
    )
    both = on("both", layers.Concatenate)([left, right])
    rows = layers.Reshape((5, 2))(both)
    low = on("low", lambda: layers.LSTM(4, return_sequences=True, name="low"))(rows)
    high = on("high", lambda: layers.LSTM(4, name="high"))(layers.Dropout(0.3)(low))
    out = on("out", lambda: layers.Dense(3, name="out"))(layers.Concatenate()([high, right]))
    return dt.Model(x, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--fits", type=int, default=1)
    parser.add_argument("--assign_at", type=int, default=0)
    parser.add_argument("--stop_at", type=int, default=0)
    parser.add_argument("--save")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--place", type=json.loads, help="the task of each layer of another model, by name")
    args = parser.parse_args()
    x, y = data_of()
    strategy = dt.get_strategy()
    with strategy.scope():
        model = dt.Sequential(layers_of(args.plain)) if args.place is None else placed(args.place)
        optimizer = dt.optimizers.SGD(RATE) if args.optimizer == "sgd" else dt.optimizers.Adam(RATE)
        model.compile(optimizer, "mse", metrics=["accuracy"])
    data = dt.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)
    steers = [Steers(args.assign_at, args.stop_at)] if args.assign_at or args.stop_at else []
    for _ in range(args.fits):
        history = model.fit(
            data, epochs=args.epochs, verbose=0, validation_data=(x[:20], y[:20]), callbacks=steers
        )
        print("history", json.dumps(history.history), flush=True)
    weights = model.get_weights()
    told = hashlib.sha256(b"".join(np.ascontiguousarray(each).tobytes() for each in weights)).hexdigest()
    print("weights", told, flush=True)
    print("evaluated", model.evaluate(x, y, verbose=0), flush=True)
    if args.save and os.environ.get("DTRAIN_TASK") == "chief:0":
        np.savez(args.save, **model.arrays)


if __name__ == "__main__":
    main()
