"""Learning rates that change: schedules of Keras, one of one's own, and callbacks."""

import numpy as np

import dtrain as tf
from dtrain import keras

rng = np.random.default_rng(10)
x = rng.normal(size=(96, 5)).astype("float32")
y = x @ rng.normal(size=(5, 1)).astype("float32")


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, target, warmup_steps):
        self.target, self.warmup_steps = target, warmup_steps

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        return self.target * tf.minimum(1.0, (step + 1.0) / self.warmup_steps)


class Rates(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rates = []

    def on_epoch_end(self, epoch, logs=None):
        self.rates.append(round(float(keras.backend.get_value(self.model.optimizer.lr)), 5))


def trained(rate, callbacks=()):
    model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="zeros", input_shape=(5,))])
    model.compile(keras.optimizers.SGD(rate, momentum=0.5), "mse")
    callbacks = list(callbacks)
    history = model.fit(x, y, epochs=4, batch_size=32, shuffle=False, verbose=0, callbacks=callbacks).history
    return [round(float(loss), 4) for loss in history["loss"]]


schedules = keras.optimizers.schedules
print(trained(schedules.ExponentialDecay(0.1, decay_steps=3, decay_rate=0.5, staircase=True)))
print(trained(schedules.CosineDecay(0.1, decay_steps=12)))
print(trained(schedules.PiecewiseConstantDecay([3, 6], [0.1, 0.05, 0.01])))
print(trained(WarmUp(0.1, 6)))
rates = Rates()
print(trained(0.1, [keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr * 0.5), rates]), rates.rates)
rates = Rates()
plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.1, patience=1, min_delta=5.0)
print(trained(0.1, [plateau, rates]), rates.rates)
