"""A rollback of the servers undoes changes that callbacks made and that were not yet sent to anybody."""

from types import SimpleNamespace

from dtrain.learning import optimizers
from dtrain.training.fits.leading import Steering


def steering():
    """A leader that has told nothing yet, and what its strategy is told."""
    told = []
    optimizer = optimizers.SGD(0.5)
    rule = optimizers.serialize(optimizer)
    training = SimpleNamespace(weights={"w": 1.0}, finished=False, optimizer=rule, order=told.append)
    model = SimpleNamespace(arrays=training.weights, stop_training=False)
    return Steering(model, optimizer, training, holds=True), told


def test_a_stop_and_weights_that_nobody_was_told_of_are_undone_and_made_again():
    it, told = steering()
    it.begin_epoch(last_step=8)
    it.model.stop_training, it.model.arrays = True, {"w": 9.0}
    it.goes_back()
    assert (it.model.stop_training, it.model.arrays) == (False, it.training.weights)
    it.model.stop_training = True
    it.tell_changes()
    assert [(each.stop, each.until) for each in told] == [(False, 8), (True, 8)]


def test_a_stop_that_was_told_stays():
    it, told = steering()
    it.model.stop_training = True
    it.tell_changes()
    it.model.stop_training = False
    it.goes_back()
    assert it.model.stop_training
    assert len(told) == 1
