"""TensorFlow's side of programs/train.py in one process: the same models, data and optimizers, one compiled
function a step.

python tensorflow_one_process.py --model mlp|cnn --optimizer sgd|adam --threads 1 --steps 500
"""

import argparse
import json
import time

import numpy as np
import tensorflow as tf


def mlp(rng):
    layers = [
        tf.keras.layers.Dense(512, "relu", input_shape=(784,)),
        tf.keras.layers.Dense(512, "relu"),
        tf.keras.layers.Dense(10),
    ]
    return tf.keras.Sequential(layers), rng.random((640, 784), np.float32)


def cnn(rng):
    layers = [
        tf.keras.layers.Conv2D(32, 3, activation="relu", input_shape=(28, 28, 1)),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(64, "relu"),
        tf.keras.layers.Dense(10),
    ]
    return tf.keras.Sequential(layers), rng.random((640, 28, 28, 1), np.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["mlp", "cnn"], required=True)
    parser.add_argument("--optimizer", choices=["sgd", "adam"], required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, default=10, help="steps from one mark of the clock to the next")
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    tf.config.threading.set_inter_op_parallelism_threads(args.threads)

    rng = np.random.default_rng(0)
    model, x = {"mlp": mlp, "cnn": cnn}[args.model](rng)
    batches = [(tf.constant(x[i : i + 64]), tf.constant(rng.integers(0, 10, 64))) for i in range(0, 640, 64)]
    optimizer = {"sgd": tf.keras.optimizers.SGD, "adam": tf.keras.optimizers.Adam}[args.optimizer](1e-3)
    variables = model.trainable_variables

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True)))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    marks = []
    for done in range(args.steps):
        if done % args.every == 0:
            marks.append((done, time.monotonic()))
        loss = float(step(*batches[done % 10]))
    print("marks", json.dumps(marks))
    print("loss", loss, flush=True)


main()
