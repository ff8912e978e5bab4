"""A table of numbers and categories: layers that learn from the data before training."""

import numpy as np
from dtrain.keras import layers

import dtrain as tf

rng = np.random.default_rng(18)
kinds = np.array(["cat", "dog", "bird"])[rng.integers(0, 3, 120)]
ages = rng.integers(0, 15, 120)
fees = rng.gamma(2.0, 50.0, 120).astype("float32")
target = ((kinds == "cat") & (ages < 8) | (fees > 150)).astype("int64")
frame = {"kind": kinds, "age": ages, "fee": fees}
ds = tf.data.Dataset.from_tensor_slices((frame, target)).batch(20)

normalization = layers.Normalization(axis=None)
normalization.adapt(ds.map(lambda x, y: x["fee"]))
print(f"{normalization.mean.numpy().item():.3f} {normalization.variance.numpy().item():.1f}")
index = layers.StringLookup(vocabulary=["bird", "cat", "dog"])
print(index(np.array(["dog", "cat", "wolf"])).numpy().tolist(), index.get_vocabulary())
encoder = layers.CategoryEncoding(num_tokens=index.vocabulary_size())
buckets = layers.Discretization(bin_boundaries=[2.0, 5.0, 10.0])
print(buckets(np.array([1.0, 2.0, 7.0, 30.0])).numpy().tolist())
hashing = layers.Hashing(num_bins=4)
print(hashing(np.array(["cat", "dog", "bird"])).numpy().tolist())

inputs = {
    "kind": tf.keras.Input(shape=(1,), name="kind", dtype="string"),
    "age": tf.keras.Input(shape=(1,), name="age", dtype="int64"),
    "fee": tf.keras.Input(shape=(1,), name="fee"),
}
age = layers.CategoryEncoding(num_tokens=4)(buckets(inputs["age"]))
encoded = [encoder(index(inputs["kind"])), age, normalization(inputs["fee"])]
x = layers.Dense(8, activation="relu")(tf.keras.layers.concatenate(encoded))
output = layers.Dense(1)(layers.Dropout(0.0)(x))
model = tf.keras.Model(inputs, output)
for variable in model.trainable_variables:
    variable.assign(rng.normal(0, 0.3, variable.shape))
loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
model.compile("adam", loss, metrics=["accuracy"])
history = model.fit(ds, epochs=4, verbose=0).history
print([round(float(each), 4) for each in history["loss"]], round(float(history["accuracy"][-1]), 4))
sample = {"kind": np.array(["cat"]), "age": np.array([3]), "fee": np.array([100.0])}
print(f"{float(tf.nn.sigmoid(model.predict(sample, verbose=0))[0, 0]):.3f}")
