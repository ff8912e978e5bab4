"""A convolutional network whose first layers change images at random while it trains."""

import numpy as np
from dtrain.keras import layers

import dtrain as tf

rng = np.random.default_rng(2)
labels = rng.integers(0, 3, 120)
images = rng.integers(40, 200, (3, 12, 12, 3))[labels] + rng.normal(0, 20, (120, 12, 12, 3))
dataset = tf.data.Dataset.from_tensor_slices((images.astype("float32"), labels)).batch(20)
train_ds, val_ds = dataset.take(5).cache().prefetch(tf.data.AUTOTUNE), dataset.skip(5)

data_augmentation = tf.keras.Sequential(
    [
        layers.RandomFlip("horizontal", input_shape=(12, 12, 3)),
        layers.RandomRotation(0.02),
        layers.RandomZoom(0.05),
    ]
)
model = tf.keras.Sequential(
    [
        data_augmentation,
        layers.Rescaling(1.0 / 255),
        layers.Conv2D(8, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(8, 3, padding="same", activation="relu"),
        layers.Flatten(),
        layers.Dense(3, name="outputs"),
    ]
)
model.set_weights([rng.normal(0, 0.1, each.shape) for each in model.get_weights()])
model.compile(
    optimizer=tf.keras.optimizers.Adam(0.005),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
print(f"before: {model.evaluate(val_ds, verbose=0)[0]:.4f}")
print(data_augmentation(images[:4], training=True).shape)
model.fit(train_ds, validation_data=val_ds, epochs=6, verbose=0)
loss, accuracy = model.evaluate(val_ds, verbose=0)
print("every second image is recognised:", accuracy > 0.5)
score = tf.nn.softmax(model.predict(images[:1].astype("float32"), verbose=0)[0]).numpy()
print("the scores are probabilities:", round(float(np.sum(score)), 4))
