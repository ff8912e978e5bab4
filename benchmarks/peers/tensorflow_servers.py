"""TensorFlow's side of programs/train.py: the same models, data and optimizer under ParameterServerStrategy,
asynchronous.

dtrain launch --workers 2 --ps 2 -- PYTHON tensorflow_servers.py --model line|mlp|bytes --steps 3000

The chief coordinates and does not train. Counted are the steps of both workers together, from when each of
them has done some.
"""

import argparse
import time

import numpy as np
import tensorflow as tf

LEARNING_RATE = 1e-3


def line():
    x = np.random.default_rng(0).normal(size=(10_000, 1)).astype(np.float32)
    return tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))]), (x, 2 * x + 10), 1


def mlp():
    rng = np.random.default_rng(0)
    layers = [
        tf.keras.layers.Dense(512, "relu", input_shape=(784,)),
        tf.keras.layers.Dense(512, "relu"),
        tf.keras.layers.Dense(10),
    ]
    return tf.keras.Sequential(layers), (rng.random((640, 784), np.float32), rng.integers(0, 10, 640)), 64


def matrices(megabytes):
    layers = [tf.keras.layers.Dense(1000, use_bias=False, input_shape=(1000,)) for _ in range(megabytes // 4)]
    return tf.keras.Sequential(layers), (np.ones((1, 1), np.float32), np.ones((1, 1), np.float32)), 1


def make_step(strategy, model, which, optimizer):
    """The function that a worker runs once a step."""
    variables = model.trainable_variables

    def train(x, y):
        if which == "bytes":  # nothing is computed: every value is read, and every one gets a gradient
            gradients = [variable - 1.0 for variable in variables]
        else:
            with tf.GradientTape() as tape:
                outputs = model(x, training=True)
                if which == "mlp":
                    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, outputs))
                else:
                    loss = tf.reduce_mean(tf.math.squared_difference(outputs, y))
            gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return tf.function(lambda iterator: strategy.run(train, args=next(iterator)))


def coordinate(resolver, args):
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model, arrays, batch = (
            matrices(args.megabytes) if args.model == "bytes" else {"line": line, "mlp": mlp}[args.model]()
        )
        optimizer = tf.keras.optimizers.legacy.SGD(LEARNING_RATE)
    step = make_step(strategy, model, args.model, optimizer)

    def batches():
        return tf.data.Dataset.from_tensor_slices(arrays).batch(batch).cache().repeat().prefetch(2)

    def run(steps):
        for _ in range(steps):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()

    iterator = iter(coordinator.create_per_worker_dataset(batches))
    run(max(10, args.steps // 10))
    started_s = time.monotonic()
    run(args.steps)
    print("steps/s", args.steps / (time.monotonic() - started_s))
    print("sum", sum(float(tf.reduce_sum(variable)) for variable in model.trainable_variables), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["line", "mlp", "bytes"], required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--megabytes", type=int, default=32, help="of the model of bytes alone")
    args = parser.parse_args()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type == "chief":
        coordinate(resolver, args)
    else:
        tf.distribute.Server(
            resolver.cluster_spec(), resolver.task_type, resolver.task_id, protocol="grpc"
        ).join()


main()
