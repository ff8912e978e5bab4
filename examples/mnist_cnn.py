"""A small convolutional network on MNIST (or Fashion-MNIST), with callbacks, and a model file that is used
without a cluster.

    dtrain launch examples/mnist_cnn.py --data FOLDER
    dtrain launch --updates sync examples/mnist_cnn.py --quick
    python examples/mnist_cnn.py --data FOLDER --evaluate FILE      # a saved model, in one process

`images.py` says how to get the files. Checkpoints, TensorBoard's files and the model lie in the run
directory.
"""

import argparse
from pathlib import Path
from typing import Any

import images
from digits import Examples

import dtrain as dt


def decay(epoch: int) -> float:
    """Return the learning rate of an epoch."""
    if epoch < 3:
        return 1e-3
    return 1e-4 if epoch < 7 else 1e-5


class PrintRate(dt.callbacks.Callback):
    """Prints the learning rate at the end of each epoch."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        print(f"learning rate of epoch {epoch + 1} was {self.model.optimizer.learning_rate:g}", flush=True)


def cnn() -> dt.Sequential:
    model = dt.Sequential(
        [
            dt.layers.Conv2D(32, 3, activation="relu"),
            dt.layers.MaxPooling2D(),
            dt.layers.Flatten(),
            dt.layers.Dense(64, activation="relu"),
            dt.layers.Dense(10),
        ]
    )
    loss = dt.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=dt.optimizers.Adam(), loss=loss, metrics=["accuracy"])
    return model


def report(model: dt.Model, test: Examples) -> None:
    loss, accuracy = model.evaluate(test)
    print(f"accuracy on images not seen {accuracy:.4f}, loss {loss:.6f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--evaluate", metavar="FILE", help="evaluate a saved model; nothing is trained")
    images.add_arguments(parser)
    args = parser.parse_args()
    train, test = ((x[..., None], y) for x, y in images.load(args))
    if args.evaluate:
        report(dt.load_model(args.evaluate), test)
        return

    strategy = dt.get_strategy()
    with strategy.scope():
        model = cnn()
    folder = Path(strategy.directory or ".")
    callbacks = [
        dt.callbacks.TensorBoard(folder / "logs"),
        dt.callbacks.ModelCheckpoint(folder / "ckpt_{epoch}", save_weights_only=True),
        dt.callbacks.LearningRateScheduler(decay),
        PrintRate(),
    ]
    batches = (
        dt.data.Dataset.from_tensor_slices(train)
        .shuffle(10_000, seed=0)
        .batch(64 * strategy.num_replicas_in_sync)
    )
    model.fit(batches, epochs=args.epochs, validation_data=test, callbacks=callbacks)
    file = folder / "mnist_cnn.dtrain"
    model.save(file)  # in tasks that do not lead it is thrown away
    if strategy.is_leader:
        report(model, test)
        print(f"saved to {file}")


if __name__ == "__main__":
    main()
