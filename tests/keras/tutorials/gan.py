"""Two networks that train against each other, by two tapes."""

import numpy as np

import dtrain as tf
from dtrain import keras

rng = np.random.default_rng(21)
real_data = np.stack([rng.normal(1.0, 0.1, 64), rng.normal(-1.0, 0.1, 64)], axis=1).astype("float32")
noise = rng.normal(size=(3, 4, 16, 4)).astype("float32")

generator = keras.Sequential(
    [keras.layers.Dense(8, input_shape=(4,)), keras.layers.LeakyReLU(), keras.layers.Dense(2)],
    name="generator",
)
discriminator = keras.Sequential(
    [keras.layers.Dense(8, input_shape=(2,)), keras.layers.LeakyReLU(0.2), keras.layers.Dense(1)],
    name="discriminator",
)
for model in (generator, discriminator):
    model.set_weights([rng.normal(0, 0.4, each.shape) for each in model.get_weights()])
cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)
generator_optimizer = keras.optimizers.Adam(1e-2, beta_1=0.5)
discriminator_optimizer = keras.optimizers.Adam(1e-2, beta_1=0.5)


def discriminator_loss(real_output, fake_output):
    real_loss = cross_entropy(tf.ones_like(real_output), real_output)
    fake_loss = cross_entropy(tf.zeros_like(fake_output), fake_output)
    return real_loss + fake_loss


def train_step(images, noise):
    with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
        generated = generator(noise, training=True)
        real_output = discriminator(images, training=True)
        fake_output = discriminator(generated, training=True)
        gen_loss = cross_entropy(tf.ones_like(fake_output), fake_output)
        disc_loss = discriminator_loss(real_output, fake_output)
    generator_gradients = gen_tape.gradient(gen_loss, generator.trainable_variables)
    discriminator_gradients = disc_tape.gradient(disc_loss, discriminator.trainable_variables)
    generator_optimizer.apply_gradients(zip(generator_gradients, generator.trainable_variables))
    discriminator_optimizer.apply_gradients(zip(discriminator_gradients, discriminator.trainable_variables))
    return gen_loss, disc_loss


dataset = tf.data.Dataset.from_tensor_slices(real_data).batch(16)
for epoch in range(3):
    for step, image_batch in enumerate(dataset):
        gen_loss, disc_loss = train_step(image_batch, noise[epoch, step])
    print("epoch", epoch, "generator %.4f, discriminator %.4f" % (gen_loss, disc_loss))
print(generator(noise[0, 0], training=False).numpy().mean(axis=0).round(3).tolist())
