"""TensorFlow's ParameterServerStrategy as its guide has it: Y = 2X + 10 by a coordinator; workers and servers
never return.
"""

import sys
import time
from pathlib import Path

import tensorflow as tf

STEPS = 300


def serve(resolver):
    server = tf.distribute.Server(
        resolver.cluster_spec(), resolver.task_type, resolver.task_id, protocol="grpc"
    )
    print("serving", flush=True)
    server.join()


def pause():
    """Until there is a file called go-on."""
    print("paused", flush=True)
    while not Path("go-on").exists():
        time.sleep(0.1)


def coordinate(resolver):
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weight, bias = tf.Variable(0.0, name="weight"), tf.Variable(0.0, name="bias")

    def batches():
        x = (
            tf.data.Dataset.from_tensor_slices(tf.linspace(-1.0, 1.0, 64))
            .shuffle(64, seed=1)
            .repeat()
            .batch(8)
        )
        return x.map(lambda x: (x, 2 * x + 10))

    @tf.function
    def step(iterator):
        x, y = next(iterator)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((weight * x + bias - y) ** 2)
        for variable, gradient in zip((weight, bias), tape.gradient(loss, (weight, bias)), strict=True):
            variable.assign_sub(0.05 * gradient)
        return loss

    iterator = iter(coordinator.create_per_worker_dataset(batches))
    losses = [coordinator.schedule(step, args=(iterator,)) for _ in range(STEPS)]
    coordinator.join()
    if "--pause" in sys.argv:
        pause()
        losses += [coordinator.schedule(step, args=(iterator,)) for _ in range(STEPS)]
        coordinator.join()
    print("servers", *sorted({variable.device.partition("/device")[0] for variable in (weight, bias)}))
    print("losses", float(losses[0].fetch()), float(losses[-1].fetch()))
    print("learned", float(weight), float(bias), flush=True)


def main():
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    (coordinate if resolver.task_type == "chief" else serve)(resolver)


main()
