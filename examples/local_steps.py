"""Digits by replicas that train by themselves and meet once in 20 steps: a twentieth of the traffic.

    dtrain launch --local-steps 20 --backup-workers 1 examples/local_steps.py

What is merged, and how, is said in docs/guide/local_steps.md. The same file trains alone with
`python examples/local_steps.py`.
"""

import argparse

from digits import load_digits

import dtrain as dt


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--epochs", type=int, default=30, help="passes over the digits (default: %(default)s)"
    )
    parser.add_argument("--batch_size", type=int, default=32, help="of one replica (default: %(default)s)")
    args = parser.parse_args()

    train, test = load_digits()
    inner = dt.optimizers.Adam(3e-3)  # it moves each replica's own copy
    strategy = dt.ParameterServerStrategy(local_steps=20)  # the command line and a spec win over it
    with strategy.scope():
        model = dt.Sequential(
            [
                dt.layers.Dense(64, activation="relu"),
                dt.layers.Dense(64, activation="relu"),
                dt.layers.Dense(10),
            ]
        )
        model.compile(
            optimizer=inner,
            loss=dt.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    batch_size = args.batch_size * strategy.num_replicas_in_sync  # of all replicas
    history = model.fit(*train, batch_size=batch_size, epochs=args.epochs, validation_data=test, verbose=0)
    if strategy.is_leader:
        print(f"{len(history.epoch)} epochs, {int(inner.iterations)} steps of each replica")
        loss, accuracy = model.evaluate(test, verbose=0)
        print(f"held-out accuracy {accuracy:.4f}, loss {loss:.4f}")


if __name__ == "__main__":
    main()
