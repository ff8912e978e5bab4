"""What the leader saves: of the servers what each of them says of itself, and of a beginning what it has."""

import numpy as np

from dtrain import checkpoints
from dtrain.config import CheckpointSection, training_section
from dtrain.learning import optimizers
from dtrain.messages import SnapshotReply
from dtrain.parameters import placement
from dtrain.protocol.batch_cut import UNCUT
from dtrain.protocol.part_dealer import Dealt
from dtrain.roles.chief.generation import Generation
from dtrain.roles.chief.saver import Saver
from dtrain.roles.chief.start import fresh, restored
from dtrain.variables import VariableSpec

PLAN = placement.plan([VariableSpec("one", (2,)), VariableSpec("two", (3,))], servers=2)
OPTIMIZER = optimizers.serialize(optimizers.SGD(0.5, momentum=0.9))
SEEN = [[("worker:0", 1, 4)], [("worker:0", 1, 3), ("worker:1", 2, 6)]]


class Servers:
    """Two servers in async, where each has seen what it has."""

    def snapshot(self, cut, newest, last):
        return [
            SnapshotReply(version=9 - server, slots=("m",), seen=seen, dealt=(1, 9, ()), optimizer=OPTIMIZER)
            for server, seen in enumerate(SEEN)
        ]

    def snapshot_rows(self, server, question):
        return np.full(question.stop - question.start, server + 10 * (question.array == "m"), np.float32)


def test_what_each_server_has_seen_is_kept_by_itself(tmp_path):
    generation = Generation(1, PLAN, training_section(updates="async"), OPTIMIZER, 20, UNCUT)
    saver = Saver(Servers(), generation, CheckpointSection(), tmp_path, lambda: 9, print)
    assert saver.save_cut(at_least=10) is None
    assert saver.save_cut(at_least=9) == 9, "ps:0 has reached it"
    found = restored(tmp_path, PLAN, OPTIMIZER)
    assert [[tuple(row) for row in rows] for rows in found.seen] == SEEN
    assert (found.version, found.dealt) == (9, Dealt(1, 9, ()))
    assert [found.values[name].tolist() for name in ("one", "two")] == [[0, 0], [1, 1, 1]]
    assert [found.slots["m"][name].tolist() for name in ("one", "two")] == [[10, 10], [11, 11, 11]]


def test_the_last_step_of_the_fit_before_is_kept_beside_the_beginning_of_the_next(tmp_path):
    values = {"one": np.zeros(2, np.float32), "two": np.ones(3, np.float32)}
    for number in (1, 2):
        generation = Generation(number, PLAN, training_section(), OPTIMIZER, 20, UNCUT)
        Saver(None, generation, CheckpointSection(), tmp_path, lambda: 0, print).save_start(
            fresh(PLAN, OPTIMIZER, values)
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
    saver = Saver(
        None,
        Generation(1, plan, training_section(), OPTIMIZER, 20, UNCUT),
        CheckpointSection(),
        tmp_path,
        lambda: 0,
        print,
    )
    saver.save_start(fresh(plan, OPTIMIZER, {"table": Rows()}))
    with checkpoints.open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.read("table").tolist() == Rows()[:].tolist()
