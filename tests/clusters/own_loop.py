"""A loop of the program's own, which prints its losses to the last bit.

Tasks that are named in its arguments kill themselves in their fourth step.
"""

import hashlib
import os
import signal
import sys

import numpy as np

import dtrain as dt


def run(strategy: dt.Strategy) -> list[str]:
    """Train, and return the loss of every step as text."""
    x = np.random.default_rng(1).normal(size=(45, 4)).astype(np.float32)
    dataset = dt.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).batch(8)
    distributed = strategy.experimental_distribute_dataset(dataset)
    with strategy.scope():
        model = dt.Sequential(
            [
                dt.layers.Dense(8, activation="relu", input_shape=(4,)),
                dt.layers.BatchNormalization(synchronized=True),
                dt.layers.Dense(1, kernel_regularizer="l2"),
            ]
        )
        optimizer = dt.optimizers.Adam(0.01, global_clipnorm=1.0)
        metric = dt.metrics.MeanSquaredError()

    def step(x: np.ndarray, y: np.ndarray) -> object:
        loss, gradients, outputs = model.value_and_gradients(
            "mse", x, y, global_batch_size=8, return_outputs=True
        )
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        metric.update_state(y, outputs)
        return loss

    losses = []
    for _ in range(2):
        for batch in distributed:
            if len(losses) == 3 and os.environ.get("DTRAIN_TASK") in sys.argv[1:]:
                os.kill(os.getpid(), signal.SIGKILL)
            loss = strategy.reduce("SUM", strategy.run(step, args=batch), axis=None)
            losses.append(float(loss).hex())
    weights = float(sum(np.abs(each).sum() for each in model.get_weights()))
    return [*losses, metric.result().hex(), weights.hex()]


_chance = np.random.default_rng(2)
REAL = _chance.normal(1, 1, size=(34, 3)).astype(np.float32)
NOISE = _chance.normal(size=(34, 2)).astype(np.float32)


def run_two_models(strategy: dt.Strategy) -> tuple[list[list[float]], list[np.ndarray], list[np.ndarray]]:
    """Train a generator through a discriminator; return both losses of every step, the weights, and those at
    the beginning.
    """
    dataset = dt.data.Dataset.from_tensor_slices((REAL, NOISE)).batch(8)
    distributed = strategy.experimental_distribute_dataset(dataset)
    with strategy.scope():
        hidden = dt.layers.Dense(6, activation="tanh", input_shape=(2,), name="hidden")
        generator = dt.Sequential([hidden, dt.layers.Dense(3, name="made")])
        judging = dt.layers.Dense(6, activation="tanh", input_shape=(3,), name="judging")
        discriminator = dt.Sequential([judging, dt.layers.Dense(1, name="verdict")])
        inputs = dt.Input(shape=(2,))
        both = dt.Model(inputs, discriminator(generator(inputs)))
        of_generator = dt.optimizers.Adam(0.05)
        of_discriminator = dt.optimizers.SGD(0.05, momentum=0.9, global_clipnorm=0.1)
    before = [*generator.get_weights(), *discriminator.get_weights()]
    loss = dt.losses.BinaryCrossentropy(from_logits=True)

    def step(real: np.ndarray, noise: np.ndarray) -> object:
        true, false = np.ones((len(real), 1), np.float32), np.zeros((len(real), 1), np.float32)
        made = generator(noise, training=True)
        on_real, by_real = discriminator.value_and_gradients(loss, real, true, global_batch_size=8)
        on_made, by_made = discriminator.value_and_gradients(loss, made, false, global_batch_size=8)
        deceived, by_both = both.value_and_gradients(loss, noise, true, global_batch_size=8)
        summed = [one + other for one, other in zip(by_real, by_made, strict=True)]
        of_discriminator.apply_gradients(zip(summed, discriminator.trainable_variables, strict=True))
        mine = generator.trainable_variables
        of_generator.apply_gradients(zip(by_both[: len(mine)], mine, strict=True))
        return on_real + on_made, deceived

    losses = []
    for batch in distributed:
        found = strategy.reduce("SUM", strategy.run(step, args=batch), axis=None)
        losses.append([float(each) for each in found])
    return losses, [*generator.get_weights(), *discriminator.get_weights()], before


def told(losses: list[list[float]], weights: list[np.ndarray]) -> str:
    """Return what two models have learned, to the last bit, as text."""
    digest = hashlib.sha256(b"".join(each.tobytes() for each in weights)).hexdigest()
    return " ".join([*(each.hex() for step in losses for each in step), digest])


if __name__ == "__main__":
    strategy = dt.get_strategy()
    resolver = strategy.cluster_resolver
    print("task", resolver.task_type, resolver.task_id, resolver.cluster_spec().num_tasks("worker"))
    print("losses", *run(strategy))
    print("two models", told(*run_two_models(strategy)[:2]))
