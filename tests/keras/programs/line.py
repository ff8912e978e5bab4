"""The introduction's line through noisy points, with the classic flags; only the import is another's."""

import argparse

import numpy as np

import dtrain as tf

parser = argparse.ArgumentParser()
parser.add_argument("--ps_hosts", default="")
parser.add_argument("--worker_hosts", default="")
parser.add_argument("--job_name", default="")
parser.add_argument("--task_index", type=int, default=0)
FLAGS = parser.parse_args()

if FLAGS.ps_hosts:
    jobs = {"ps": FLAGS.ps_hosts.split(","), "worker": FLAGS.worker_hosts.split(",")}
    cluster = tf.train.ClusterSpec(jobs)
    server = tf.distribute.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()


class PrintProgress(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if (batch + 1) % 50 == 0:
            weight, bias = self.model.get_weights()
            print(f"step: {batch + 1}, weight: {weight.item():.5f}, bias: {bias.item():.5f}")


rng = np.random.default_rng(0)
train_x = rng.normal(size=(200, 1)).astype(np.float32)
train_y = (2 * train_x + rng.normal(size=(200, 1)) * 0.33 + 10).astype(np.float32)
strategy = tf.distribute.get_strategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones", input_shape=(1,))])
    model.compile(tf.keras.optimizers.SGD(0.003), "mse")
model.fit(train_x, train_y, batch_size=1, shuffle=False, verbose=0, callbacks=[PrintProgress()])
