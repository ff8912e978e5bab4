"""Async: a checkpoint in which a batch is on some servers only says so, and nothing of it counts twice or
never afterwards.
"""

import numpy as np
import pytest
from roles.by_hand import Hand

from dtrain import checkpoints
from dtrain.config import CheckpointSection
from dtrain.errors import CheckpointError
from dtrain.learning import optimizers
from dtrain.messages import SnapshotReply
from dtrain.parameters import placement
from dtrain.roles.chief.driver import LeaderDriver
from dtrain.roles.chief.saver import Saver
from dtrain.roles.chief.start import fresh, restored
from dtrain.state.batch_cut import UNCUT, Dealt
from dtrain.state.fit_state import Contents, FitState
from dtrain.variables import VariableSpec

VARIABLES = [VariableSpec("one", (2,)), VariableSpec("two", (2,))]
VALUES = {"one": np.zeros(2, np.float32), "two": np.zeros(2, np.float32)}
OPTIMIZER = optimizers.serialize(optimizers.SGD(0.5))
TWO, ONE = placement.plan(VARIABLES, 2), placement.plan(VARIABLES, 1)
MAX = 40


def asked(generation=1):
    """The call of `fit` as the program asks for it."""
    plan = TWO.to_dict()
    return FitState(generation=generation, compiled=OPTIMIZER, optimizer=OPTIMIZER, max_steps=MAX, plan=plan)


class Servers:
    """Two servers, of which each says what it contains."""

    def __init__(self, contents, generation):
        self.contents = contents
        self.generation = generation

    def snapshot(self, cut, newest, last):
        state = asked(self.generation).but(dealt=Dealt(1, 8, (5,)))
        return [
            SnapshotReply(state=state.but(version=each[0], contents=(Contents(*each),)), slots=())
            for each in self.contents
        ]

    def snapshot_rows(self, server, question):
        return np.full(question.stop - question.start, self.contents[server][0], np.float32)


def save(folder, *contents, number=1):
    saver = Saver(
        Servers(contents, number),
        TWO,
        asked(number),
        CheckpointSection(),
        folder,
        step=lambda: 0,
        warn=pytest.fail,
        sync=False,
    )
    saver.save_cut()
    return saver


TORN = (7, (8, (5,))), (6, (7, (3,)))
"""ps:0 has all but batch 5; ps:1 has 5, and lacks 3 and 7."""
WHOLE = (4, (5, (3,))), (4, (5, (3,)))


def test_the_same_servers_go_on_each_from_what_it_contains(tmp_path):
    assert not save(tmp_path, *TORN).whole
    start = restored(tmp_path, TWO, asked())
    assert (start.state.version, start.state.contents, start.warning) == (
        7,
        tuple(Contents(*each) for each in TORN),
        None,
    )


def test_nothing_more_is_said_where_all_contain_the_same(tmp_path):
    assert save(tmp_path, *WHOLE).whole
    assert restored(tmp_path, TWO, asked()).state.contents == ()


@pytest.mark.parametrize(("plan", "by_server"), [(ONE, True), (TWO, False)])
def test_other_servers_and_synchronous_training_go_back_to_one_in_which_all_contain_the_same(
    tmp_path, plan, by_server
):
    save(tmp_path, *WHOLE)
    save(tmp_path, *TORN)
    start = restored(tmp_path, plan, asked(), by_server=by_server)
    assert (start.state.version, start.state.contents) == (4, ())
    assert "ckpt-7 has batches on some servers only" in start.warning
    assert "ckpt-4" in start.warning


def test_one_of_an_earlier_fit_is_no_choice(tmp_path):
    save(tmp_path, *WHOLE)
    checkpoints.keep_final(tmp_path, 1)
    save(tmp_path, *TORN, number=2)
    with pytest.raises(
        CheckpointError, match=r"ckpt-7 has .* no whole checkpoint is left.* `--ps 2`, updates: async"
    ):
        restored(tmp_path, ONE, asked())
    assert restored(tmp_path, TWO, asked()).state.version == 7, "the same servers go on"


def test_the_newest_whole_one_outlives_all_that_are_torn(tmp_path):
    for step in range(4, 9):
        torn = (step, (step + 1, (5,))), (step, (step + 1, (3,)))
        save(tmp_path, *(WHOLE if step == 4 else torn))
        checkpoints.rotate(tmp_path, keep=2, now=0.0)
    assert [found.step for found in checkpoints.list_checkpoints(tmp_path)] == [4, 7, 8]
    save(tmp_path, (9, (10, ())), (9, (10, ())))
    checkpoints.rotate(tmp_path, keep=2, now=0.0)
    assert [found.step for found in checkpoints.list_checkpoints(tmp_path)] == [8, 9]


class Line:
    """A connection to a server by hand."""

    bytes_sent = bytes_received = 0

    def __init__(self, hand, server):
        self.hand, self.server = hand, server

    def send(self, message, blocks=()):
        self.answer = self.hand.say("chief:0", message, [np.array(block) for block in blocks], self.server)[0]

    def receive(self, *_, **__):
        return self.answer


def test_what_one_server_alone_contains_is_repaired_or_passed_over(tmp_path):
    save(tmp_path, *TORN)
    hand = Hand(servers=2, updates="async", variables=VARIABLES, max_steps=MAX)
    LeaderDriver(2, lambda task, _: Line(hand, task.index), 1.0).initialise(
        restored(tmp_path, TWO, asked()).going_on(UNCUT, MAX, sync=False), hand.training, 1, "d"
    )
    assert [hand.version(0), hand.version(1)] == [7, 6]
    given = {}
    for task in ("chief:0", "worker:0", "worker:1"):
        hand.beat(task)
        hand.pull(task)
        given[task] = hand.parts[task]
    assert given == {"chief:0": 3, "worker:0": 7, "worker:1": 5}
    for task, part in given.items():
        for server in (0, 1):
            hand.push(task, server=server, part=part, term=1)
    assert [hand.version(0), hand.version(1)] == [8, 8], "ps:0 has had 3 and 7, and ps:1 has had 5"
    assert [server.held.applied.export() for server in hand.servers] == [(8, ())] * 2


def test_a_model_that_was_never_trained_contains_no_batches():
    assert fresh(asked(), TWO, VALUES).state.contents == ()
