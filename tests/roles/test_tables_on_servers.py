"""Messages about tables, server by server: loaded before the term begins, looked up, pushed, read as they
were.
"""

import numpy as np
import pytest
from roles.by_hand import Hand, only
from roles.replica_talk import ready
from roles.test_worker_driver import Line, Silent

from dtrain.errors import PeerLostError, ProgramError
from dtrain.learning import optimizers
from dtrain.learning.core.drawn_table import DrawnTable
from dtrain.learning.core.initializers import Constant, RandomNormal
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.messages import (
    Conclude,
    Initialised,
    Load,
    Loaded,
    LookupRows,
    NotReady,
    Push,
    Refusal,
    Reply,
    Rows,
    Snapshot,
    SnapshotRows,
    Values,
    Verdict,
)
from dtrain.parameters import placement
from dtrain.parameters.replica_memory import ReplicaMemory
from dtrain.roles.worker.driver import VOID, ReplicaDriver
from dtrain.roles.worker.machine import Finished, ReplicaMachine, ValuesReady
from dtrain.variables import VariableSpec
from dtrain.wire.frames import Frame

ROWS = 6
VARIABLES = (VariableSpec("bias", (2,)), VariableSpec("table", (ROWS, 2), sparse=True))
FIRST = DrawnTable.of((ROWS, 2), RandomNormal(), [1])
SLOT = DrawnTable.of((ROWS, 2), Constant(0.1), [])
DRAWN = {"table": {"": FIRST.describe(), "accumulator": SLOT.describe()}}
NO_ROWS = [np.empty(0, np.int64), np.empty(0, np.float32)]


def hand(**training):
    return Hand(variables=VARIABLES, optimizer=optimizers.Adagrad(0.5), **training)


def loaded(**training):
    made = hand(**training)
    assert made.initialise(term=5, drawn=DRAWN, loads=True) == [Initialised()]
    for array, last in (("", False), ("accumulator", True)):
        assert (
            only(made.say("chief:0", Load(term=5, table=0, array=array, start=0, stop=ROWS, last=last)))
            == Loaded()
        )
    return made


def test_a_term_that_arrives_late_does_not_take_the_place_of_a_later_one_that_is_being_loaded():
    made = hand()
    assert made.initialise(term=5, drawn=DRAWN, loads=True) == [Initialised()]
    [answer] = made.initialise(term=4, drawn=DRAWN, loads=True)
    assert isinstance(answer, Refusal)
    rows = Load(term=5, table=0, array="", start=0, stop=ROWS, last=True)
    assert only(made.say("chief:0", rows)) == Loaded()
    assert made.servers[0].held.term == 5


def push(made, task, ids, sequence=1, base=0, value=1.0, **more):
    rows = np.full(2 * len(ids), value, np.float32)
    blocks = [*made.blocks(), np.array(ids, np.int64), rows]
    return made.push(task, sequence, base, blocks=blocks, term=5, **more)


def look_up(made, ids, term=5):
    return made.say(
        "worker:0", LookupRows(generation=1, tables=(0,), wait_s=5.0, term=term), [np.array(ids, np.int64)]
    )


def test_a_term_with_tables_begins_when_the_last_row_has_come():
    made = hand()
    made.initialise(term=5, drawn=DRAWN, loads=True)
    assert made.pull("worker:0") == [], "no replica trains what is not there yet"
    assert (
        only(made.say("chief:0", Load(term=5, table=0, array="accumulator", start=0, stop=ROWS))) == Loaded()
    )
    rows = np.arange(2 * ROWS, dtype=np.float32)
    assert only(made.say("chief:0", Load(term=5, table=0, array="", start=0, stop=4), [rows[:8]])) == Loaded()
    answers = made.say("chief:0", Load(term=5, table=0, array="", start=4, stop=ROWS, last=True), [rows[8:]])
    assert [type(action.message) for action in answers] == [Loaded, Values]
    assert look_up(made, [0, 5])[0].blocks[0].tolist() == [0, 1, 10, 11]
    assert isinstance(
        only(made.say("chief:0", Load(term=5, table=0, array="", start=0, stop=ROWS))), Refusal
    ), "it is over"


def test_what_does_not_belong_is_refused():
    made = hand()
    made.initialise(term=5, drawn=DRAWN, loads=True)
    for task, load in [
        ("worker:0", Load(term=5, table=0, array="", start=0, stop=1)),
        ("chief:0", Load(term=4, table=0, array="", start=0, stop=1)),
        ("chief:0", Load(term=5, table=1, array="", start=0, stop=1)),
    ]:
        assert isinstance(only(made.say(task, load)), Refusal)
    assert (
        "no plan"
        not in only(
            made.say("chief:0", made.initialisation(term=6, drawn={"table": {"": {}}}), made.blocks())
        ).reason
    )
    made = loaded()
    for ids in ([ROWS], [1, 1], [-1]):
        assert isinstance(only(look_up(made, ids)), Refusal)
        assert "does not fit" in only(push(made, "worker:0", ids)).reason
    assert isinstance(
        only(made.say("worker:0", LookupRows(generation=1, tables=(0,), wait_s=5.0, term=5))), Refusal
    ), "ids are missing"
    assert isinstance(only(made.say("chief:0", SnapshotRows(part=0, array="", start=0, stop=1))), Refusal), (
        "there was no snapshot"
    )


def test_first_rows_are_drawn_and_looked_up_by_anybody_in_this_term_only():
    made = loaded()
    answer = look_up(made, [1, 4])[0]
    assert answer.message == Rows()
    assert np.array_equal(answer.blocks[0].reshape(2, 2), FIRST[[1, 4]])
    assert only(look_up(made, [1], term=3)).term == 5, "the asker's term is over"
    assert look_up(made, [1], term=6) == []
    made.now += 5.0
    assert [type(action.message) for action in made.tick()] == [NotReady]


def test_rows_are_averaged_over_contributors_and_a_repetition_changes_nothing():
    made = loaded(updates="sync", chief_trains=False)
    before = look_up(made, range(ROWS))[0].blocks[0].reshape(ROWS, 2)
    push(made, "worker:1", [2, 3], value=3.0)
    push(made, "worker:0", [0, 2], value=1.0)
    after = look_up(made, range(ROWS))[0].blocks[0].reshape(ROWS, 2)
    gradient = np.array([0.5, 0, 2, 1.5, 0, 0], np.float32)[:, None]
    assert np.allclose(before - after, 0.5 * gradient / np.sqrt(0.1 + gradient**2 + 1e-7), atol=1e-6)
    assert only(push(made, "worker:0", [0, 2])).duplicate
    assert np.array_equal(look_up(made, range(ROWS))[0].blocks[0].reshape(ROWS, 2), after)


def test_late_and_non_finite_rows_are_not_applied():
    made = loaded(updates="sync", chief_trains=False, backup_workers=1)
    push(made, "worker:0", [1])
    before = look_up(made, range(ROWS))[0].blocks[0].tobytes()
    assert only(push(made, "worker:1", [2])).verdict is Verdict.STALE
    assert (
        only(push(made, "worker:1", [2], sequence=2, base=1, value=np.nan, finite=False)).verdict
        is Verdict.REFUSED
    )
    assert look_up(made, range(ROWS))[0].blocks[0].tobytes() == before


def test_stale_rows_are_compensated_for_the_way_they_have_gone_since_they_were_looked_up():
    made = Hand(
        variables=VARIABLES,
        optimizer=optimizers.SGD(1.0),
        updates="async",
        stale_gradients="compensate",
        compensation=0.5,
    )
    made.initialise(term=5, drawn={"table": {"": SLOT.describe()}}, loads=True)
    made.say("chief:0", Load(term=5, table=0, array="", start=0, stop=ROWS, last=True))
    made.pull("worker:0")
    look_up(made, [1, 2])
    push(made, "chief:0", [2], value=2.0)  # row 2 goes from 0.1 to -1.9
    push(made, "worker:0", [1, 2])  # its gradient there: 1 + 0.5 * 1 * 1 * (-1.9 - 0.1) = 0
    assert np.allclose(look_up(made, [1, 2])[0].blocks[0], [-0.9, -0.9, -1.9, -1.9])


@pytest.mark.parametrize("updates", ["sync", "async"])
def test_a_snapshot_of_a_table_is_read_as_it_was_while_training_goes_on(updates):
    made = loaded(updates=updates, chief_trains=False, **({"backup_workers": 1} if updates == "sync" else {}))
    push(made, "worker:0", [0, 3])
    then = look_up(made, range(ROWS))[0].blocks[0]
    assert only(made.say("chief:0", Snapshot(at_least=1, wait_s=0.0, term=5))).state.version == 1
    found = []
    for array in ("", "accumulator"):
        for start in range(0, ROWS, 2):
            if made.version() < 6:
                push(made, "worker:0", [0, 1, 2, 3, 5], sequence=2 + made.version(), base=made.version())
            found.append(
                made.say("chief:0", SnapshotRows(part=1, array=array, start=start, stop=start + 2))[0].blocks[
                    0
                ]
            )
    assert np.array_equal(np.concatenate(found[:3]), then)
    slot = np.concatenate(found[3:]).reshape(ROWS, 2)[:, 0]
    assert np.allclose(slot, [1.1, 0.1, 0.1, 1.1, 0.1, 0.1])
    assert made.version() > 3


def test_rows_of_a_checkpoint_are_refused_when_the_state_was_asked_for_again():
    """A question on a broken connection may come late: what it remembers is of another version."""
    made = loaded(updates="async", chief_trains=False)
    made.say("chief:0", Snapshot(at_least=0, wait_s=0.0, term=5, number=7))
    push(made, "worker:0", [0])
    made.say("chief:0", Snapshot(at_least=0, wait_s=0.0, term=5, number=6), caller="a broken connection")
    assert (
        "asked for its state again"
        in only(made.say("chief:0", SnapshotRows(part=1, array="", start=0, stop=2, number=7))).reason
    )


# The replica's side

PLAN = placement.plan(VARIABLES, 2, partitioner={"fixed_shards": 2})


class TableLine(Line):
    """Answers a lookup with rows that hold the numbers asked for, after the answers that were prepared."""

    def receive(self, into=(), deadline=None):
        message, blocks = self.sent[-1]
        if isinstance(message, LookupRows) and not self.answers:
            return Frame(Rows(), [np.repeat(np.array(ids, np.float32), 2) for ids in blocks])
        return super().receive(into, deadline)


def driver(*lines):
    machine, lines = ReplicaMachine(2, 1, 7, PLAN.hash, sync=True), iter(lines)
    memories = ReplicaMemory(PLAN), ReplicaMemory(PLAN)
    return ReplicaDriver(
        machine, *memories, lambda server, timeout_s: next(lines), Silent(), connect_s=1, patience_s=9
    )


def values(term=5, **more):
    return Values(generation=1, version=0, max_steps=10, term=term, **more), 0


def test_rows_come_from_the_servers_that_have_them_each_asked_once():
    lines = [TableLine(values()), TableLine(values())]
    replica = driver(*lines)
    replica.start()
    found = replica.tables["table"][[[5, 0], [5, 1]]]
    assert found[..., 0].tolist() == [[2, 0], [2, 1]], "rows 3 to 5 are rows 0 to 2 of the second shard"
    assert [line.sent[-1] for line in lines] == [
        (LookupRows(generation=1, tables=(0,), wait_s=5.0, term=5), [[0, 1]]),
        (LookupRows(generation=1, tables=(0,), wait_s=5.0, term=5), [[2]]),
    ]
    assert isinstance(replica.machine.phase, ValuesReady)
    replica.row_gradients["table"] = SparseRows(np.array([1, 3]), np.ones((2, 2), np.float32))
    for line in lines:
        line.answers.append((Reply(verdict=Verdict.ACCEPTED, version=1), 0))
    replica.push(1, 0, None)
    assert [line.sent[-1][1][-2:] for line in lines] == [[[1], [1, 1]], [[0], [1, 1]]]
    assert not replica.row_gradients


def test_a_new_term_while_rows_are_looked_up_makes_the_step_void():
    first, second = TableLine(values()), TableLine(values())
    replica = driver(first, second)
    replica.start()
    first.answers = [values(term=8), values(term=8)]
    second.answers = [values(term=8)]
    assert replica.tables["table"][1].tolist() == [1, 1], "rows of the new term"
    assert replica.overtaken
    assert (type(replica.machine.phase), replica.machine.term) == (ValuesReady, 8)


def test_after_the_end_rows_can_be_read_until_they_are_gone():
    first, second = TableLine(values()), TableLine(values())
    replica = driver(first, second)
    replica.start()
    replica.machine.phase = Finished()
    assert replica.tables["table"][0].tolist() == [0, 0]
    first.answers = [(NotReady(reason="restarted"), 0)]
    with pytest.raises(PeerLostError, match="last checkpoint"):
        replica.tables["table"][0]
    replica.machine.unanswered.clear()
    first.answers = [(Values(generation=2, version=0, max_steps=10, term=9), 0)]
    with pytest.raises(ProgramError, match="later fit"):
        replica.tables["table"][0]


def test_a_step_in_which_training_ends_looks_up_its_other_tables_in_vain_and_is_void():
    first, second = TableLine(values()), TableLine(values())
    replica = driver(first, second)
    replica.start()
    ended = Values(generation=2, version=0, max_steps=10, term=9), 0
    first.answers = [ended, (Conclude(generation=1, rows={}), 0)]
    assert replica.tables["table"][0].tolist() == [0, 0]
    assert replica.machine.finished
    first.answers, second.answers = [ended], [ended]
    assert replica.tables["table"][2].tolist() == [0, 0], "as a second table of the model"
    assert replica.push(1, 0, None) is VOID
    with pytest.raises(ProgramError, match="later fit"):
        replica.tables["table"][0]


def test_a_lookup_goes_on_after_a_server_is_not_ready():
    talk = ready(term=5)
    assert list(talk.machine.look_up({1: (0, 2)})) == [
        (1, LookupRows(generation=1, tables=(0, 2), wait_s=5.0, term=5))
    ]
    assert talk.hear(1, NotReady(reason="not yet")) == [
        (1, LookupRows(generation=1, tables=(0, 2), wait_s=5.0, term=5))
    ]
    assert talk.hear(1, Rows()) == []
    assert talk.phase is ValuesReady
    assert all(isinstance(message, Push) for _, message in talk.push())
