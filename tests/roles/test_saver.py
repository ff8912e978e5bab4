"""A checkpoint of the servers holds what each of them says of itself."""

import numpy as np

from dtrain.config import CheckpointSection, TrainingSection
from dtrain.learning import optimizers
from dtrain.messages import SnapshotReply
from dtrain.protocol import placement
from dtrain.protocol.part_dealer import Dealt
from dtrain.roles.chief.generation import Generation
from dtrain.roles.chief.saver import Saver
from dtrain.roles.chief.start import restored
from dtrain.variables import VariableSpec

PLAN = placement.plan([VariableSpec("one", (2,)), VariableSpec("two", (3,))], servers=2)
OPTIMIZER = optimizers.serialize(optimizers.SGD(0.5, momentum=0.9))
SEEN = [[("worker:0", 1, 4)], [("worker:0", 1, 3), ("worker:1", 2, 6)]]


class Servers:
    """Two servers in async, where each has seen what it has."""

    def snapshot(self, cut, newest, last):
        return [SnapshotReply(9 - server, ("m",), seen, (1, 9, ()), optimizer=OPTIMIZER) for server, seen in enumerate(SEEN)]

    def snapshot_rows(self, server, question):
        return np.full(question.stop - question.start, server + 10 * (question.array == "m"), np.float32)


def test_what_each_server_has_seen_is_kept_by_itself(tmp_path):
    generation = Generation(1, PLAN, TrainingSection(updates="async"), OPTIMIZER, 20, 1)
    saver = Saver(Servers(), generation, CheckpointSection(), tmp_path, lambda: 9, print)
    assert saver.save_cut() == 9
    found = restored(tmp_path, PLAN, OPTIMIZER)
    assert [[tuple(row) for row in rows] for rows in found.seen] == SEEN
    assert (found.version, found.dealt) == (9, Dealt(1, 9, ()))
    assert [found.values[name].tolist() for name in ("one", "two")] == [[0, 0], [1, 1, 1]]
    assert [found.slots["m"][name].tolist() for name in ("one", "two")] == [[10, 10], [11, 11, 11]]
