"""MNIST by a model that is cut into stages, each of which another task computes and holds.

    dtrain launch examples/pipeline_mnist.py --quick
    dtrain launch --stages 2 examples/pipeline_mnist.py --data FOLDER

docs/guide/pipelines.md says what travels, and when a pipeline pays. The same file trains in one process with
`python examples/pipeline_mnist.py --quick`. `images.py` says how to get the files.
"""

import argparse

import images

import dtrain as dt


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, help="(default: 5, with --quick 15)")
    parser.add_argument("--batch_size", type=int, default=64, help="(default: %(default)s)")
    images.add_arguments(parser)
    args = parser.parse_args()
    train, test = images.load(args)

    strategy = dt.PipelineStrategy()  # as many stages as tasks train; the command line and a spec win over it
    with strategy.scope():
        model = dt.Sequential(
            [
                dt.layers.Reshape((*train[0].shape[1:], 1)),
                dt.layers.Conv2D(16, 3, padding="same", activation="relu", name="features"),
                dt.layers.MaxPooling2D(2),
                dt.layers.Flatten(),
                dt.layers.Dense(256, activation="relu", name="hidden"),
                dt.layers.Dropout(0.2),
                dt.layers.Dense(10, name="digits"),
            ]
        )
        model.compile(
            optimizer=dt.optimizers.Adam(2e-3),
            loss=dt.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    epochs = args.epochs or (15 if args.quick else 5)
    model.fit(*train, batch_size=args.batch_size, epochs=epochs, validation_data=test, verbose=0)
    loss, accuracy = model.evaluate(*test, verbose=0)
    if strategy.is_leader:
        print(f"accuracy on images not seen {accuracy:.4f}, loss {loss:.4f}")


if __name__ == "__main__":
    main()
