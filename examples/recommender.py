"""Who likes which film: a table with a row for every user and every film. The ratings are made by a formula.

    dtrain launch --set 'training.partitioner={fixed_shards: 2}' examples/recommender.py

The table lies on the parameter servers, in two shards; of it only the rows travel that a batch reads, and
their gradients. With ``--users 10000000`` a step takes as long, and no worker ever holds the table.
"""

import argparse

import numpy as np
from numpy.typing import NDArray

import dtrain as dt

FILMS = 2000


def ratings(users: int, count: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """(user and film, rating), those with low numbers more often than others: how kind the user is and how
    good the film.
    """
    rng = np.random.default_rng(seed)
    user, film = ((rng.random(count) ** 3 * size).astype(np.int64) for size in (users, FILMS))
    rating = np.sin(user * 0.61) + np.sin(film * 0.37) + rng.normal(0, 0.1, count)
    # One table for both: row FILMS + u is user u's.
    return np.stack([FILMS + user, film], axis=1), rating.astype(np.float32)[:, None]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()

    held_out = ratings(args.users, 20_000, seed=1)

    strategy = dt.get_strategy()
    with strategy.scope():
        vectors = dt.layers.Embedding(FILMS + args.users, 16, input_shape=(2,), name="vectors")
        model = dt.Sequential([vectors, dt.layers.Flatten(), dt.layers.Dense(1)])
        model.compile(optimizer=dt.optimizers.Adagrad(0.3), loss="mse")
    data = ratings(args.users, 200_000, seed=0)
    model.fit(data, batch_size=256, epochs=2, steps_per_epoch=args.steps // 2, validation_data=held_out)
    if strategy.is_leader:
        print(
            f"the variance of ratings is {np.var(held_out[1]):.3f}, the error {model.evaluate(held_out):.3f}"
        )
        print(f"film 7 is {model.arrays['vectors/embeddings'][7].round(2)}")


if __name__ == "__main__":
    main()
