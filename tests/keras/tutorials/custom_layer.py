"""Layers of one's own: weights made in `build`, mathematics in `call`, and a saved model that knows them."""

import numpy as np

import dtrain as tf
from dtrain import keras


@keras.utils.register_keras_serializable(package="Tutorial")
class Linear(keras.layers.Layer):
    def __init__(self, units=32, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape):
        self.w = self.add_weight(
            shape=(input_shape[-1], self.units), initializer="ones", trainable=True, name="w"
        )
        self.b = self.add_weight(shape=(self.units,), initializer="zeros", trainable=True, name="b")

    def call(self, inputs):
        return tf.matmul(inputs, self.w) + self.b

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@keras.utils.register_keras_serializable(package="Tutorial")
class Swish(keras.layers.Layer):
    def call(self, inputs):
        return inputs * tf.math.sigmoid(inputs)


linear = Linear(4)
print(linear(tf.ones((2, 3))).numpy().tolist(), len(linear.weights))

rng = np.random.default_rng(12)
x = rng.normal(size=(64, 3)).astype("float32")
y = (x**2).sum(axis=1, keepdims=True)
model = keras.Sequential([keras.Input((3,)), Linear(8), Swish(), Linear(1)])
model.set_weights([rng.normal(0, 0.5, each.shape) for each in model.get_weights()])
model.compile(keras.optimizers.Adam(0.05), "mse")
history = model.fit(x, y, epochs=4, shuffle=False, verbose=0).history
print([round(float(loss), 4) for loss in history["loss"]])

model.save("own_layers.keras")
again = keras.models.load_model("own_layers.keras")
print([type(layer).__name__ for layer in again.layers], again.layers[0].get_config()["units"])
print(f"{again.evaluate(x, y, verbose=0):.4f}")
