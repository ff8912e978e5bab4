"""Models that are classes: a block within a model, called by its name, and trained like any other."""

import numpy as np

import dtrain as tf

rng = np.random.default_rng(14)


class ResidualBlock(tf.keras.Model):
    def __init__(self, width):
        super().__init__()
        self.dense = tf.keras.layers.Dense(width)
        self.norm = tf.keras.layers.BatchNormalization(momentum=0.5)
        self.relu = tf.keras.layers.ReLU()

    def call(self, inputs, training=None):
        x = self.norm(self.dense(inputs), training=training)
        return inputs + self.relu(x)


class Network(tf.keras.Model):
    def __init__(self, blocks=2, width=8):
        super().__init__()
        self.entry = tf.keras.layers.Dense(width, activation="tanh")
        self.blocks = [ResidualBlock(width) for _ in range(blocks)]
        self.total, self.largest = tf.keras.layers.Dense(1), tf.keras.layers.Dense(1)

    def call(self, inputs, training=None):
        x = self.entry(inputs)
        for block in self.blocks:
            x = block(x, training=training)
        return tf.concat([self.total(x), self.largest(x)], axis=-1)


x = rng.normal(size=(96, 5)).astype("float32")
y = np.stack([x.sum(axis=1), x.max(axis=1)], axis=1)
model = Network()
print(model(x[:2]).shape, len(model.trainable_variables), len(model.non_trainable_variables))
for variable in model.trainable_variables:
    if len(variable.shape) == 2:
        variable.assign(rng.normal(0, 0.3, variable.shape))
model.compile("rmsprop", tf.keras.losses.MeanSquaredError(), metrics=["mae"])
history = model.fit(x, y, epochs=3, batch_size=32, shuffle=False, verbose=0).history
for name in ("loss", "mae"):
    print(name, [round(float(each), 4) for each in history[name]])
print([round(float(each), 4) for each in model.evaluate(x, y, verbose=0)])

model.save_weights("network.weights.h5")
again = Network()
again(x[:2])
again.load_weights("network.weights.h5")
print(np.allclose(again.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-6))
