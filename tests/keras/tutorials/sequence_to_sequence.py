"""An encoder whose states begin a decoder: training with the right words, then word by word."""

import numpy as np
from dtrain.keras import layers

from dtrain import keras

rng = np.random.default_rng(22)
tokens, latent_dim, length = 6, 8, 4
words = rng.integers(1, tokens, (96, length))
one_hot = np.eye(tokens, dtype="float32")
encoder_input_data, decoder_target_data = one_hot[words], one_hot[words[:, ::-1]]
decoder_input_data = np.concatenate([one_hot[np.zeros((96, 1), int)], decoder_target_data[:, :-1]], axis=1)

encoder_inputs = keras.Input(shape=(None, tokens))
encoder_outputs, state_h, state_c = layers.LSTM(latent_dim, return_state=True)(encoder_inputs)
encoder_states = [state_h, state_c]
decoder_inputs = keras.Input(shape=(None, tokens))
decoder_lstm = layers.LSTM(latent_dim, return_sequences=True, return_state=True)
decoder_outputs, _, _ = decoder_lstm(decoder_inputs, initial_state=encoder_states)
decoder_dense = layers.Dense(tokens, activation="softmax")
model = keras.Model([encoder_inputs, decoder_inputs], decoder_dense(decoder_outputs))
model.set_weights([rng.normal(0, 0.3, each.shape) for each in model.get_weights()])
model.compile(optimizer="rmsprop", loss="categorical_crossentropy", metrics=["accuracy"])
history = model.fit(
    [encoder_input_data, decoder_input_data],
    decoder_target_data,
    batch_size=32,
    epochs=3,
    shuffle=False,
    validation_split=0.2,
    verbose=0,
).history
for name in ("loss", "val_loss"):
    print(name, [round(float(each), 4) for each in history[name]])

encoder_model = keras.Model(encoder_inputs, encoder_states)
state_inputs = [keras.Input(shape=(latent_dim,)), keras.Input(shape=(latent_dim,))]
outputs, h, c = decoder_lstm(decoder_inputs, initial_state=state_inputs)
decoder_model = keras.Model([decoder_inputs, *state_inputs], [decoder_dense(outputs), h, c])
states = encoder_model.predict(encoder_input_data[:1], verbose=0)
word, decoded, likely = 0, [], []
for _ in range(length):
    output, *states = decoder_model.predict([one_hot[[[word]]], *states], verbose=0)
    word = int(np.argmax(output[0, -1]))
    decoded.append(word)
    likely.append(round(float(output[0, -1, word]), 3))
print(decoded, likely)
