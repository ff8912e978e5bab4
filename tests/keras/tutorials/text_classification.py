"""Sentiment of short texts: a vocabulary that is learned, and a model that takes the text itself."""

import numpy as np
from dtrain.keras import layers, losses

import dtrain as tf

GOOD, BAD = ["great", "lovely", "fine", "superb"], ["awful", "boring", "poor", "weak"]
rng = np.random.default_rng(3)
labels = rng.integers(0, 2, 128)
texts = [
    "The {} film, {} and {}!".format(*rng.choice(GOOD if label else BAD, 3).tolist()) for label in labels
]
raw_train_ds = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(16)

vectorize_layer = layers.TextVectorization(max_tokens=20, output_mode="int", output_sequence_length=8)
vectorize_layer.adapt(raw_train_ds.map(lambda text, label: text))
print(len(vectorize_layer.get_vocabulary()), vectorize_layer.get_vocabulary()[:4])


def vectorize_text(text, label):
    return vectorize_layer(tf.expand_dims(text, -1)), label


train_ds = raw_train_ds.map(vectorize_text).cache().prefetch(buffer_size=tf.data.AUTOTUNE)
model = tf.keras.Sequential(
    [layers.Embedding(20, 8), layers.GlobalAveragePooling1D(), layers.Dense(1, name="logit")]
)
model.compile(
    loss=losses.BinaryCrossentropy(from_logits=True),
    optimizer=tf.keras.optimizers.Adam(0.05),
    metrics=[tf.metrics.BinaryAccuracy(threshold=0.0)],
)
model.build((None, 8))
model.set_weights([rng.normal(0, 0.1, each.shape) for each in model.get_weights()])
history = model.fit(train_ds, epochs=4, verbose=0).history
print([round(float(loss), 4) for loss in history["loss"]])
print([round(float(accuracy), 4) for accuracy in history["binary_accuracy"]])

export_model = tf.keras.Sequential([vectorize_layer, model, layers.Activation("sigmoid")])
examples = tf.constant(["A superb, lovely film.", "Poor and boring.", "Unknown words"])
print(export_model.predict(examples, verbose=0).round(3).tolist())
