"""Rare events: many metrics, a first bias, weights of classes and of examples."""

import numpy as np

from dtrain import keras

rng = np.random.default_rng(9)
features = rng.normal(size=(400, 6)).astype("float32")
labels = (features[:, :2].sum(axis=1) + rng.normal(0, 0.5, 400) > 1.8).astype("float32")
train, val = slice(0, 300), slice(300, 400)
neg, pos = np.bincount(labels[train].astype(int))
print(f"positive: {pos} of {neg + pos}")

METRICS = [
    keras.metrics.TruePositives(name="tp"),
    keras.metrics.FalsePositives(name="fp"),
    keras.metrics.TrueNegatives(name="tn"),
    keras.metrics.FalseNegatives(name="fn"),
    keras.metrics.BinaryAccuracy(name="accuracy"),
    keras.metrics.Precision(name="precision"),
    keras.metrics.Recall(name="recall"),
    keras.metrics.AUC(name="auc"),
    keras.metrics.AUC(name="prc", curve="PR"),
]


def make_model(metrics, output_bias=None):
    if output_bias is not None:
        output_bias = keras.initializers.Constant(output_bias)
    hidden = keras.initializers.Constant(0.1)
    model = keras.Sequential(
        [
            keras.layers.Dense(4, activation="tanh", kernel_initializer=hidden, input_shape=(6,)),
            keras.layers.Dense(1, "sigmoid", kernel_initializer=hidden, bias_initializer=output_bias),
        ]
    )
    model.compile(keras.optimizers.Adam(0.03), keras.losses.BinaryCrossentropy(), metrics=metrics)
    return model


model = make_model(METRICS, np.log([pos / neg]))
print(f"{model.evaluate(features[train], labels[train], verbose=0)[0]:.4f}")
weights = {0: (neg + pos) / neg / 2.0, 1: (neg + pos) / pos / 2.0}
stopping = keras.callbacks.EarlyStopping(monitor="val_prc", patience=3, mode="max", restore_best_weights=True)
fitted = {"epochs": 4, "batch_size": 50, "shuffle": False, "verbose": 0, "callbacks": [stopping]}
validation = {"validation_data": (features[val], labels[val])}
history = model.fit(features[train], labels[train], class_weight=weights, **fitted, **validation).history
print({name: round(float(values[-1]), 3) for name, values in sorted(history.items())})
model.fit(features[train], labels[train], sample_weight=1 + labels[train], **fitted, **validation)
print([round(float(each), 3) for each in model.evaluate(features[val], labels[val], verbose=0)])
