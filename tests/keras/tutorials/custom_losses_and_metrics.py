"""Losses and metrics of one's own: functions, and classes with state."""

import numpy as np

import dtrain as tf
from dtrain import keras

rng = np.random.default_rng(13)
x = rng.normal(size=(96, 4)).astype("float32")
y = np.tanh(x.sum(axis=1, keepdims=True)).astype("float32")


def custom_mean_squared_error(y_true, y_pred):
    return tf.math.reduce_mean(tf.square(y_true - y_pred), axis=-1)


class CustomMSE(keras.losses.Loss):
    def __init__(self, regularization_factor=0.1, name="custom_mse"):
        super().__init__(name=name)
        self.regularization_factor = regularization_factor

    def call(self, y_true, y_pred):
        mse = tf.math.reduce_mean(tf.square(y_true - y_pred), axis=-1)
        reg = tf.math.reduce_mean(tf.square(0.5 - y_pred), axis=-1)
        return mse + reg * self.regularization_factor


class SameSign(keras.metrics.Metric):
    def __init__(self, name="same_sign", **kwargs):
        super().__init__(name=name, **kwargs)
        self.hits = self.add_weight(name="hits", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        same = tf.cast(tf.math.sign(y_true) == tf.math.sign(y_pred), "float32")
        self.hits.assign_add(tf.reduce_sum(same))
        self.count.assign_add(tf.cast(tf.shape(y_true)[0], "float32"))

    def result(self):
        return self.hits / self.count

    def reset_state(self):
        self.hits.assign(0.0)
        self.count.assign(0.0)


def near(y_true, y_pred):
    return tf.cast(tf.abs(y_true - y_pred) < 0.5, "float32")


for loss in (custom_mean_squared_error, CustomMSE()):
    small = keras.initializers.Constant(0.05)
    model = keras.Sequential([keras.layers.Dense(1, kernel_initializer=small, input_shape=(4,))])
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=[SameSign(), near])
    history = model.fit(x, y, epochs=2, batch_size=32, shuffle=False, verbose=0).history
    print({name: [round(float(each), 4) for each in values] for name, values in sorted(history.items())})
metric = SameSign()
metric.update_state(np.array([1.0, -1.0], "float32"), np.array([2.0, 3.0], "float32"))
print(float(metric.result().numpy()))
