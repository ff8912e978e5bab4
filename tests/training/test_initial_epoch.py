"""A fit that begins at a later epoch makes the steps of the epochs that are left, and no more."""

import numpy as np
import pytest

import dtrain as dt
from dtrain.errors import InputError
from dtrain.training.batches import Batches
from dtrain.training.fits.leading import Epochs

X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(16, 1)


def fit(**arguments):
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(1,))])
    model.compile("sgd", "mse")
    history = model.fit(X, X, batch_size=4, verbose=0, **arguments)
    return history.epoch, int(model.optimizer.iterations)


def test_the_last_step_is_that_of_the_epochs_that_are_left():
    batches = Batches.of((X, X), batch_size=4, shuffle=False, seed=0)
    epochs = Epochs.of(batches, None, 5, 2, 1)
    assert (epochs.steps_per_epoch, epochs.max_steps) == (4, 12)
    assert fit(epochs=5, initial_epoch=2) == ([2, 3, 4], 12)


@pytest.mark.parametrize(("initial_epoch", "epochs"), [(3, 2), (-1, 2)])
def test_an_epoch_that_is_not_among_them_is_refused(initial_epoch, epochs):
    with pytest.raises(InputError, match=f"initial_epoch <= epochs, found .*initial_epoch {initial_epoch}"):
        fit(epochs=epochs, initial_epoch=initial_epoch)
