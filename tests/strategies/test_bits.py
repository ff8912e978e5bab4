"""`deterministic`: whatever happens on the way, weights and slots are the undisturbed run's, bit for bit.

Rule *Determinism* (docs/design/protocol.md#determinism).
"""

import hashlib

import numpy as np
import pytest
from in_memory import InMemoryCluster, step_in_work

import dtrain as dt
from dtrain import checkpoints
from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.config import CheckpointSection

REPLICAS, BATCH, EXAMPLES, EPOCHS = 3, 7, 60, 3
"""Batches of 7 over 3 replicas have parts of 3, 3 and 1 examples; the last one of an epoch has 4: 2, 2 and
none.
"""
STEPS = -(-EXAMPLES // BATCH)
OFTEN = CheckpointSection(every_steps=1, keep=100)

chance = np.random.default_rng(8)
X = chance.normal(size=(EXAMPLES, 5)).astype(np.float32)
Y = chance.integers(0, 3, EXAMPLES)


class Disturbed(dt.Sequential):
    """Calls `at[step]` once, before the leader computes a part of that step."""

    def __init__(self, at):
        layers = dt.layers
        super().__init__(
            [
                layers.Dense(8, activation="tanh", input_shape=(5,)),
                layers.Dropout(0.4),
                layers.BatchNormalization(),
                layers.Dense(3),
            ]
        )
        self.at, self.step = at, 0
        self.compile(dt.optimizers.Adam(0.01), dt.losses.SparseCategoricalCrossentropy(from_logits=True))

    def train_step(self, step):
        happens = self.at.pop(step_in_work(step), None) if self.strategy.is_leader else None
        if happens is not None:
            happens()
        return super().train_step(step)


class Shrinks(dt.callbacks.Callback):
    """Assigns values at the end of every epoch."""

    def on_epoch_end(self, epoch, logs):
        self.model.set_weights([weight * np.float32(0.9) for weight in self.model.get_weights()])


def body(model):
    slower = dt.callbacks.LearningRateScheduler(lambda epoch: 0.01 / (1 + epoch))
    history = model.fit(X, Y, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[slower, Shrinks()])
    return history.history["loss"]


def cluster(folder, servers=1, **more):
    return InMemoryCluster(folder, REPLICAS, servers, OFTEN, deterministic=True, **more)


def run(made, at=None):
    """Train, in a cluster; returns the losses of the epochs, and a hash of weights and slots."""
    losses = made.run(lambda: Disturbed(at if at is not None else {}), body)
    assert not at, "something did not happen"
    return losses[0], saved(made.folder)


def saved(folder):
    digest = hashlib.sha256()
    with checkpoints.open_checkpoint(folder / "checkpoints") as checkpoint:
        for name in sorted(checkpoint.arrays):
            digest.update(name.encode() + np.ascontiguousarray(checkpoint.read(name)).tobytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run(cluster(tmp_path_factory.mktemp("undisturbed")))


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_on_any_number_of_servers(servers, undisturbed, tmp_path):
    assert run(cluster(tmp_path, servers)) == undisturbed


@pytest.mark.parametrize(
    ("servers", "lost", "steps"),
    [(1, 0, [3]), (2, 1, [STEPS - 1, 2 * STEPS]), (2, 0, [STEPS, STEPS + 1]), (4, 3, [STEPS])],
)
def test_after_servers_that_were_restored(servers, lost, steps, undisturbed, tmp_path):
    made = cluster(tmp_path, servers)
    assert run(made, {step: lambda: made.restart_server(lost) for step in steps}) == undisturbed


@pytest.mark.parametrize(("before", "after", "step"), [(1, 1, 1), (1, 2, STEPS), (4, 2, 2 * STEPS - 1)])
def test_after_a_stop_and_a_resume(before, after, step, undisturbed, tmp_path):
    def stop():
        raise SystemExit(143)

    with pytest.raises(SystemExit):
        run(cluster(tmp_path, before), {step: stop})
    assert run(cluster(tmp_path, after)) == undisturbed


def test_whichever_server_hosts_the_control_plane(undisturbed, tmp_path, monkeypatch):
    last = property(lambda self: TaskId(Role.PS, self.count(Role.PS) - 1))
    monkeypatch.setattr(ClusterSpec, "control_host", last)
    made = cluster(tmp_path, servers=3)
    lost = made.servers[2]
    assert run(made, {STEPS: lambda: made.restart_server(2)}) == undisturbed
    assert [server.machine.control.hosts for server in made.servers] == [False, False, True]
    assert made.servers[2] is not lost
