"""A replica's connections: what breaks is opened again and said again, within the patience, unless all is
given up.
"""

import math

import numpy as np
import pytest
from roles.by_hand import VARIABLES

from dtrain.errors import PeerLostError, WaitTimeoutError
from dtrain.messages import Pull, Push, Reply, Values, Verdict
from dtrain.parameters import placement
from dtrain.parameters.replica_memory import ReplicaMemory
from dtrain.roles.worker.driver import ReplicaDriver
from dtrain.roles.worker.machine import ReplicaMachine, ValuesReady
from dtrain.runs.trace import NO_TRACE
from dtrain.wire.frames import Frame

PLAN = placement.plan(VARIABLES, 1)


class Silent:
    """A reporter without a reader."""

    trace = NO_TRACE

    def waiting(self, for_whom):
        pass


class Line:
    """A connection with answers prepared: messages (with a number to fill the blocks with), or errors to
    raise.
    """

    def __init__(self, *answers):
        self.answers = list(answers)
        self.sent = []
        self.aborted = None
        self.bytes_sent = self.bytes_received = 0

    def send(self, message, blocks=()):
        self.sent.append((message, [block.tolist() for block in blocks]))

    def receive(self, into=(), deadline=None):
        if self.aborted:
            raise PeerLostError(self.aborted)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        message, number = answer
        for block in into:
            block[...] = number
        return Frame(message, into)

    def abort(self, reason):
        self.aborted = reason

    def close(self):
        pass


def values(version=0, number=0):
    return Values(generation=1, version=version, max_steps=10), number


def reply(version, number):
    return Reply(verdict=Verdict.ACCEPTED, version=version, accepted=1), number


class Clock:
    """Time passes only when a driver sleeps."""

    seconds = 0.0

    def now(self):
        return self.seconds

    wall = now

    def sleep(self, seconds):
        self.seconds += seconds


@pytest.fixture
def clock():
    return Clock()


def driver(*lines, patience_s=5.0, servers=1, clock=None):
    """A driver of one server, or several: the first lines, and then the others, or an error where one stands
    instead.
    """
    waiting, plan = [*lines], placement.plan(VARIABLES, servers)
    clock = clock or Clock()

    def connect(server, timeout_s):
        line = waiting.pop(0)
        if isinstance(line, Exception):
            clock.sleep(timeout_s)
            raise line
        return line() if callable(line) else line

    machine = ReplicaMachine(servers, 1, 1, plan.hash, sync=True)
    return ReplicaDriver(
        machine,
        ReplicaMemory(plan),
        ReplicaMemory(plan),
        connect,
        Silent(),
        connect_s=1.0,
        patience_s=patience_s,
        clock=clock,
    )


def test_gradients_go_out_of_memory_and_weights_come_into_it():
    line = Line(values(0, 1), reply(1, 2))
    replica = driver(line)
    replica.start()
    assert set(np.concatenate([a.ravel() for a in replica._weights.variables.values()])) == {1}
    replica._gradients.variables["bias"][...] = 7
    assert replica.push(1, 0, None).verdict is Verdict.ACCEPTED
    message, blocks = line.sent[1]
    assert message == Push(generation=1, incarnation=1, sequence=1, base_version=0, plan_hash=PLAN.hash)
    assert blocks == [[0] * 4 + [7] * 3, [0, 0]]
    assert replica._weights.variables["bias"].tolist() == [2, 2, 2]
    assert isinstance(replica.machine.phase, ValuesReady)


def test_a_gradient_that_is_not_finite_is_said_to_be_so():
    line = Line(values(), reply(0, 0))
    replica = driver(line)
    replica.start()
    replica._gradients.variables["kernel"][0, 0] = math.nan
    replica.push(1, 0, None)
    assert not line.sent[1][0].finite


def test_what_was_not_answered_is_said_again_on_a_new_connection():
    old, new = Line(values(), PeerLostError("lost ps:0")), Line(reply(1, 3))
    replica = driver(old, WaitTimeoutError("not yet"), new)
    replica.start()
    replica.push(1, 0, None)
    assert new.sent == [old.sent[-1]]
    assert replica.machine.global_step == 1


def test_what_one_server_has_not_heard_is_said_again_while_another_one_is_waited_for():
    """In sync the first one does not answer before all have heard it."""

    class Watched(Line):
        def watch(self, lost):
            self.lost = lost

    class Waits(Line):
        def receive(self, into=(), deadline=None):
            if len(self.sent) == 2:
                broken.lost()  # from a thread of the transport, which wakes the one that waits here
                assert self.aborted
            return super().receive(into)

    zero, broken = Waits(values()), Watched(values())
    again = [Line(reply(1, 3)), Line(reply(1, 3))]
    replica = driver(zero, broken, *again, servers=2)
    replica.start()
    assert replica.push(1, 0, None).verdict is Verdict.ACCEPTED
    assert replica.machine.versions == [1, 1]
    assert [line.sent for line in again] == [[zero.sent[-1]], [broken.sent[-1]]]


def test_a_server_that_does_not_come_back_is_lost_when_the_patience_is_over(clock):
    replica = driver(
        Line(PeerLostError("lost ps:0 at a:1")), *[WaitTimeoutError("not yet")] * 20, clock=clock
    )
    with pytest.raises(PeerLostError, match=r"lost ps:0 at a:1; it did not come back within 5 s"):
        replica.start()
    assert clock.now() == pytest.approx(5.0)


def test_a_server_that_takes_the_connection_and_never_answers_is_lost_too(clock):
    replica = driver(*[Line(PeerLostError("lost ps:0 at a:1")) for _ in range(1000)], clock=clock)
    with pytest.raises(PeerLostError, match="it did not come back within 5 s"):
        replica.start()
    assert clock.now() == pytest.approx(5.0, abs=0.1)


def test_a_connection_that_lasted_gives_the_next_break_all_the_patience_again(clock):
    class Long(Line):
        def receive(self, into=(), deadline=None):
            clock.sleep(100.0)
            return super().receive(into, deadline)

    replica = driver(
        *[Long(PeerLostError("lost")) for _ in range(3)],
        WaitTimeoutError("not yet"),
        Line(values()),
        clock=clock,
    )
    replica.start()
    assert isinstance(replica.machine.phase, ValuesReady)


def test_after_giving_up_nothing_is_opened_and_nothing_waits():
    replica = driver(Line(values()), Line())
    replica.start()
    replica.abort("too few replicas")
    with pytest.raises(PeerLostError, match="too few replicas"):
        replica.push(1, 0, None)


def test_giving_up_while_a_connection_is_being_opened_is_not_forgotten():
    late = Line()
    replica = driver(Line(PeerLostError("lost ps:0")), lambda: replica.abort("the run has ended") or late)
    with pytest.raises(PeerLostError, match="the run has ended"):
        replica.start()
    assert late.sent == []


def test_a_server_that_is_not_there_at_first_is_named():
    with pytest.raises(WaitTimeoutError, match="ps:0 is not there"):
        driver(WaitTimeoutError("ps:0 is not there"))


def test_the_first_question_is_a_pull():
    line = Line(values())
    driver(line).start()
    assert line.sent == [(Pull(generation=1, at_least=0, wait_s=5.0), [])]


class Hanging(Line):
    """A connection to a machine that is gone without a word: the kernel says nothing, and time passes."""

    def __init__(self, meanwhile, *answers):
        super().__init__(*answers)
        self.meanwhile = meanwhile

    def receive(self, into=(), deadline=None):
        if not self.answers and not self.aborted:
            self.meanwhile()
            assert self.aborted, "nobody says that the machine is gone"
        return super().receive(into, deadline)


def in_term(term, version=0):
    return Values(generation=1, version=version, max_steps=10, term=term), term


def hanging(beats):
    heard = []
    gone = Hanging(lambda: [heard.append(replica.heard_term(term)) for term in beats], in_term(1))
    replica = driver(gone, Line(in_term(2), in_term(2), in_term(2, version=1)))
    replica.start()
    return replica, gone


def test_a_server_that_still_owes_an_answer_from_before_a_new_term_is_asked_anew():
    replica, gone = hanging(beats=(2, 2))
    replica.wait_for(1)
    assert replica.machine.term == 2
    assert "a new term" in gone.aborted


@pytest.mark.parametrize("beats", [(1, 1, 1), (2,)])
def test_the_term_that_is_known_breaks_nothing_and_a_new_one_has_a_beat_to_arrive(beats):
    replica, gone = hanging(beats)
    with pytest.raises(AssertionError, match="nobody says"):
        replica.wait_for(1)
    assert gone.aborted is None
