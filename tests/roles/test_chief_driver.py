"""The leader's connections: one that breaks is opened again and asked again, unless the leader gives up."""

import msgspec
import numpy as np
import pytest
from roles.test_worker_driver import Clock

from dtrain.errors import PeerLostError, PeerRefusedError, WaitTimeoutError
from dtrain.messages import Farewell, Marked, Refusal, Rows, Snapshot, SnapshotReply, SnapshotRows
from dtrain.process.clock import SYSTEM
from dtrain.roles.chief.driver import FAREWELL_S, LeaderDriver
from dtrain.roles.chief.machine import ANSWER_WAIT_S, Cut
from dtrain.state.fit_state import FitState
from dtrain.wire.frames import Frame

QUESTION = Snapshot(at_least=3, wait_s=ANSWER_WAIT_S)


class Line:
    """A connection with answers prepared: messages, or errors to raise."""

    bytes_sent = bytes_received = 0

    def __init__(self, *answers):
        self.answers = list(answers)
        self.sent = []
        self.numbers = []
        self.closed = False

    def send(self, message, blocks=()):
        if isinstance(message, Snapshot | SnapshotRows):
            self.numbers.append(message.number)
            message = msgspec.structs.replace(message, number=0)
        self.sent.append(message)

    def receive(self, into=(), deadline=None):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Frame(answer, [np.zeros(1)] if isinstance(answer, Rows) else [])

    def abort(self, reason):
        self.answers = [PeerLostError(reason)]

    def close(self):
        self.closed = True


def reply(version):
    return SnapshotReply(state=FitState(version=version), slots=())


def leader(*lines, clock=SYSTEM):
    """A leader of two servers that is connected to the first two lines, and to the others later.

    The last one is an error that stays, where it is one.
    """
    waiting = list(lines)

    def connect(server, timeout_s):
        line = waiting.pop(0) if len(waiting) > 1 or not isinstance(waiting[0], Exception) else waiting[0]
        if isinstance(line, Exception):
            raise line
        return line

    return LeaderDriver(2, connect, 1.0, clock=clock)


def versions(chief, cut=None):
    return [reply.state.version for reply in chief.snapshot(cut or Cut(sync=True), 1, 9)]


def test_every_server_is_asked_before_the_first_answer_is_awaited():
    lines = Line(reply(3)), Line(reply(3))
    assert versions(leader(*lines)) == [3, 3]
    assert [line.sent for line in lines] == [[QUESTION], [QUESTION]]


def test_in_async_every_server_is_marked_before_one_is_asked():
    marks = Marked(applied=(1, ())), Marked(applied=(2, ()))
    lines, cut = [Line(mark, reply(3)) for mark in marks], Cut(sync=False)
    assert versions(leader(*lines), cut) == [3, 3]
    assert [line.sent for line in lines] == [[cut.mark(), cut.marked(marks)]] * 2


def test_a_connection_that_broke_is_opened_again_and_asked_again():
    broken, other, new = Line(PeerLostError("gone")), Line(reply(3)), Line(reply(4), reply(5))
    other.answers.append(reply(5))
    chief = leader(broken, other, new)
    assert versions(chief) == [4, 3]
    assert broken.closed
    assert versions(chief) == [5, 5]


def test_a_refusal_of_one_leaves_no_answer_of_another_behind():
    lines = Line(Refusal(reason="too few replicas"), reply(4)), Line(reply(3), reply(4))
    chief = leader(*lines)
    with pytest.raises(PeerRefusedError, match="too few replicas"):
        versions(chief)
    assert versions(chief) == [4, 4]


def test_after_giving_up_nothing_is_opened_again():
    lines = Line(reply(3)), Line(reply(3)), Line(reply(3))
    chief = leader(*lines)
    chief.abort("ps:0 is gone")
    with pytest.raises(PeerLostError, match="ps:0 is gone"):
        versions(chief)
    assert lines[2].sent == []


def test_a_server_that_does_not_come_back_is_lost_by_name():
    away = WaitTimeoutError("ps:0 did not accept a connection")
    chief = leader(Line(PeerLostError("lost ps:0")), Line(reply(3)), away)
    with pytest.raises(WaitTimeoutError, match="ps:0"):
        versions(chief)


def test_a_farewell_is_said_to_every_server_whoever_is_gone():
    lines, clock = (Line(PeerLostError("gone")), Line(Farewell())), Clock()
    leader(*lines, PeerLostError("refused"), clock=clock).farewell()
    assert [line.sent for line in lines] == [[Farewell()], [Farewell()]]
    assert lines[1].answers == []
    assert clock.seconds == pytest.approx(FAREWELL_S, abs=0.1)


def test_a_farewell_is_said_again_where_the_connection_broke_before_the_answer():
    broken, other, new = Line(PeerLostError("cut off")), Line(Farewell()), Line(Farewell())
    leader(broken, other, new, clock=Clock()).farewell()
    assert [line.sent for line in (broken, other, new)] == [[Farewell()]] * 3


def test_rows_are_asked_for_of_the_question_that_was_answered():
    broken = PeerLostError("broken")
    first, second, again, once_more = (
        Line(broken),
        Line(reply(3)),
        Line(reply(3), Rows(), broken),
        Line(Rows()),
    )
    chief = leader(first, second, again, once_more)
    versions(chief)
    for start in range(2):
        chief.snapshot_rows(0, SnapshotRows(part=0, array="", start=start, stop=start + 1))
    number = again.numbers[0]
    assert again.numbers == [number, number, number]
    assert once_more.numbers == [number]
    assert len({*first.numbers, *second.numbers, number}) == 3, "a repetition is another question"


def test_an_answer_without_rows_names_the_server():
    class Empty(Line):
        def receive(self, into=(), deadline=None):
            return Frame(Rows(), [])

    asked = leader(Line(), Empty())
    with pytest.raises(PeerRefusedError, match=r"^ps:1 sent 0 blocks of rows"):
        asked.snapshot_rows(1, SnapshotRows(part=0, array="", start=0, stop=1))
