"""TensorFlow's MultiWorkerMirroredStrategy with Keras: every task trains the same model, and prints what it
has learned.
"""

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
    model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")
x = tf.reshape(tf.linspace(-1.0, 1.0, 64), (64, 1))
data = tf.data.Dataset.from_tensor_slices((x, 2 * x + 10)).batch(16)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
losses = model.fit(data.with_options(options), epochs=15, verbose=0).history["loss"]
print("replicas", strategy.num_replicas_in_sync)
print("losses", losses[0], losses[-1])
print("learned", *(float(values.ravel()[0]) for values in model.get_weights()), flush=True)
