"""The tutorial of MirroredStrategy with Keras, on images that it draws; only the import is another's."""

import os
import tempfile

import numpy as np

import dtrain as tf

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
print("Number of devices: {}".format(strategy.num_replicas_in_sync))

# A local copy in the place of tfds.load
folder = tempfile.mkdtemp()
rng = np.random.default_rng(0)
labels = rng.integers(0, 10, 384).astype(np.int64)
images = rng.integers(0, 256, (10, 28, 28, 1))[labels] + rng.normal(0, 60, (384, 28, 28, 1))
images = np.clip(images, 0, 255).astype(np.uint8)
np.savez(os.path.join(folder, "images.npz"), train=images[:256], test=images[256:])
copy = np.load(os.path.join(folder, "images.npz"))

BATCH_SIZE_PER_REPLICA = 32
BATCH_SIZE = BATCH_SIZE_PER_REPLICA * strategy.num_replicas_in_sync


def scale(image, label):
    image = tf.cast(image, tf.float32)
    image /= 255
    return image, label


train = tf.data.Dataset.from_tensor_slices((copy["train"], labels[:256]))
train_dataset = train.map(scale).cache().batch(BATCH_SIZE)
test = tf.data.Dataset.from_tensor_slices((copy["test"], labels[256:]))
eval_dataset = test.map(scale).batch(BATCH_SIZE)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(8, 3, activation="relu", input_shape=(28, 28, 1)),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(16, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, optimizer=tf.keras.optimizers.Adam(), metrics=["accuracy"])
draw = np.random.default_rng(1)
model.set_weights([draw.normal(0, 0.1, np.shape(each)).astype(np.float32) for each in model.get_weights()])

checkpoint_dir = "./training_checkpoints"
checkpoint_prefix = os.path.join(checkpoint_dir, "ckpt_{epoch}")


def decay(epoch):
    if epoch < 3:
        return 1e-2
    return 1e-3 if epoch < 7 else 1e-4


class PrintLR(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("Learning rate for epoch {} is {:.6f}".format(epoch + 1, model.optimizer.lr.numpy()))


callbacks = [
    tf.keras.callbacks.TensorBoard(log_dir="./logs"),
    tf.keras.callbacks.ModelCheckpoint(filepath=checkpoint_prefix, save_weights_only=True),
    tf.keras.callbacks.LearningRateScheduler(decay),
    PrintLR(),
]
history = model.fit(train_dataset, epochs=4, callbacks=callbacks, verbose=0).history
print([round(float(each), 4) for each in history["loss"]])
print("logs are written:", os.path.isdir("./logs/train"))

model.load_weights(tf.train.latest_checkpoint(checkpoint_dir))
eval_loss, eval_acc = model.evaluate(eval_dataset, verbose=0)
print("Eval loss: {:.4f}, Eval accuracy: {:.4f}".format(eval_loss, eval_acc))

path = "./saved_model"
model.save(path, save_format="tf")
unreplicated_model = tf.keras.models.load_model(path)
unreplicated_model.compile(loss=loss, optimizer=tf.keras.optimizers.Adam(), metrics=["accuracy"])
eval_loss, eval_acc = unreplicated_model.evaluate(eval_dataset, verbose=0)
print("Eval loss: {:.4f}, Eval Accuracy: {:.4f}".format(eval_loss, eval_acc))
with strategy.scope():
    replicated_model = tf.keras.models.load_model(path)
    replicated_model.compile(loss=loss, optimizer=tf.keras.optimizers.Adam(), metrics=["accuracy"])
    eval_loss, eval_acc = replicated_model.evaluate(eval_dataset, verbose=0)
    print("Eval loss: {:.4f}, Eval Accuracy: {:.4f}".format(eval_loss, eval_acc))
