"""Sequences of words of several lengths: padding, masks, and a recurrent layer that reads both ways."""

import numpy as np
from dtrain.keras import layers

from dtrain import keras

rng = np.random.default_rng(4)
sequences = [rng.integers(1, 30, rng.integers(3, 10)).tolist() for _ in range(96)]
targets = np.array([int(sum(word < 15 for word in each) * 2 > len(each)) for each in sequences])
x_train = keras.utils.pad_sequences(sequences, maxlen=10, padding="post")
print(x_train.shape, x_train[0].tolist())

inputs = keras.Input(shape=(None,), dtype="int32")
x = layers.Embedding(30, 8, mask_zero=True)(inputs)
x = layers.Bidirectional(layers.LSTM(6, return_sequences=True))(x)
x = layers.Bidirectional(layers.LSTM(6))(x)
outputs = layers.Dense(1, activation="sigmoid")(x)
model = keras.Model(inputs, outputs)
print(model.count_params(), model.output_shape)
model.set_weights([rng.normal(0, 0.3, each.shape) for each in model.get_weights()])

model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
history = model.fit(x_train, targets, batch_size=16, epochs=3, shuffle=False, verbose=0).history
print([round(loss, 4) for loss in history["loss"]])

short = np.array([[3, 4, 5, 0, 0]])
padded = np.array([[3, 4, 5, 0, 0, 0, 0, 0]])
one, two = model.predict(short, verbose=0), model.predict(padded, verbose=0)
print("padding changes nothing:", np.allclose(one, two, atol=1e-6))
print(round(float(one[0, 0]), 4))
