"""A perceptron on MNIST (or Fashion-MNIST), trained by many workers.

    dtrain launch examples/mnist_mlp.py --data FOLDER
    dtrain launch --updates sync --workers 3 examples/mnist_mlp.py --quick

`images.py` says how to get the files.
"""

import argparse
from pathlib import Path

import images

import dtrain as dt


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch_size", type=int, default=100, help="of one replica (default: %(default)s)")
    images.add_arguments(parser)
    args = parser.parse_args()
    train, test = images.load(args)

    strategy = dt.get_strategy()
    with strategy.scope():
        model = dt.Sequential(
            [
                dt.layers.Flatten(),
                dt.layers.Dense(512, activation="relu"),
                dt.layers.Dropout(0.2),
                dt.layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(
        train,
        epochs=args.epochs,
        batch_size=args.batch_size * strategy.num_replicas_in_sync,
        validation_data=test,
    )
    file = Path(strategy.directory or ".", "mnist_mlp.dtrain")
    model.save(file)  # in tasks that do not lead it is thrown away
    if strategy.is_leader:
        loss, accuracy = model.evaluate(test)
        print(f"accuracy on images not seen {accuracy:.4f}, loss {loss:.4f}; saved to {file}")


if __name__ == "__main__":
    main()
