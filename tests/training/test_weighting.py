"""N replicas follow one process: with `weighting: examples` for batches of any size, with `replicas` where N
divides each.
"""

import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory import InMemoryCluster
from row_by_row import every_row

import dtrain as dt
from dtrain.strategies.single import SingleStrategy

MOST_REPLICAS = 5
MOST_EXAMPLES = 9
ROWS = 7
RNG = np.random.default_rng(7)
X = RNG.normal(size=(3 * MOST_EXAMPLES, 4)).astype(np.float32)
Y = RNG.normal(size=(3 * MOST_EXAMPLES, 1)).astype(np.float32)
IDS = RNG.integers(0, ROWS, size=(3 * MOST_EXAMPLES, 3))
WEIGHTS = RNG.uniform(0.2, 2, size=3 * MOST_EXAMPLES).astype(np.float32)


def dense(optimizer=None, loss="mse", penalty=None):
    return dt.Sequential(
        [
            dt.layers.Dense(
                3,
                activation="tanh",
                input_shape=X.shape[1:],
                kernel_regularizer=penalty,
                bias_regularizer=penalty,
            ),
            dt.layers.Dense(1, kernel_regularizer=penalty),
        ]
    ), {"optimizer": optimizer or dt.optimizers.SGD(0.05, momentum=0.9), "loss": loss}


def embedded(optimizer):
    layers = [dt.layers.Embedding(ROWS, 2, input_length=3), dt.layers.Flatten(), dt.layers.Dense(1)]
    return dt.Sequential(layers), {"optimizer": optimizer, "loss": "mse"}


KINDS = {
    "plain": dense,
    "adam": lambda: dense(dt.optimizers.Adam(0.01)),
    "sum": lambda: dense(dt.optimizers.SGD(0.01), dt.losses.MeanSquaredError(reduction="sum")),
    "none": lambda: dense(dt.optimizers.SGD(0.01), dt.losses.MeanSquaredError(reduction="none")),
    "regularizers": lambda: dense(penalty="l1_l2"),
    "sum and regularizers": lambda: dense(
        dt.optimizers.SGD(0.01), dt.losses.MeanSquaredError(reduction="sum"), "l2"
    ),
    "clipped by global norm": lambda: dense(dt.optimizers.SGD(0.05, global_clipnorm=0.2)),
    "clipped by norm": lambda: dense(dt.optimizers.SGD(0.05, clipnorm=0.1)),
    "rows": lambda: embedded(dt.optimizers.legacy.Adagrad(0.05)),
    "rows with momentum": lambda: embedded(dt.optimizers.legacy.SGD(0.05, momentum=0.9)),
    "rows as a whole": lambda: embedded(dt.optimizers.Adagrad(0.05)),
    "sample weights": dense,
}


def built(kind):
    model, options = KINDS[kind]()
    model.compile(**options, metrics=["mae"])
    return model


def arrays(kind, rows):
    data = (IDS if kind.startswith("rows") else X)[rows], Y[rows]
    return (*data, WEIGHTS[rows]) if kind == "sample weights" else data


def in_batches(kind, sizes):
    """A Dataset of batches of these sizes."""
    ends = np.cumsum([0, *sizes])
    batches = [arrays(kind, np.arange(start, stop) % len(X)) for start, stop in pairwise(ends)]
    return dt.data.Dataset.from_generator(lambda: iter(batches))


def whole(kind, examples, batch_size):
    """Arrays, of which a replica reads its own rows."""
    return dt.data.Dataset.from_tensor_slices(arrays(kind, np.arange(examples))).batch(batch_size)


def fitted(model, data, steps):
    history = model.fit(data, epochs=2, steps_per_epoch=steps, shuffle=False, verbose=0).history
    return model.get_weights(), history


def agree(kind, replicas, data, steps, **training):
    """N replicas come to the weights and to the history of one process."""
    with SingleStrategy().scope():
        weights, history = fitted(built(kind), data(), steps)
    with tempfile.TemporaryDirectory() as folder:
        servers = 1 if kind == "clipped by global norm" else 1 + replicas % 2
        cluster = InMemoryCluster(Path(folder), replicas, servers, **training)
        found = cluster.run(lambda: built(kind), lambda model: fitted(model, data(), steps))
    for own_weights, own_history in found:
        for array, expected in zip(own_weights, weights, strict=True):
            np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-5)
        assert list(own_history) == list(history)
        for name in history:
            if training["weighting"] == "examples" or "sum" not in kind:
                np.testing.assert_allclose(own_history[name], history[name], rtol=1e-4, atol=1e-5)


@every_row("replicas", range(1, MOST_REPLICAS + 1))
def test_batches_of_every_size_weighted_by_examples(replicas):
    sizes = range(1, MOST_EXAMPLES + 1)
    agree("plain", replicas, lambda: in_batches("plain", sizes), len(sizes), weighting="examples")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=3)
@given(
    replicas=st.integers(1, MOST_REPLICAS),
    batch_size=st.integers(1, MOST_EXAMPLES),
    last=st.integers(1, MOST_EXAMPLES),
)
def test_weighted_by_examples_replicas_follow_one_process(kind, replicas, batch_size, last):
    examples = 2 * batch_size + min(last, batch_size)
    agree(kind, replicas, lambda: whole(kind, examples, batch_size), 3, weighting="examples")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=2)
@given(replicas=st.integers(1, MOST_REPLICAS), data=st.data())
def test_weighted_by_replicas_they_follow_it_where_their_number_divides_every_batch(kind, replicas, data):
    sizes = data.draw(
        st.lists(
            st.integers(1, MOST_EXAMPLES // replicas).map(lambda each: each * replicas),
            min_size=1,
            max_size=3,
        )
    )
    agree(kind, replicas, lambda: in_batches(kind, sizes), len(sizes), weighting="replicas")


def told(capsys, replicas, folder, examples=10, batch_size=4, **training):
    """What `fit` says of parts without examples."""
    cluster = InMemoryCluster(folder, replicas, **training)
    cluster.run(lambda: built("plain"), lambda model: fitted(model, whole("plain", examples, batch_size), 3))
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("fit:")]


def test_fit_says_once_that_parts_have_no_examples(capsys, tmp_path):
    expected = (
        "batches of 4 over 3 replicas: 1 of 3 parts has no examples, so gradients are 0.67 times those of one process; "
        "see training.weighting"
    )
    assert told(capsys, 3, tmp_path) == [f"fit: {expected}"]


@pytest.mark.parametrize(
    ("replicas", "options"), [(2, {"examples": 12}), (3, {"weighting": "examples"}), (1, {})]
)
def test_fit_says_nothing_where_gradients_are_those_of_one_process(replicas, options, capsys, tmp_path):
    assert told(capsys, replicas, tmp_path, **options) == []
