"""Tickets: two inputs of text and one of tags, a priority and a department."""

import numpy as np
from dtrain.keras import layers

from dtrain import keras

num_words, num_tags, num_departments = 40, 5, 3
title_input = keras.Input(shape=(None,), name="title")
body_input = keras.Input(shape=(None,), name="body")
tags_input = keras.Input(shape=(num_tags,), name="tags")
title_features = layers.LSTM(6)(layers.Embedding(num_words, 8)(title_input))
body_features = layers.LSTM(4)(layers.Embedding(num_words, 8)(body_input))
x = layers.concatenate([title_features, body_features, tags_input])
priority_pred = layers.Dense(1, name="priority")(x)
department_pred = layers.Dense(num_departments, name="department")(x)
model = keras.Model([title_input, body_input, tags_input], [priority_pred, department_pred])

rng = np.random.default_rng(7)
model.set_weights([rng.normal(0, 0.2, each.shape) for each in model.get_weights()])
model.compile(
    optimizer=keras.optimizers.RMSprop(1e-2),
    loss={
        "priority": keras.losses.BinaryCrossentropy(from_logits=True),
        "department": keras.losses.CategoricalCrossentropy(from_logits=True),
    },
    loss_weights={"priority": 1.0, "department": 0.2},
    metrics={"department": ["accuracy"]},
)
title_data = rng.integers(num_words, size=(96, 5))
body_data = rng.integers(num_words, size=(96, 9))
tags_data = rng.integers(2, size=(96, num_tags)).astype("float32")
priority_targets = rng.random(size=(96, 1)).round()
dept_targets = np.eye(num_departments, dtype="float32")[rng.integers(num_departments, size=96)]
inputs = {"title": title_data, "body": body_data, "tags": tags_data}
targets = {"priority": priority_targets, "department": dept_targets}
history = model.fit(inputs, targets, epochs=2, batch_size=32, shuffle=False, verbose=0).history
for name, values in sorted(history.items()):
    print(name, [round(float(each), 4) for each in values])
priority, department = model.predict(inputs, verbose=0)
print(priority.shape, department.shape, round(float(department.sum()), 3))
