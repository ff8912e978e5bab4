"""A program to start from: put your data into `load_data` and your layers into `make_model`.

python train.py                         one process
dtrain launch cluster.yaml train.py     a cluster on this machine
"""

import argparse

import numpy as np
from numpy.typing import NDArray

import dtrain as dt

Examples = tuple[NDArray[np.float32], NDArray[np.float32]]


def load_data() -> tuple[Examples, Examples]:
    """Return ((x, y) to train on, (x, y) held out), the same in every task: x is [n, 8], y [n, 1]."""
    random = np.random.default_rng(0)
    x = random.normal(size=(5000, 8)).astype(np.float32)
    noise = random.normal(scale=0.1, size=5000)
    y = (np.sin(x[:, 0]) + x[:, 1] * x[:, 2] + noise).astype(np.float32)[:, None]
    return (x[:4000], y[:4000]), (x[4000:], y[4000:])


def make_model() -> dt.Sequential:
    """Return a model that has been compiled."""
    hidden = [dt.layers.Dense(64, activation="relu"), dt.layers.Dense(64, activation="relu")]
    model = dt.Sequential([*hidden, dt.layers.Dense(1)])
    model.compile(optimizer=dt.optimizers.Adam(1e-3), loss="mse", metrics=["mae"])
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20, help="(default: %(default)s)")
    parser.add_argument("--batch_size", type=int, default=32, help="of one replica (default: %(default)s)")
    args = parser.parse_args()

    train, held_out = load_data()
    strategy = dt.get_strategy()  # from this task's cluster; without one, this process trains alone
    with strategy.scope():
        model = make_model()
    batch_size = args.batch_size * strategy.num_replicas_in_sync
    model.fit(*train, batch_size=batch_size, epochs=args.epochs, validation_data=held_out)
    if strategy.is_leader:  # what the others save is thrown away
        loss, error = model.evaluate(*held_out)
        print(f"on data that were held out: loss {loss:.4f}, mean absolute error {error:.4f}")
        model.save("model.safetensors")


if __name__ == "__main__":
    main()
