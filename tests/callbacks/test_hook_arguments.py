"""Hooks get what Keras gives them: `logs` always, and the number and the numbers of a batch that was refused."""

import numpy as np

import dtrain as dt
from dtrain.callbacks.callback import HOOKS


def compiled():
    model = dt.Sequential([dt.layers.Dense(1, input_shape=(3,))])
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def test_every_hook_gets_logs():
    seen = {}

    def noting(name):
        return lambda self, *arguments: seen.setdefault(name, arguments)

    noting_all = type("Noting", (dt.callbacks.Callback,), {name: noting(name) for name in HOOKS})
    x, y = np.zeros((8, 3), np.float32), np.zeros((8, 1), np.float32)
    model = compiled()
    model.fit(x, y, verbose=0, validation_data=(x, y), callbacks=[noting_all()])
    model.predict(x, verbose=0, callbacks=[noting_all()])
    assert seen.keys() >= set(HOOKS) - {"on_batch_begin", "on_batch_end"}
    for name, arguments in seen.items():
        assert len(arguments) == (2 if "batch" in name or "epoch" in name else 1), name
        assert isinstance(arguments[-1], dict), name
    asked = []
    by_lambda = dt.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: asked.append((epoch, logs)),
        on_train_begin=lambda logs: asked.append(logs),
    )
    model.fit(x, y, verbose=0, callbacks=[by_lambda])
    assert asked == [{}, (0, {})]


def test_a_refused_batch_has_its_own_number_and_the_means_before_it(capsys):
    x, y = np.ones((80, 3), np.float32), np.ones((80, 1), np.float32)
    x[5 * 8 : 6 * 8] = np.nan
    ends = []

    class Noting(dt.callbacks.Callback):
        def on_train_batch_end(self, batch, logs):
            ends.append((batch, logs))

    callbacks = [Noting(), dt.callbacks.TerminateOnNaN()]
    compiled().fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=callbacks)
    assert [batch for batch, _ in ends] == [0, 1, 2, 3, 4, 5]
    assert np.isnan(ends[5][1]["loss"])
    assert ends[5][1]["mae"] == ends[4][1]["mae"]
    assert "Batch 5: Invalid loss" in capsys.readouterr().out
