"""TensorFlow's side of programs/threads.py: the same model, data and optimizers under MirroredStrategy over
logical CPUs, or under MultiWorkerMirroredStrategy, a replica a process.

python tensorflow_mirrored.py --replicas 2 --optimizer sgd --steps 300
dtrain launch --no-evaluator --workers 1 --ps 0 -- python tensorflow_mirrored.py --multi-worker
"""

import argparse
import json
import os
import time

import numpy as np
import tensorflow as tf

BATCH = 64


class Marks(tf.keras.callbacks.Callback):
    """Notes the clocks every so many steps."""

    def __init__(self, every):
        super().__init__()
        self.every = every
        self.marks = []

    def on_train_batch_end(self, batch, logs=None):
        if batch % self.every == 0:
            self.marks.append((batch, time.monotonic(), time.process_time()))


def strategy_of(replicas, multi_worker):
    """Return a strategy of so many replicas; of several processes where the launcher's TF_CONFIG names them."""
    if multi_worker:
        threads = int(os.environ.get("TF_NUM_INTRAOP_THREADS", "1"))
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    return tf.distribute.MirroredStrategy(
        [f"CPU:{number}" for number in range(replicas)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=10, help="steps from one mark of the clocks to the next")
    parser.add_argument("--multi-worker", action="store_true", help="a replica a process, by TF_CONFIG")
    args = parser.parse_args()
    strategy = strategy_of(args.replicas, args.multi_worker)
    batch = BATCH * args.replicas
    rng = np.random.default_rng(0)
    x, y = rng.random((10 * batch, 784), np.float32), rng.integers(0, 10, 10 * batch)
    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Dense(512, "relu", input_shape=(784,)),
                tf.keras.layers.Dense(512, "relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        model.compile(args.optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    marks = Marks(args.every)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch).repeat()
    history = model.fit(data, steps_per_epoch=args.steps, callbacks=[marks], verbose=0).history
    print("marks", json.dumps(marks.marks))
    print("loss", history["loss"][-1], flush=True)


main()
