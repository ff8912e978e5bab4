"""The functional API: symbols, a shared layer, a sum of two branches, and a model that is saved and read."""

import numpy as np
from dtrain.keras import layers

from dtrain import keras

inputs = keras.Input(shape=(12,), name="digits")
print(inputs.shape, inputs.dtype == "float32")

dense = layers.Dense(8, activation="relu", name="shared")
x = dense(inputs)
y = layers.Dense(8, activation="tanh")(dense(1.0 - inputs))
block = x + y
block = layers.concatenate([block, x * y])
outputs = layers.Dense(3, name="predictions")(block)
model = keras.Model(inputs=inputs, outputs=outputs, name="two_branches")
print([layer.name for layer in model.layers if layer.weights])
print(model.count_params(), len(model.inputs), model.output_shape)

rng = np.random.default_rng(1)
model.set_weights([rng.normal(0, 0.3, each.shape) for each in model.get_weights()])
kernel, bias = model.get_layer("shared").get_weights()
print(kernel.shape, round(float(np.abs(kernel).sum()), 4))

features = rng.normal(size=(192, 12)).astype("float32")
classes = np.argmax(features[:, :3], axis=1)
model.compile(
    optimizer=keras.optimizers.RMSprop(0.01),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(
    features, classes, batch_size=32, epochs=3, validation_split=0.25, shuffle=False, verbose=0
)
print({name: [round(float(each), 3) for each in values] for name, values in sorted(history.history.items())})

model.save("two_branches.keras")
again = keras.models.load_model("two_branches.keras")
print(np.allclose(again.predict(features, verbose=0), model.predict(features, verbose=0), atol=1e-6))
