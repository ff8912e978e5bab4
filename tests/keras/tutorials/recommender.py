"""A recommender: two tables of vectors and biases, their product, and the vectors nearest to one."""

import numpy as np
from dtrain.keras import layers

import dtrain as tf
from dtrain import keras

rng = np.random.default_rng(19)
users, films = 30, 20
pairs = np.stack([rng.integers(0, users, 300), rng.integers(0, films, 300)], axis=1)
taste, kind = rng.normal(size=(users, 2)), rng.normal(size=(films, 2))
ratings = tf.nn.sigmoid((taste[pairs[:, 0]] * kind[pairs[:, 1]]).sum(axis=1)).numpy().astype("float32")


class RecommenderNet(keras.Model):
    def __init__(self, num_users, num_films, embedding_size):
        super().__init__()
        init = {"embeddings_initializer": "he_normal", "embeddings_regularizer": keras.regularizers.l2(1e-6)}
        self.user_embedding = layers.Embedding(num_users, embedding_size, **init)
        self.user_bias = layers.Embedding(num_users, 1)
        self.film_embedding = layers.Embedding(num_films, embedding_size, **init)
        self.film_bias = layers.Embedding(num_films, 1)

    def call(self, inputs):
        user_vector, film_vector = self.user_embedding(inputs[:, 0]), self.film_embedding(inputs[:, 1])
        product = tf.reduce_sum(user_vector * film_vector, axis=1, keepdims=True)
        x = product + self.user_bias(inputs[:, 0]) + self.film_bias(inputs[:, 1])
        return tf.nn.sigmoid(x)


model = RecommenderNet(users, films, 4)
model(pairs[:2])
for variable in model.trainable_variables:
    variable.assign(rng.normal(0, 0.3, variable.shape))
model.compile(keras.optimizers.Adam(0.02), keras.losses.BinaryCrossentropy(), metrics=["mse"])
history = model.fit(
    pairs, ratings, batch_size=50, epochs=4, shuffle=False, validation_split=0.1, verbose=0
).history
for name in ("loss", "mse", "val_loss"):
    print(name, [round(float(each), 4) for each in history[name]])

seen = pairs[pairs[:, 0] == 3][:, 1]
unseen = np.array([film for film in range(films) if film not in seen])
scores = model.predict(np.stack([np.full(len(unseen), 3), unseen], axis=1), verbose=0).flatten()
print("recommended to user 3:", unseen[scores.argsort()[-3:][::-1]].tolist())
vectors = model.film_embedding.get_weights()[0]
cosine = -keras.losses.cosine_similarity(np.repeat(vectors[:1], films, axis=0), vectors)
print("like film 0:", np.argsort(-np.asarray(cosine))[1:4].tolist())
