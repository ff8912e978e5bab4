"""A task's lease: renewed, mended, given back; and what its end is called."""

import queue
import threading
import time

import pytest

from dtrain.errors import PeerLostError, PeerRefusedError, TooFewReplicasError, WaitTimeoutError
from dtrain.messages import HeartbeatReply, NotReady, Refusal, RefusalKind
from dtrain.messages.membership import TaskStatus
from dtrain.roles import heartbeat
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.wire.frames import Frame

TIMEOUT_S = 20.0


def alive(incarnation=1, **more):
    return HeartbeatReply(incarnation=incarnation, generation=1, version=5, ended=False, **more)


class Someone:
    """A reporter."""

    status = TaskStatus(task="worker:0", pid=1, host="h", attempt=2)

    def current(self):
        return self.status

    def behind(self, server, others):
        self.others = server, others


class Server:
    """Answers as it was told to, the last answer again and again; an error breaks the connection."""

    peer = "ps:0"

    def __init__(self, *answers):
        self.answers = list(answers)
        self.beats = []
        self.connections = 0
        self.changed = threading.Condition()

    def connect(self, timeout_s):
        self.connections += 1
        return self

    def send(self, message, blocks=()):
        with self.changed:
            self.beats.append(message)
            self.changed.notify_all()

    def receive(self, into=(), deadline=None):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return Frame(answer)

    def until_beats(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.beats) >= count, TIMEOUT_S)

    def abort(self, reason):
        pass

    def close(self):
        pass


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(heartbeat, "INTERVAL_S", 0.005)


@pytest.fixture
def link():
    links = []

    def link(server, patience_s=60.0, **more):
        links.append(
            HeartbeatLink("ps:0", server.connect, Someone(), connect_s=0.1, patience_s=patience_s, **more)
        )
        return links[-1]

    yield link
    for each in links:
        each.close()


def test_it_says_which_process_it_is_and_the_incarnation_that_it_was_given(link):
    server = Server(alive(3))
    assert link(server).incarnation == 3
    server.until_beats(3)
    first, *others = [beat.incarnation for beat in server.beats[:3]]
    attempt, started_s = server.beats[0].process
    assert first % 2**42 == int(started_s * 1000), "larger than that of any process before it"
    assert first >> 42 == attempt == 2, "also if the clock was set back since"
    assert others == [3, 3]
    assert len({beat.process for beat in server.beats}) == 1
    assert server.beats[0].status.task == "worker:0"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_in_the_watching_thread_fails_the_task_by_name(link):
    server = Server(alive())
    connected = link(server)
    said = queue.SimpleQueue()
    connected.on_failure = said.put

    def fault(reply):
        raise KeyError("task")

    connected.on_reply = fault
    assert said.get(timeout=TIMEOUT_S) == "the watch over ps:0 has ended by a fault: KeyError: 'task'"
    assert isinstance(connected.failure, PeerLostError)


def test_a_connection_that_breaks_is_opened_again(link):
    server = Server(alive(), PeerLostError("lost"), alive(2), alive(3))
    connected = link(server)
    server.until_beats(6)
    assert server.connections == 2
    assert connected.incarnation == 3
    assert connected.failure is None


def test_a_process_waits_for_the_end_of_the_one_that_has_its_place_on_connections_of_its_own(link):
    server = Server(
        NotReady(reason="another process is chief:0"), NotReady(reason="still"), alive(2), alive(2)
    )
    connected = link(server)
    server.until_beats(5)
    assert (connected.incarnation, server.connections, connected.failure) == (2, 3, None)


def test_a_process_whose_place_stays_taken_says_by_whom(link):
    with pytest.raises(PeerLostError, match="another process is chief:0; waited"):
        link(Server(NotReady(reason="another process is chief:0")))


FEW = RefusalKind.TOO_FEW_REPLICAS


@pytest.mark.parametrize(
    ("answers", "error", "said"),
    [
        (
            [Refusal(reason="another process has taken the place of worker:0")],
            PeerRefusedError,
            "taken the place",
        ),
        ([alive(failed=Refusal(reason="3 are needed", kind=FEW))], TooFewReplicasError, "3 are needed"),
        ([alive(failed=Refusal(reason="too few replicas?"))], PeerLostError, "too few replicas"),
        ([PeerLostError("lost ps:0")], PeerLostError, "lost ps:0; it has been away for 0 s"),
    ],
)
def test_what_ends_a_lease_is_kept(link, answers, error, said):
    connected = link(Server(alive(), *answers), patience_s=0.0)
    connected._thread.join(TIMEOUT_S)
    assert isinstance(connected.failure, error)
    assert said in str(connected.failure)


def test_it_says_goodbye(link):
    server = Server(alive())
    link(server).close()
    assert [beat.leaving for beat in server.beats].index(True) == len(server.beats) - 1


@pytest.mark.parametrize("error", [PeerRefusedError("not you"), WaitTimeoutError("no answer")])
def test_one_that_is_not_wanted_or_finds_nobody_fails_at_once(link, error):
    with pytest.raises(type(error), match=str(error)):
        link(Server(error))


def test_a_server_that_answers_with_odd_numbers_is_refused_by_name(link):
    with pytest.raises(PeerRefusedError, match=r"^ps:0 answered HeartbeatReply with incarnation -1"):
        link(Server(alive(-1)))


def test_a_server_that_dies_before_its_first_answer_is_waited_for(link):
    server = Server(PeerLostError("lost"), alive(4))
    assert link(server).incarnation == 4
    assert server.connections == 2


def test_what_it_was_told_last_stands_beside_when_it_asked(link):
    connected = link(Server(alive(3)))
    asked_s, reply = connected.answer
    assert (reply, connected.reply) == (alive(3), alive(3))
    assert asked_s <= time.monotonic()


class Frozen(Server):
    """Does not answer any more."""

    def receive(self, into=(), deadline=None):
        if len(self.answers) > 1:
            return super().receive(into, deadline)
        time.sleep(max(0.0, deadline - time.monotonic()))
        raise WaitTimeoutError("ps:0 did not answer in time")


def test_a_server_that_stands_still_is_silent(link, monkeypatch):
    monkeypatch.setattr(heartbeat, "LEASE_S", 0.02)
    told = queue.Queue()
    connected = link(Frozen(alive(), alive()), on_silence=told.put)
    first_s, second_s = told.get(timeout=TIMEOUT_S), told.get(timeout=TIMEOUT_S)
    assert 0.02 <= first_s < second_s
    assert connected.failure is None
