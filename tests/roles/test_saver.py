"""What the leader saves: of the servers what each of them says of itself, and of a beginning what it has."""

import numpy as np

from dtrain import checkpoints
from dtrain.config import CheckpointSection
from dtrain.learning import optimizers
from dtrain.messages import SnapshotReply
from dtrain.parameters import placement
from dtrain.roles.chief.saver import Saver
from dtrain.roles.chief.start import fresh, restored
from dtrain.state.batch_cut import Dealt
from dtrain.state.fit_state import FitState
from dtrain.variables import VariableSpec

PLAN = placement.plan([VariableSpec("one", (2,)), VariableSpec("two", (3,))], servers=2)
OPTIMIZER = optimizers.serialize(optimizers.SGD(0.5, momentum=0.9))
SEEN = [[("worker:0", 1, 4)], [("worker:0", 1, 3), ("worker:1", 2, 6)]]


def asked(**more):
    """The call of `fit` as the program asks for it."""
    return FitState(compiled=OPTIMIZER, optimizer=OPTIMIZER, max_steps=20, **more)


class Servers:
    """Two servers in async, where each has seen what it has."""

    def snapshot(self, cut, newest, last):
        return [
            SnapshotReply(
                state=asked(version=9 - server, seen=(tuple(seen),), dealt=Dealt(1, 9)), slots=("m",)
            )
            for server, seen in enumerate(SEEN)
        ]

    def snapshot_rows(self, server, question):
        return np.full(question.stop - question.start, server + 10 * (question.array == "m"), np.float32)


def test_what_each_server_has_seen_is_kept_by_itself(tmp_path):
    saver = Saver(Servers(), PLAN, asked(), CheckpointSection(), tmp_path, lambda: 9, print, sync=False)
    assert saver.save_cut(at_least=10) is None
    assert saver.save_cut(at_least=9) == 9, "ps:0 has reached it"
    found = restored(tmp_path, PLAN, asked())
    assert [[tuple(row) for row in rows] for rows in found.state.seen] == SEEN
    assert (found.state.version, found.state.dealt) == (9, Dealt(1, 9, ()))
    assert [found.values[name].tolist() for name in ("one", "two")] == [[0, 0], [1, 1, 1]]
    assert [found.slots["m"][name].tolist() for name in ("one", "two")] == [[10, 10], [11, 11, 11]]


def test_the_last_step_of_the_fit_before_is_kept_beside_the_beginning_of_the_next(tmp_path):
    values = {"one": np.zeros(2, np.float32), "two": np.ones(3, np.float32)}
    for number in (1, 2):
        start = fresh(asked(generation=number), PLAN, values)
        Saver(None, PLAN, start.state, CheckpointSection(), tmp_path, lambda: 0, print, sync=True).save_start(
            start
        )
        assert (checkpoints.final_of(tmp_path, 1) is None) == (number == 1)


class Rows:
    """A table that can only be read some rows at a time."""

    shape, dtype = (5, 2), np.dtype("float32")

    def __getitem__(self, rows):
        return np.arange(10, dtype=np.float32).reshape(5, 2)[rows]

    def __array__(self, *arguments):
        raise AssertionError("a large table is never in memory as a whole")


def test_a_table_is_written_by_rows(tmp_path):
    plan = placement.plan([VariableSpec("table", (5, 2), trainable=False, sparse=True)], servers=1)
    saver = Saver(None, plan, asked(), CheckpointSection(), tmp_path, lambda: 0, print, sync=True)
    saver.save_start(fresh(asked(), plan, {"table": Rows()}))
    with checkpoints.open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.read("table").tolist() == Rows()[:].tolist()
