"""Whatever shows a model's variables while `fit` trains shows the newest version, wherever that lies."""

import numpy as np
import pytest
from replica_fleet import ReplicaFleet

import dtrain as dt
from dtrain.config import MirroredSection
from dtrain.strategies.mirrored import threads_strategy

STEPS, RATE = 5, 0.5


def built():
    """A model, and another one that is its first layer alone."""
    inputs = dt.Input((1,))
    hidden = dt.layers.Dense(1, use_bias=False, kernel_initializer="ones", name="first")(inputs)
    model = dt.Model(inputs, dt.layers.Dense(1, use_bias=False, kernel_initializer="ones")(hidden))
    model.compile(dt.optimizers.SGD(RATE), "mae")
    return model, dt.Model(inputs, hidden)


class Looks(dt.callbacks.Callback):
    """What is seen after each step: by the model, its variables, and the model that shares its layer."""

    def __init__(self, part):
        self.part, self.seen = part, []

    def on_train_batch_end(self, batch, logs=None):
        variable = self.model.get_layer("first").trainable_variables[0]
        self.seen.append(
            [
                float(self.model.get_weights()[0][0, 0]),
                float(variable.numpy()[0, 0]),
                float(self.part.predict(np.ones((1, 1)), verbose=0)[0, 0]),
            ]
        )


def trained(models):
    model, part = models
    part.predict(np.ones((1, 1)), verbose=0)
    looks = Looks(part)
    x, y = np.full((2 * STEPS, 1), 0.25, np.float32), np.zeros((2 * STEPS, 1), np.float32)
    model.fit(x, y, batch_size=2, shuffle=False, verbose=0, callbacks=[looks])
    return looks.seen if model.strategy.is_leader else None


def in_threads():
    with threads_strategy(MirroredSection(replicas=2)).scope():
        return trained(built())


@pytest.mark.parametrize("where", ["processes", "threads"])
def test_variables_and_models_that_share_layers_show_each_step(where, tmp_path):
    seen = ReplicaFleet(tmp_path, 2).run(built, trained)[0] if where == "processes" else in_threads()
    assert len(seen) == STEPS
    first = [values[0] for values in seen]
    assert len(set(first)) == STEPS, "each step moves it"
    assert seen == [[value] * 3 for value in first]
