"""`deterministic`: parameter servers, threads, one updating thread and one replica with as many parts give the
same bits.

Rule C11 of the issue; *Determinism* (docs/design/protocol.md#determinism).
"""

import numpy as np
import pytest
from in_memory import InMemoryCluster

import dtrain as dt
from dtrain.config import CentralStorageSection, MirroredSection
from dtrain.parameters import store
from dtrain.strategies.in_process import thread_replicas
from dtrain.strategies.mirrored import threads_strategy

BATCH, EXAMPLES, EPOCHS = 7, 33, 2
"""Parts of uneven sizes, and for 4 replicas an empty one."""
RULES = {
    "sgd": lambda: dt.optimizers.SGD(0.05, momentum=0.9, clipvalue=0.02),
    "adam": lambda: dt.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.7),
    "adam, clipnorm": lambda: dt.optimizers.Adam(0.01, clipnorm=0.1),
    "sgd, global_clipnorm": lambda: dt.optimizers.SGD(0.05, global_clipnorm=0.1),
}
chance = np.random.default_rng(8)
X = chance.integers(0, 50, (EXAMPLES, 3))
Y = chance.integers(0, 3, EXAMPLES)


def built(rule):
    layers = dt.layers
    model = dt.Sequential(
        [
            layers.Embedding(50, 4, input_shape=(3,)),
            layers.Flatten(),
            layers.Dense(300, activation="tanh"),
            layers.Dropout(0.4),
            layers.BatchNormalization(),
            layers.Dense(3),
        ]
    )
    model.compile(
        RULES[rule](), dt.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
    )
    return model


def body(model):
    """Train; returns every bit of the outcome in the leader."""
    history = model.fit(X, Y, batch_size=BATCH, epochs=EPOCHS, verbose=0).history
    if not model.strategy.is_leader:
        return None
    state = model.strategy.optimizer_state(model._owner)
    arrays = {name: np.array(value) for name, value in model.arrays.items()}
    for slot, of_variables in state.slots.items():
        arrays |= {f"{name} {slot}": np.array(value) for name, value in of_variables.items()}
    return {"history": history, **{name: array.tobytes() for name, array in sorted(arrays.items())}}


def in_threads(section, rule):
    with threads_strategy(section).scope():
        model = built(rule)
    return body(model)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_every_synchronous_strategy_gives_the_same_bits(parts, rule, tmp_path, monkeypatch):
    cluster = InMemoryCluster(tmp_path, parts, servers=1, deterministic=True)
    expected, *_ = cluster.run(lambda: built(rule), body)
    sections = [
        MirroredSection(replicas=parts, deterministic=True),
        CentralStorageSection(replicas=parts, deterministic=True),
        MirroredSection(replicas=1, replicas_to_aggregate=parts, deterministic=True),
    ]
    for section in sections:
        assert_same(in_threads(section, rule), expected)
    # Threads that take the next block of a larger model do so here too.
    monkeypatch.setattr(thread_replicas, "SHARED_ELEMENTS", 0)
    monkeypatch.setattr(store, "BLOCK_ELEMENTS", 100)
    assert_same(in_threads(sections[0], rule), expected)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []
