"""A Transformer block as a layer: attention, a network for each place, and two normalisations."""

import numpy as np
from dtrain.keras import layers

import dtrain as tf
from dtrain import keras

rng = np.random.default_rng(20)


class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads, ff_dim, rate=0.0):
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.ffn = keras.Sequential([layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout = layers.Dropout(rate)

    def call(self, inputs, training=None):
        attn_output = self.dropout(self.att(inputs, inputs), training=training)
        out1 = self.layernorm1(inputs + attn_output)
        return self.layernorm2(out1 + self.dropout(self.ffn(out1), training=training))


class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, maxlen, vocab_size, embed_dim):
        super().__init__()
        self.token_emb = layers.Embedding(input_dim=vocab_size, output_dim=embed_dim)
        self.pos_emb = layers.Embedding(input_dim=maxlen, output_dim=embed_dim)

    def call(self, x):
        positions = tf.range(start=0, limit=tf.shape(x)[-1], delta=1)
        return self.token_emb(x) + self.pos_emb(positions)


maxlen, vocab_size, embed_dim = 8, 25, 6
inputs = layers.Input(shape=(maxlen,))
x = TokenAndPositionEmbedding(maxlen, vocab_size, embed_dim)(inputs)
x = TransformerBlock(embed_dim, 2, 8)(x)
x = layers.GlobalAveragePooling1D()(x)
outputs = layers.Dense(2, activation="softmax")(layers.Dropout(0.0)(x))
model = keras.Model(inputs=inputs, outputs=outputs)
print(model.count_params(), model.output_shape)
model.set_weights([rng.normal(0, 0.3, each.shape) for each in model.get_weights()])

words = rng.integers(0, vocab_size, (96, maxlen))
labels = (words < 8).any(axis=1).astype(int)
model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(
    words, labels, batch_size=32, epochs=3, shuffle=False, validation_split=0.25, verbose=0
).history
for name in ("loss", "val_loss"):
    print(name, [round(float(each), 4) for each in history[name]])
