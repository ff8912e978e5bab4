"""Objects of batches by number, as Keras's Sequence, as data: alone and on clusters, each example once an epoch."""

import numpy as np
import pytest
from in_memory import InMemoryCluster
from replica_fleet import ReplicaFleet

import dtrain as dt
from dtrain.errors import InputError

EXAMPLES, EPOCHS = 7, 2


class Batches(dt.utils.Sequence):
    def __len__(self):
        return 4

    def __getitem__(self, number):
        x = np.eye(EXAMPLES, dtype=np.float32)[2 * number : 2 * number + 2]
        return x, np.full((len(x), 1), 1e6, np.float32)


class Told(Batches):
    def __init__(self):
        self.ends = 0

    def on_epoch_end(self):
        self.ends += 1


def build():
    model = dt.Sequential(
        [dt.layers.Dense(1, use_bias=False, kernel_initializer="zeros", input_shape=(EXAMPLES,))]
    )
    model.compile(dt.optimizers.SGD(1.0), dt.losses.MeanAbsoluteError(reduction="sum"))
    return model


def fit(model, data=Batches):
    model.fit(data(), epochs=EPOCHS, verbose=0)
    return np.rint(model.get_weights()[0].ravel()).astype(int).tolist()


ONCE_AN_EPOCH = [EPOCHS] * EXAMPLES


def test_alone_it_is_trained_on_evaluated_and_predicted():
    model = build()
    assert fit(model) == ONCE_AN_EPOCH
    assert model.predict(Batches(), verbose=0).ravel().tolist() == [float(EPOCHS)] * EXAMPLES
    assert model.evaluate(Batches(), verbose=0) > 0
    assert set(model.fit(Batches(), validation_data=Batches(), verbose=0).history) == {"loss", "val_loss"}


def test_its_own_on_epoch_end_is_called_at_the_end_of_each_epoch():
    told = Told()
    model = build()
    model.fit(told, epochs=3, verbose=0)
    assert told.ends == 3


def test_on_clusters_every_example_counts_once_an_epoch(tmp_path):
    cluster = InMemoryCluster(tmp_path / "sync", 2, 2, updates="sync")
    assert cluster.run(build, fit)[0] == ONCE_AN_EPOCH
    assert InMemoryCluster(tmp_path / "async", 2, 1, updates="async").run(build, fit)[0] == ONCE_AN_EPOCH
    assert ReplicaFleet(tmp_path / "fleet", 2).run(build, fit) == [ONCE_AN_EPOCH] * 2


def test_in_a_run_one_that_changes_between_epochs_is_refused_with_what_to_do(tmp_path):
    text = "Told has an on_epoch_end of its own.*leave it out and let fit shuffle.*from_generator"
    with pytest.raises(InputError, match=text):
        InMemoryCluster(tmp_path, 2, 1, updates="sync").run(build, lambda model: fit(model, Told))
