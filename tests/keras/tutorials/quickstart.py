"""The first steps: a classifier of images, its loss by hand, and a model of probabilities."""

import numpy as np

import dtrain as tf

rng = np.random.default_rng(0)
labels = rng.integers(0, 4, 320)
images = rng.random((4, 8, 8))[labels] + rng.normal(0, 0.2, (320, 8, 8))
x_train, y_train = images[:256].astype("float32"), labels[:256]
x_test, y_test = images[256:].astype("float32"), labels[256:]

model = tf.keras.models.Sequential(
    [
        tf.keras.layers.Flatten(input_shape=(8, 8)),
        tf.keras.layers.Dense(32, activation="relu"),
        tf.keras.layers.Dense(4),
    ]
)
model.set_weights([rng.normal(0, 0.2, each.shape) for each in model.get_weights()])

predictions = model(x_train[:1]).numpy()
print(predictions)
print(tf.nn.softmax(predictions).numpy())
loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
print(loss_fn(y_train[:1], predictions).numpy())

model.compile(optimizer="adam", loss=loss_fn, metrics=["accuracy"])
history = model.fit(x_train, y_train, epochs=5, shuffle=False, verbose=0).history
print([round(loss, 4) for loss in history["loss"]])
loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"test loss {loss:.4f}, accuracy {accuracy:.4f}")

probability_model = tf.keras.Sequential([model, tf.keras.layers.Softmax()])
print(probability_model(x_test[:5]).numpy().argmax(axis=1))
