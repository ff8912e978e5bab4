"""Values that the replicas of a step reduce while they compute it, and normalization over all of them."""

import numpy as np
import pytest
from in_memory import InMemoryCluster

import dtrain as dt
from dtrain.config import CentralStorageSection, MirroredSection
from dtrain.distribute import ReduceOp
from dtrain.errors import CallsDifferError, ProgramError
from dtrain.strategies.mirrored import CentralStorage, MirroredThreads
from dtrain.strategies.single import SingleStrategy

chance = np.random.default_rng(3)
X = chance.normal(3.0, 2.0, size=(20, 6, 6, 2)).astype(np.float32)
Y = chance.integers(0, 3, 20)


def normalized():
    model = dt.Sequential(
        [
            dt.layers.Conv2D(3, 3, input_shape=(6, 6, 2)),
            dt.layers.BatchNormalization(momentum=0.5, synchronized=True),
            dt.layers.Activation("relu"),
            dt.layers.Flatten(),
            dt.layers.Dense(3),
            dt.layers.BatchNormalization(synchronized=True),
        ]
    )
    model.compile("sgd", dt.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def fit(model):
    return model.fit(X, Y, batch_size=9, epochs=3, shuffle=False, verbose=0).history["loss"]


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize(
    "kind", [(MirroredThreads, MirroredSection), (CentralStorage, CentralStorageSection)]
)
def test_normalization_over_all_replicas_is_that_of_the_whole_batch(kind, replicas):
    """Batches of 9, 9 and 2, cut into 5 and 4, or 3 each, and 1 and 1: one part of three is empty."""
    strategy, section = kind
    with SingleStrategy().scope():
        expected = normalized()
    with strategy(section(replicas=replicas, weighting="examples")).scope():
        found = normalized()
    np.testing.assert_allclose(fit(found), fit(expected), rtol=1e-4)
    for name, weight in expected.arrays.items():
        if "moving" not in name or replicas == 2:  # a replica without examples keeps its moving values
            np.testing.assert_allclose(found.arrays[name], weight, rtol=1e-3, atol=1e-4, err_msg=name)


def test_where_replicas_do_not_meet_within_a_step_it_is_refused_in_a_sentence(tmp_path):
    expected = r"synchronized=True\) needs sums over all replicas within a step; expected a strategy whose"
    with pytest.raises(ProgramError, match=expected):
        InMemoryCluster(tmp_path, 2).run(normalized, fit)
    with MirroredThreads(MirroredSection(replicas=3, backup_workers=1)).scope():
        model = normalized()
    with pytest.raises(ProgramError, match=expected):
        fit(model)


def acting(act, **section):
    """A model whose step first calls `act` with the step's replica."""

    class Acting(dt.Sequential):
        def train_step(self, step):
            act(step._replica)
            return super().train_step(step)

    with MirroredThreads(MirroredSection(**section)).scope():
        model = Acting([dt.layers.Flatten(input_shape=(6, 6, 2)), dt.layers.Dense(3)])
        model.compile("sgd", dt.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def test_replicas_reduce_what_they_give_and_empty_ones_are_not_waited_for():
    """The last batch has 2 examples: replica 2 has none of it."""
    found = []

    def act(replica):
        value = {"rank": float(replica.rank), "pair": [np.full(2, replica.rank + 1.0), np.ones(1)]}
        found.append(replica.all_reduce(ReduceOp.SUM, value))
        found.append(replica.all_reduce(ReduceOp.MEAN, value))

    acting(act, replicas=3).fit(X, Y, batch_size=9, shuffle=False, verbose=0)
    assert [float(each["rank"]) for each in found].count(3.0) == 6
    sums = [each for each in found if float(each["rank"]) == 3.0]
    assert [each.tolist() for each in sums[0]["pair"]] == [[6.0, 6.0], [3.0]]
    assert sorted({float(each["rank"]) for each in found}) == [0.5, 1.0, 3.0]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            lambda replica: replica.all_reduce(ReduceOp.SUM, np.ones(2 + replica.rank)),
            r"replicas made different calls: replica 0 all_reduce of SUM .*float64\[2\] at .*py:\d+, replica 1 ",
        ),
        (
            lambda replica: replica.rank or replica.all_reduce(ReduceOp.SUM, 1.0),
            r"replica 0 waits in all_reduce .*, and replica 1 has ended without that call",
        ),
    ],
)
def test_different_calls_end_all_replicas_with_both_sites(act, message):
    with pytest.raises(CallsDifferError, match=message):
        fit(acting(act, replicas=2))


def test_an_exchange_needs_all_parts_at_once():
    def act(replica):
        replica.all_reduce(ReduceOp.SUM, 1.0)

    with pytest.raises(ProgramError, match="not all parts of a step are computed at the same time"):
        fit(acting(act, replicas=2, replicas_to_aggregate=3))
