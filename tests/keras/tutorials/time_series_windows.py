"""A forecast from windows over a series, whose number is known only after the first epoch."""

import numpy as np

import dtrain as tf

rng = np.random.default_rng(5)
time = np.arange(160, dtype="float32")
series = (np.sin(time / 6) + 0.01 * time + rng.normal(0, 0.05, 160)).astype("float32")
WINDOW, BATCH = 12, 16


def windowed(series):
    dataset = tf.data.Dataset.from_tensor_slices(series[:, None])
    dataset = dataset.window(WINDOW + 1, shift=1, drop_remainder=True)
    dataset = dataset.flat_map(lambda window: window.batch(WINDOW + 1))
    return dataset.map(lambda window: (window[:-1], window[1:])).batch(BATCH).prefetch(1)


model = tf.keras.models.Sequential(
    [
        tf.keras.layers.Conv1D(8, 3, padding="causal", activation="relu", input_shape=[None, 1]),
        tf.keras.layers.LSTM(8, return_sequences=True),
        tf.keras.layers.TimeDistributed(tf.keras.layers.Dense(1)),
    ]
)
model.set_weights([rng.normal(0, 0.3, each.shape) for each in model.get_weights()])


def last_time_step_mse(y_true, y_pred):
    return tf.keras.metrics.mean_squared_error(y_true[:, -1], y_pred[:, -1])


model.compile(
    loss=tf.keras.losses.Huber(),
    optimizer=tf.keras.optimizers.SGD(learning_rate=0.05, momentum=0.9),
    metrics=["mae", last_time_step_mse],
)
history = model.fit(
    windowed(series[:130]), epochs=3, validation_data=windowed(series[130:]), verbose=0
).history
for name in ("loss", "mae", "last_time_step_mse", "val_loss"):
    print(name, [round(float(each), 4) for each in history[name]])
forecast = model.predict(windowed(series[130:]), verbose=0)
print(forecast.shape, tf.squeeze(forecast[:, -1]).numpy()[:3].round(3).tolist())
