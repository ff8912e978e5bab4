"""Anomalies: an autoencoder that is a class, and a threshold on its errors."""

import numpy as np
from dtrain.keras import layers
from dtrain.keras.models import Model

import dtrain as tf

rng = np.random.default_rng(6)
curve = np.sin(np.linspace(0, 6, 20))
normal = (curve * rng.normal(1, 0.1, (96, 1)) + rng.normal(0, 0.05, (96, 20))).astype("float32")
anomalous = (np.cos(np.linspace(0, 9, 20)) + rng.normal(0, 0.05, (16, 20))).astype("float32")
low = tf.reduce_min(normal)
normal, anomalous = ((tf.cast(each, tf.float32) - low) / 3.0 for each in (normal, anomalous))


class AnomalyDetector(Model):
    def __init__(self):
        super().__init__()
        self.encoder = tf.keras.Sequential(
            [layers.Dense(8, activation="relu"), layers.Dense(3, activation="relu")]
        )
        self.decoder = tf.keras.Sequential(
            [layers.Dense(8, activation="relu"), layers.Dense(20, activation="sigmoid")]
        )

    def call(self, x):
        encoded = self.encoder(x)
        return self.decoder(encoded)


autoencoder = AnomalyDetector()
autoencoder.compile(optimizer=tf.keras.optimizers.Adam(0.01), loss="mae")
autoencoder(normal[:1])
autoencoder.set_weights([np.abs(rng.normal(0, 0.3, each.shape)) for each in autoencoder.get_weights()])
history = autoencoder.fit(normal, normal, epochs=8, batch_size=32, shuffle=False, verbose=0).history
print([round(loss, 4) for loss in history["loss"]])

encoded = autoencoder.encoder(normal[:2]).numpy()
print(encoded.shape, autoencoder.decoder(encoded).numpy().shape)
train_loss = tf.keras.losses.mae(autoencoder.predict(normal, verbose=0), normal)
threshold = np.mean(train_loss) + 2 * np.std(train_loss)
print(f"threshold: {threshold:.4f}")
loss = tf.keras.losses.mae(autoencoder(anomalous), anomalous)
print("anomalies found:", int(tf.reduce_sum(tf.cast(tf.math.less(threshold, loss), tf.int32)).numpy()))
