"""Transfer learning: a base that is trained, frozen, given another head, and fine-tuned."""

import numpy as np
from dtrain.keras import layers

from dtrain import keras

rng = np.random.default_rng(8)
patterns = rng.random((4, 10, 10, 1))
labels = rng.integers(0, 4, 96)
images = (patterns[labels] + rng.normal(0, 0.1, (96, 10, 10, 1))).astype("float32")


def filled(model):
    model.set_weights([rng.normal(0, 0.2, each.shape) for each in model.get_weights()])


base_model = keras.Sequential(
    [
        layers.Conv2D(6, 3, activation="relu", input_shape=(10, 10, 1)),
        layers.MaxPooling2D(),
        layers.Conv2D(6, 3, activation="relu"),
        layers.GlobalAveragePooling2D(),
    ],
    name="base",
)
inputs = keras.Input(shape=(10, 10, 1))
pretrained = keras.Model(inputs, layers.Dense(4)(base_model(inputs)))
filled(pretrained)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
pretrained.compile(keras.optimizers.Adam(0.01), loss)
history = pretrained.fit(images, labels, epochs=3, shuffle=False, verbose=0).history
print([round(float(each), 4) for each in history["loss"]])

base_model.trainable = False
x = base_model(inputs, training=False)
model = keras.Model(inputs, layers.Dense(1, name="head")(layers.Dropout(0.0)(x)))
model.get_layer("head").set_weights([rng.normal(0, 0.2, (6, 1)), np.zeros(1)])
print(len(model.trainable_weights), len(model.non_trainable_weights))
model.compile(keras.optimizers.Adam(0.01), keras.losses.BinaryCrossentropy(from_logits=True))
before = base_model.get_weights()
head = model.fit(images, labels % 2, epochs=3, shuffle=False, verbose=0).history["loss"]
print([round(float(each), 4) for each in head])
print("the base has not moved:", all(np.array_equal(*each) for each in zip(before, base_model.get_weights())))

base_model.trainable = True
model.compile(keras.optimizers.Adam(1e-3), keras.losses.BinaryCrossentropy(from_logits=True))
tuned = model.fit(images, labels % 2, epochs=2, shuffle=False, verbose=0).history["loss"]
print(len(model.trainable_weights), [round(float(each), 4) for each in tuned])
