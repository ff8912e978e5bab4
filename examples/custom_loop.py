"""A training loop of one's own over several replicas, as in TensorFlow's tutorial.

    python examples/custom_loop.py --quick
    dtrain launch examples/custom_loop.py --data FOLDER

`images.py` says how to get the files. `model.value_and_gradients` takes the place of `tf.GradientTape`.
"""

import argparse
from typing import Any

import images

import dtrain as dt


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch_size", type=int, default=64, help="of one replica (default: %(default)s)")
    images.add_arguments(parser)
    args = parser.parse_args()
    train, test = images.load(args)

    strategy = dt.MirroredStrategy()
    global_batch_size = args.batch_size * strategy.num_replicas_in_sync
    print(f"replicas {strategy.num_replicas_in_sync}")

    def distributed(data: Any, shuffle: int) -> Any:
        dataset = dt.data.Dataset.from_tensor_slices(data)
        if shuffle:
            dataset = dataset.shuffle(shuffle, seed=1)
        return strategy.experimental_distribute_dataset(dataset.batch(global_batch_size))

    train_dataset = distributed(train, shuffle=len(train[0]))
    test_dataset = distributed(test, shuffle=0)

    with strategy.scope():
        model = dt.Sequential(
            [
                dt.Input(train[0].shape[1:]),
                dt.layers.Flatten(),
                dt.layers.Dense(128, activation="relu"),
                dt.layers.Dense(10),
            ]
        )
        optimizer = dt.optimizers.Adam(0.001)
        loss_object = dt.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        train_accuracy = dt.metrics.SparseCategoricalAccuracy()
        test_accuracy = dt.metrics.SparseCategoricalAccuracy()

    def train_step(x: Any, y: Any) -> Any:
        loss, gradients, logits = model.value_and_gradients(
            loss_object, x, y, global_batch_size=global_batch_size, return_outputs=True
        )
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        train_accuracy.update_state(y, logits)
        return loss

    def test_step(x: Any, y: Any) -> None:
        test_accuracy.update_state(y, model(x))

    for epoch in range(args.epochs):
        total, steps = 0.0, 0
        for batch in train_dataset:
            per_replica_losses = strategy.run(train_step, args=batch)
            total += strategy.reduce("SUM", per_replica_losses, axis=None)
            steps += 1
        for batch in test_dataset:
            strategy.run(test_step, args=batch)
        print(
            f"epoch {epoch + 1}: loss {total / steps:.4f}, accuracy {train_accuracy.result():.4f}, "
            f"accuracy on images not seen {test_accuracy.result():.4f}"
        )
        train_accuracy.reset_state()
        test_accuracy.reset_state()


if __name__ == "__main__":
    main()
