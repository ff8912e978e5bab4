"""Saving: checkpoints while training, the newest of them, weights alone, and the whole model."""

import os

import numpy as np

import dtrain as tf
from dtrain import keras

rng = np.random.default_rng(15)
x = rng.normal(size=(96, 8)).astype("float32")
y = np.argmax(x[:, :4], axis=1)
first = [rng.normal(0, 0.3, shape) for shape in ((8, 16), (16,), (16, 4), (4,))]


def create_model(weights=first):
    model = keras.Sequential(
        [keras.layers.Dense(16, activation="relu", input_shape=(8,)), keras.layers.Dense(4)]
    )
    model.set_weights(weights)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["sparse_categorical_accuracy"])
    return model


model = create_model()
checkpoint_path = "training/cp-{epoch:04d}.ckpt"
cp_callback = keras.callbacks.ModelCheckpoint(filepath=checkpoint_path, verbose=0, save_weights_only=True)
model.fit(x, y, epochs=4, batch_size=32, shuffle=False, callbacks=[cp_callback], verbose=0)
trained = model.evaluate(x, y, verbose=0)
print([round(float(each), 4) for each in trained])

latest = tf.train.latest_checkpoint(os.path.dirname(checkpoint_path))
print(os.path.basename(latest))
restored = create_model()
print(f"untrained: {restored.evaluate(x, y, verbose=0)[0]:.4f}")
restored.load_weights(latest)
print("restored:", np.allclose(restored.evaluate(x, y, verbose=0), trained, atol=1e-6))

model.save_weights("manual.weights.h5")
restored.set_weights(first)
restored.load_weights("manual.weights.h5")
print("from weights:", np.allclose(restored.get_weights()[0], model.get_weights()[0]))

model.save("my_model.keras")
new_model = keras.models.load_model("my_model.keras")
print("whole model:", np.allclose(new_model.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-6))
for each in (model, new_model):
    loss = each.fit(x, y, epochs=1, batch_size=32, shuffle=False, verbose=0).history["loss"]
    print(f"goes on: {loss[0]:.4f}, {int(each.optimizer.iterations.numpy())}")
rebuilt = keras.models.model_from_json(model.to_json())
print(rebuilt.count_params() == model.count_params())
