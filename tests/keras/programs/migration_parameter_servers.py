"""The migration guide's program with Keras: parameter servers within the process, and sharded variables.

One worker, so that TensorFlow's steps come one after the other and its numbers are always the same.
"""

import json
import os
import socket
import threading

import dtrain as tf


def unused_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("localhost", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


ports = unused_ports(4)
cluster = {
    "chief": [f"localhost:{ports[0]}"],
    "worker": [f"localhost:{ports[1]}"],
    "ps": [f"localhost:{port}" for port in ports[2:]],
}
os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
cluster_spec = cluster_resolver.cluster_spec()
for job, index in (("worker", 0), ("ps", 0), ("ps", 1)):

    def serve(job=job, index=index):
        server = tf.distribute.Server(cluster_spec, job_name=job, task_index=index, protocol="grpc")
        assert server.target == f"grpc://{cluster[job][index]}"
        server.join()

    threading.Thread(target=serve, daemon=True).start()

features = [[1.0, 1.5], [2.0, 2.5], [3.0, 3.5]]
labels = [[0.3], [0.5], [0.7]]
eval_features = [[4.0, 4.5], [5.0, 5.5], [6.0, 6.5]]
eval_labels = [[0.8], [0.9], [1.0]]
dataset = tf.data.Dataset.from_tensor_slices((features, labels)).repeat().batch(64)
eval_dataset = tf.data.Dataset.from_tensor_slices((eval_features, eval_labels)).repeat().batch(1)

partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(num_shards=2)
strategy = tf.distribute.ParameterServerStrategy(cluster_resolver, variable_partitioner=partitioner)
with strategy.scope():
    first = tf.keras.initializers.Constant(0.5)
    model = tf.keras.models.Sequential([tf.keras.layers.Dense(1, kernel_initializer=first)])
    model.compile(tf.keras.optimizers.Adagrad(learning_rate=0.05), "mse")
history = model.fit(dataset, epochs=5, steps_per_epoch=10, verbose=0).history
print([float(loss) for loss in history["loss"]])
print(model.evaluate(eval_dataset, steps=10, return_dict=True, verbose=0))
