"""The best weights of a training that stops early go with the callback's state to the task that leads next."""

import numpy as np

import dtrain as dt
from dtrain.formats import plain_data
from dtrain.strategies.single import SingleStrategy

X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(16, 1)


class Worse(dt.callbacks.Callback):
    """Spoils the weights after the second epoch, so that the best ones are none of the last."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch >= 1:
            self.model.set_weights([np.full((1, 1), -50.0, np.float32), np.zeros(1, np.float32)])


def test_the_next_leader_goes_back_to_the_weights_of_the_best_epoch():
    stop = dt.callbacks.EarlyStopping("loss", restore_best_weights=True, patience=1)
    with SingleStrategy().scope():
        model = dt.Sequential([dt.layers.Dense(1, input_shape=(1,))])
        model.compile("sgd", "mse")
        model.fit(X, 3 * X, batch_size=4, epochs=4, shuffle=False, verbose=0, callbacks=[stop, Worse()])
    successor = dt.callbacks.EarlyStopping("loss", restore_best_weights=True, patience=1)
    successor.set_state(plain_data.decode(plain_data.encode(stop.get_state())))
    assert (successor.best_epoch, successor.best) == (stop.best_epoch, stop.best) == (1, stop.best)
    assert len(successor.best_weights) == 2
    for mine, theirs, spoiled in zip(
        successor.best_weights, stop.best_weights, model.get_weights(), strict=True
    ):
        assert np.array_equal(mine, theirs)
        assert not np.array_equal(mine, spoiled)
