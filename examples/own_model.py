"""A gradient from elsewhere: matrix factorisation written as two functions over numpy arrays, trained on
every strategy.

    dtrain launch examples/own_model.py

Users rate films; the model gives each user and each film a few numbers, whose product should be the rating.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dtrain as dt

USERS, FILMS, FACTORS = 60, 40, 3

Array = NDArray[Any]


def init(rng: np.random.Generator) -> dict[str, Array]:
    """Return the initial value of every variable."""
    return {
        "users": rng.normal(0, 0.5, (USERS, FACTORS)),
        "films": rng.normal(0, 0.5, (FILMS, FACTORS)),
        "mean": np.zeros(1),
    }


def loss_and_gradients(
    weights: Mapping[str, Array], pairs: Array, ratings: Array
) -> tuple[float, dict[str, Array]]:
    """Return the mean squared error of a batch of (user, film) and its gradient by every variable."""
    users, films = pairs.T
    u, f = weights["users"][users], weights["films"][films]
    error = np.sum(u * f, axis=1) + weights["mean"] - ratings
    slope = 2 * error[:, np.newaxis] / len(error)
    gradients = {name: np.zeros_like(value) for name, value in weights.items()}
    np.add.at(gradients["users"], users, slope * f)
    np.add.at(gradients["films"], films, slope * u)
    gradients["mean"][0] = slope.sum()
    return float(np.mean(error**2)), gradients


def ratings(examples: int = 20_000) -> tuple[Array, Array]:
    """(pairs, ratings) of users and films that do have such factors; the noise has variance 0.01."""
    rng = np.random.default_rng(0)
    true = init(rng)
    pairs = rng.integers([USERS, FILMS], size=(examples, 2))
    users, films = pairs.T
    return pairs, 3 + np.sum(true["users"][users] * true["films"][films], axis=1) + rng.normal(
        0, 0.1, examples
    )


def main() -> None:
    pairs, values = ratings()
    train, test = (pairs[:-2000], values[:-2000]), (pairs[-2000:], values[-2000:])
    strategy = dt.get_strategy()
    with strategy.scope():
        model = dt.from_function(init, loss_and_gradients)
        model.compile(optimizer=dt.optimizers.Adam(0.03))
    model.fit(train, epochs=10, batch_size=100, validation_data=test, verbose=0)
    if strategy.is_leader:
        print(f"squared error on ratings not seen: {model.evaluate(test):.4f}, of which noise 0.01")


if __name__ == "__main__":
    main()
