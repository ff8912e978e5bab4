"""A run goes on with other replicas, other servers or another strategy: at the same example, and the epoch
sees each one once.

Each example has a weight of its own that grows by 1 each time its gradient counts.
"""

import threading

import numpy as np
import pytest
from in_memory import InMemoryCluster, step_in_work

import dtrain as dt
from dtrain import checkpoints
from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config import RunSpec, training_section
from dtrain.process.assignment import TaskAssignment
from dtrain.strategies.choice import strategy_of

EXAMPLES, BATCH = 60, 6
X, Y = np.eye(EXAMPLES, dtype=np.float32), np.full((EXAMPLES, 1), 1e6, np.float32)


IN_ONE_TASK = {"single": {}, "mirrored": {"replicas": 3}, "central_storage": {"replicas": 2}}


ON_SERVERS = {
    "sync": {"updates": "sync"},
    "async": {"updates": "async"},
    "backups": {"updates": "sync", "backup_workers": 1, "on_stale": "retry_same_batch"},
}
LATE = 2
"""The rank of the replica without which the others make every step."""


class Counting(dt.Sequential):
    """Breaks off before the leader computes this step; the others wait for that."""

    def __init__(self, stop_at, batch, over):
        kernel = dt.layers.Dense(1, use_bias=False, kernel_initializer="zeros", input_shape=(EXAMPLES,))
        super().__init__([kernel])
        self.stop_at, self.batch, self.over = stop_at, batch, over
        self.compile(dt.optimizers.SGD(float(batch)), "mae")

    def train_step(self, step):
        if getattr(self.strategy.training, "backup_workers", 0) and self.strategy.context.rank == LATE:
            assert self.over.wait(60), "the leader has not broken off"  # this part of an early batch is left
        if step_in_work(step) >= self.stop_at:
            if self.strategy.is_leader:
                self.over.set()
                raise SystemExit(143)
            assert self.over.wait(60), "the leader has not broken off"
        return super().train_step(step)


def fit(model):
    model.fit(X, Y, batch_size=model.batch, epochs=2, verbose=0)
    return np.rint(model.get_weights()[0].ravel()).astype(int).tolist()


def train(folder, kind, stop_at=1000, batch=BATCH):
    """Go on in a folder, in a `kind` of training; returns how often each example has counted."""
    over = threading.Event()
    if kind in IN_ONE_TASK:
        cluster = ClusterSpec.from_lists(chief=["c:0"])
        spec = RunSpec(training=training_section(strategy=kind, **IN_ONE_TASK[kind]))
        strategy = strategy_of(
            TaskAssignment(TaskId.parse("chief:0"), cluster, spec, "run", folder, launched=True)
        )
        with strategy.scope():
            model = Counting(stop_at, batch, over)
        try:
            return fit(model)
        finally:
            strategy.close()
    updates, replicas, servers = kind
    return InMemoryCluster(folder, replicas, servers, **ON_SERVERS[updates]).run(
        lambda: Counting(stop_at, batch, over), fit
    )[0]


@pytest.mark.parametrize(
    ("first", "second", "third"),
    [
        (("sync", 2, 1), ("sync", 3, 2), ("sync", 1, 4)),
        (("sync", 3, 2), "single", ("sync", 2, 1)),
        ("single", ("async", 2, 2), "single"),
        (("async", 3, 1), ("sync", 2, 2), ("async", 1, 3)),
        ("mirrored", ("sync", 2, 1), "central_storage"),
        (("async", 2, 1), "central_storage", "mirrored"),
        ("central_storage", "single", "mirrored"),
        ("single", "mirrored", ("async", 2, 2)),
        (("backups", 3, 2), "single", ("sync", 3, 1)),
        (("backups", 3, 2), ("async", 2, 2), "mirrored"),
        (("backups", 3, 2), ("sync", 2, 1), ("async", 1, 2)),
        (("backups", 3, 2), ("sync", 4, 1), "mirrored"),
    ],
    ids=str,
)
def test_every_example_of_both_epochs_counts_once(first, second, third, tmp_path):
    for kind, stop_at in ((first, 4), (second, 13)):
        with pytest.raises(SystemExit):
            train(tmp_path, kind, stop_at)
    assert train(tmp_path, third) == [2] * EXAMPLES


def test_smaller_batches_go_on_at_the_same_example_and_the_console_says_what_steps_mean_now(tmp_path, capfd):
    with pytest.raises(SystemExit):
        train(tmp_path, ("sync", 3, 2), 4)
    with pytest.raises(SystemExit):
        train(tmp_path, ("async", 1, 1), 4 + (EXAMPLES - 4 * BATCH) // 2, batch=2)
    assert "batch size 6, now 2; batches 10, now 30; steps per epoch 10, now 30" in capfd.readouterr().err
    with checkpoints.open_checkpoint(tmp_path / "checkpoints") as checkpoint:
        [name] = checkpoint.variables
        assert np.rint(checkpoint.read(name)).ravel().tolist() == [1] * EXAMPLES
