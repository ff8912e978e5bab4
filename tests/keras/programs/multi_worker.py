"""The chapter's script for several workers, on images that it draws; only the import is another's."""

import os
import shutil
import tempfile

import numpy as np

import dtrain as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()  # at the start!
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
rng = np.random.default_rng(0)
y = rng.integers(0, 10, 384)
X = (rng.integers(0, 256, (10, 28, 28))[y] + rng.normal(0, 60, (384, 28, 28))) / 255.0
X_train, y_train, X_valid, y_valid = X[:256], y[:256], X[256:], y[256:]
with strategy.scope():
    model = tf.keras.models.Sequential(
        [
            tf.keras.layers.Flatten(input_shape=[28, 28]),
            tf.keras.layers.Dense(16, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )
    optimizer = tf.keras.optimizers.SGD(learning_rate=1e-2)
    model.compile(loss="sparse_categorical_crossentropy", optimizer=optimizer, metrics=["accuracy"])
draw = np.random.default_rng(1)
model.set_weights([draw.normal(0, 0.1, np.shape(each)).astype(np.float32) for each in model.get_weights()])
history = model.fit(
    X_train, y_train, validation_data=(X_valid, y_valid), epochs=4, shuffle=False, verbose=0
).history
print({name: [round(float(each), 4) for each in history[name]] for name in sorted(history)})
if resolver.task_id in (0, None):  # the chief saves the model to the right location
    model.save("my_mnist_multiworker_model", save_format="tf")
else:
    tmpdir = tempfile.mkdtemp()  # other workers save to a temporary directory
    model.save(os.path.join(tmpdir, "model"), save_format="tf")
    shutil.rmtree(tmpdir, ignore_errors=True)
print("done")
