"""The chapter's trial of a study, on images that it draws; only the import is another's."""

import argparse

import numpy as np

import dtrain as tf

parser = argparse.ArgumentParser()
parser.add_argument("--n_hidden", type=int, default=2)
parser.add_argument("--n_neurons", type=int, default=16)
parser.add_argument("--learning_rate", type=float, default=1e-3)
parser.add_argument("--optimizer", default="adam")
args = parser.parse_args()


def build_model(args):
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = tf.keras.models.Sequential()
        model.add(tf.keras.layers.Flatten(input_shape=[28, 28]))
        for _ in range(args.n_hidden):
            model.add(tf.keras.layers.Dense(args.n_neurons, activation="relu"))
        model.add(tf.keras.layers.Dense(10, activation="softmax"))
        opt = tf.keras.optimizers.get(args.optimizer)
        opt.learning_rate = args.learning_rate
        model.compile(loss="sparse_categorical_crossentropy", optimizer=opt, metrics=["accuracy"])
        return model


rng = np.random.default_rng(0)
y = rng.integers(0, 10, 256)
X = (rng.integers(0, 256, (10, 28, 28))[y] + rng.normal(0, 60, (256, 28, 28))) / 255.0
model = build_model(args)
draw = np.random.default_rng(1)
model.set_weights([draw.normal(0, 0.1, np.shape(each)).astype(np.float32) for each in model.get_weights()])
history = model.fit(X, y, epochs=3, validation_split=0.25, shuffle=False, verbose=0)
print([round(float(each), 4) for each in history.history["loss"]])
print(max(history.history["val_accuracy"]), int(model.optimizer.iterations.numpy()))
