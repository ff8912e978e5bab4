"""Regression: degrees of Celsius by one neuron, and fuel by features that a layer normalises."""

import numpy as np

import dtrain as tf

celsius_q = np.array([-40, -10, 0, 8, 15, 22, 30, 38], dtype=float)
fahrenheit_a = np.array([-40, 14, 32, 46, 59, 72, 86, 100], dtype=float)
l0 = tf.keras.layers.Dense(units=1, input_shape=[1], kernel_initializer="ones")
model = tf.keras.Sequential([l0])
model.compile(loss="mean_squared_error", optimizer=tf.keras.optimizers.Adam(0.1))
history = model.fit(celsius_q, fahrenheit_a, epochs=300, shuffle=False, verbose=0)
print("{:.3f}".format(history.history["loss"][-1]))
print(f"{float(model.predict(np.array([100.0]), verbose=0)[0, 0]):.2f}")
print([np.round(each, 2).tolist() for each in l0.get_weights()])

rng = np.random.default_rng(23)
train_features = np.stack([rng.normal(20, 5, 96), rng.normal(3000, 400, 96)], axis=1).astype("float32")
train_labels = 0.5 * train_features[:, 0] - 0.004 * train_features[:, 1] + 20
normalizer = tf.keras.layers.Normalization(axis=-1)
normalizer.adapt(train_features)
print(normalizer.mean.numpy().round(2).tolist())
linear_model = tf.keras.Sequential([normalizer, tf.keras.layers.Dense(units=1)])
print(linear_model.predict(train_features[:10], verbose=0).shape, linear_model.layers[1].kernel.shape)
linear_model.layers[1].set_weights([np.zeros((2, 1)), np.zeros(1)])
linear_model.compile(optimizer=tf.keras.optimizers.Adam(learning_rate=0.1), loss="mean_absolute_error")
history = linear_model.fit(
    train_features, train_labels, epochs=10, verbose=0, validation_split=0.2, shuffle=False
)
for name in ("loss", "val_loss"):
    print(name, [round(float(each), 3) for each in history.history[name]][-3:])
print(f"{linear_model.evaluate(train_features, train_labels, verbose=0):.4f}")
