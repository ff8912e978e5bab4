"""A training loop from scratch with metrics, and then the same step within `fit`."""

import numpy as np

import dtrain as tf
from dtrain import keras

rng = np.random.default_rng(11)
x = rng.normal(size=(96, 6)).astype("float32")
y = np.argmax(x[:, :3], axis=1)
train_dataset = tf.data.Dataset.from_tensor_slices((x[:64], y[:64])).batch(16)
val_dataset = tf.data.Dataset.from_tensor_slices((x[64:], y[64:])).batch(16)
first = [rng.normal(0, 0.3, shape) for shape in ((6, 8), (8,), (8, 3), (3,))]


def get_model(kind):
    inputs = keras.Input(shape=(6,))
    outputs = keras.layers.Dense(3)(keras.layers.Dense(8, activation="relu")(inputs))
    model = kind(inputs, outputs)
    model.set_weights(first)
    return model


model = get_model(keras.Model)
optimizer = keras.optimizers.SGD(learning_rate=0.1)
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
train_metric, val_metric = (keras.metrics.SparseCategoricalAccuracy() for _ in range(2))
for epoch in range(2):
    for x_batch, y_batch in train_dataset:
        with tf.GradientTape() as tape:
            logits = model(x_batch, training=True)
            loss_value = loss_fn(y_batch, logits)
        grads = tape.gradient(loss_value, model.trainable_weights)
        optimizer.apply_gradients(zip(grads, model.trainable_weights))
        train_metric.update_state(y_batch, logits)
    for x_batch, y_batch in val_dataset:
        val_metric.update_state(y_batch, model(x_batch, training=False))
    print("epoch", epoch, "%.4f %.4f %.4f" % (loss_value, train_metric.result(), val_metric.result()))
    train_metric.reset_states()
    val_metric.reset_states()


class CustomModel(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.compiled_metrics.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


within = get_model(CustomModel)
within.compile(keras.optimizers.SGD(0.1), loss_fn, metrics=["accuracy"])
within.fit(train_dataset, epochs=2, verbose=0)
print(
    "the same:", all(np.allclose(*each, atol=1e-5) for each in zip(model.get_weights(), within.get_weights()))
)
