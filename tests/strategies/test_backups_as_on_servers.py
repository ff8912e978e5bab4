"""`backup_workers` without servers and on parameter servers: where one replica is always late, both make the
same steps of the same examples.
"""

import threading

import numpy as np
import pytest
from in_memory import InMemoryCluster
from replica_fleet import ReplicaFleet

import dtrain as dt

ROWS, BATCH, EPOCHS = 24, 4, 2
LATE, WAIT_S = 2, 120.0
X = np.arange(2 * ROWS, dtype=np.float32).reshape(ROWS, 2) / ROWS
Y = X @ np.array([[2.0], [-1.0]], np.float32) + 1


class Schedule:
    """The replica of rank 2 takes its first part as the last one, and has it until the others have made all steps."""

    def __init__(self):
        self.others_compute = threading.Barrier(3)
        self.all_compute = threading.Barrier(3)
        self.all_is_over = threading.Event()
        self.rows = {0: [], 1: [], LATE: []}

    def begin(self, rank):
        """Have the late one ask for a part when the others have theirs."""
        if rank == LATE:
            self.others_compute.wait(WAIT_S)

    def computes(self, rank, x):
        first = not self.rows[rank]
        self.rows[rank].append(int(np.flatnonzero((x[0] == X).all(1))[0]))
        if first:
            if rank != LATE:
                self.others_compute.wait(WAIT_S)
            self.all_compute.wait(WAIT_S)
        if rank == LATE:
            assert self.all_is_over.wait(WAIT_S), f"the others have not made all steps within {WAIT_S} s"


class Ends(dt.callbacks.Callback):
    def __init__(self, schedule):
        super().__init__()
        self.schedule = schedule

    def on_epoch_end(self, epoch, logs=None):
        if epoch == EPOCHS - 1:
            self.schedule.all_is_over.set()


def trained(cluster, *, gathers):
    """Return History and weights of every replica, and the rows of its parts, by the first of each.

    A replica without servers asks for a part when all have gathered; one on servers as soon as it comes.
    """
    schedule = Schedule()

    def build():
        model = dt.Sequential([dt.layers.Dense(1, kernel_initializer="ones", input_shape=(2,))])
        model.compile(dt.optimizers.SGD(0.05, momentum=0.5), "mse", metrics=["mae"])
        return model

    def body(model):
        rank, open_fit, train_step = model.strategy.rank, model.strategy.open, model.train_step

        def opened(problem):
            if not gathers:
                schedule.begin(rank)
            training = open_fit(problem)
            if gathers:
                schedule.begin(rank)
            return training

        def step_of(step):
            schedule.computes(rank, np.asarray(step.x))
            return train_step(step)

        model.strategy.open, model.train_step = opened, step_of
        history = model.fit(
            *(X, Y),
            batch_size=BATCH,
            epochs=EPOCHS,
            shuffle=False,
            verbose=0,
            callbacks=[Ends(schedule)],
        )
        return history.history, [value.tolist() for value in model.get_weights()]

    return cluster.run(build, body), schedule.rows


@pytest.mark.parametrize("weighting", ["replicas", "examples"])
def test_what_one_late_replica_leaves_undone_is_the_same(weighting, tmp_path):
    settings = {"backup_workers": 1, "weighting": weighting}
    found, rows = trained(ReplicaFleet(tmp_path / "among themselves", 3, **settings), gathers=True)
    expected, rows_there = trained(InMemoryCluster(tmp_path / "on servers", 3, **settings), gathers=False)
    assert found == [found[0]] * 3
    assert found == expected
    assert rows[LATE] == rows_there[LATE] == [4], "its part is the third"
    every_pass = [*range(0, ROWS, 2)]
    for each in (rows, rows_there):
        assert sorted([*each[0], *each[1], 4]) == sorted([*every_pass * EPOCHS, 0]), (
            "the next part is in its place"
        )
