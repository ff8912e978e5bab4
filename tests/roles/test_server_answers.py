"""What a server that lies answers ends a task by the server's name, and is never gone by."""

import math

import numpy as np
import pytest
from roles.test_tables_on_servers import TableLine, driver, values
from row_by_row import every_row

from dtrain.errors import PeerRefusedError
from dtrain.messages import HeartbeatReply, Marked, Reply, Rows, SnapshotReply, Sums, Values, Verdict
from dtrain.roles.server_answers import check_marks, check_numbers
from dtrain.roles.worker.machine import ReplicaMachine
from dtrain.state.fit_state import FitState
from dtrain.wire.frames import Frame


class LyingLine(TableLine):
    """Answers with blocks of its own, once there are some."""

    blocks = message = None

    def receive(self, into=(), deadline=None):
        if self.blocks is None:
            return super().receive(into, deadline)
        return Frame(self.message, self.blocks)

    def lie(self, message, *blocks):
        self.message, self.blocks = message, blocks


@pytest.fixture
def talk():
    lines = [LyingLine(values()), LyingLine(values())]
    replica = driver(*lines)
    replica.start()
    return replica, lines


@pytest.mark.parametrize(
    "blocks",
    [
        (),
        (np.zeros(3, np.float32),),
        (np.zeros(8, np.float32),),
        (np.zeros(4, np.float64),),
        (np.zeros(4, np.uint16),),
        (np.zeros(4, np.float32),) * 2,
    ],
    ids=["none", "too few", "too many", "wider", "narrower", "twice"],
)
def test_rows_of_another_form_are_refused(talk, blocks):
    replica, lines = talk
    lines[0].lie(Rows(), *blocks)
    with pytest.raises(
        PeerRefusedError, match=r"^ps:0 sent rows of table of .*, where 4 float32 were expected"
    ):
        replica.tables["table"][[0, 1]]


OTHERS = {
    "none": lambda right: [],
    "fewer": lambda right: right[:-1],
    "smaller": lambda right: [right[0][:-1], *right[1:]],
    "wider": lambda right: [right[0].astype(np.float64), *right[1:]],
}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("answer", ["values", "reply"])
def test_values_of_another_form_are_refused(talk, answer, others):
    replica, lines = talk
    right = [np.ones_like(block) for block in replica._weights.blocks[1]]
    kept = {name: np.array(value) for name, value in replica.weights.items() if name != "table"}
    reply = Reply(verdict=Verdict.ACCEPTED, version=1)
    lines[0].answers.append(values() if answer == "values" else (reply, 0))
    lines[1].lie(values()[0] if answer == "values" else reply, *others(right))
    with pytest.raises(PeerRefusedError, match=r"^ps:1 sent values of .* were expected: do all tasks build"):
        replica.start() if answer == "values" else replica.push(1, 0, None)
    assert all((replica.weights[name] == value).all() for name, value in kept.items())


@every_row(
    "message, brings",
    [
        (values(term=5)[0], True),
        (values(term=6)[0], False),
        (Values(generation=2, version=0, max_steps=1, term=5), False),
        (Reply(verdict=Verdict.STALE, version=0), True),
        (Reply(verdict=Verdict.PENDING, version=0), False),
        (Rows(), False),
    ],
)
def test_a_later_term_and_what_is_pending_come_without_values(message, brings):
    about = {"servers": 1, "generation": 1, "incarnation": 1, "plan_hash": "", "sync": True}
    assert ReplicaMachine(**about, term=5).awaits_values(message) == brings


VALUES = {"generation": 1, "version": 0, "max_steps": 1}
ALIVE = {"incarnation": 1, "generation": 1, "version": 5, "ended": False}
NOT_ANY = Sums(names=(), totals=np.array([math.nan]).tobytes())
ODD = [
    Values(**VALUES | {"version": -1}),
    Values(**VALUES | {"max_steps": 2**64}),
    Values(**VALUES, parts=0),
    Values(**VALUES, part=-2),
    Values(**VALUES, tally=((0, NOT_ANY),)),
    Reply(verdict=Verdict.ACCEPTED, version=2**63),
    Reply(verdict=Verdict.ACCEPTED, version=1, tally=((0, Sums(names=("loss",), totals=b"1")),)),
    HeartbeatReply(**ALIVE | {"incarnation": -1}),
    HeartbeatReply(**ALIVE, term=2**64 - 1),
    SnapshotReply(state=FitState(version=-1), slots=()),
]


@every_row("message", ODD)
def test_numbers_that_can_be_none_are_refused_by_the_server_s_name(message):
    with pytest.raises(
        PeerRefusedError, match=f"^ps:1 answered {type(message).__name__} with .* can be none"
    ):
        check_numbers("ps:1", message)


def test_a_replica_does_not_go_by_odd_numbers(talk):
    replica, lines = talk
    lines[0].answers.append(values())
    lines[1].lie(Values(**VALUES, term=5, parts=0), *replica._weights.blocks[1])
    with pytest.raises(PeerRefusedError, match=r"^ps:1 answered Values with 0 parts"):
        replica.start()


def test_what_servers_contain_lies_close_together():
    check_marks([Marked(applied=(7, (2,))), Marked(applied=(9, ()))])
    for applied in ((2**60, ()), (-5, ())):
        with pytest.raises(PeerRefusedError, match="contain batches up to"):
            check_marks([Marked(applied=(7, (2,))), Marked(applied=applied)])
