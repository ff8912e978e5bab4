"""A server's way to ps:0 over real connections: whichever of the two breaks, what is held is told again."""

import socket
import threading
from functools import partial

import pytest

from dtrain.messages import Commit, Complete, Hello, Refusal, Subscribe
from dtrain.roles.parameter_server.driver import DecisionLink
from dtrain.wire.channel import Answer
from dtrain.wire.frames import Limits
from dtrain.wire.grpc_client import GrpcChannel
from dtrain.wire.grpc_service import GrpcService
from dtrain.wire.security.credentials import Credentials

FIRST, SECOND = (
    Credentials.made(Hello(run_id="run", cluster_hash="hash", task=task)) for task in ("ps:0", "ps:1")
)
HELD = Complete(generation=1, rank=2, incarnation=1, version=7, ordinal=0)
TIMEOUT_S = 20.0


class FirstServer:
    """Hears reports and subscriptions."""

    def limits(self, hello):
        return Limits(1 << 20, 1 << 20)

    answers_at_once = False

    def __init__(self):
        self.changed = threading.Condition()
        self.heard = []
        self.subscribers = []

    def refuse(self, hello):
        return None

    def received(self, caller, frame):
        with self.changed:
            self.heard.append(frame.message)
            if isinstance(frame.message, Subscribe):
                self.subscribers.append(caller)
            self.changed.notify_all()
        return Answer.STREAM if isinstance(frame.message, Subscribe) else Answer.NONE

    def disconnected(self, caller):
        pass

    def until(self, condition):
        with self.changed:
            assert self.changed.wait_for(condition, TIMEOUT_S), self.heard


class SecondServer:
    """Holds one contribution, and notes what was decided."""

    host = "ps:0"

    def __init__(self):
        self.ended = threading.Event()
        self.decisions = []
        self.decided_one = threading.Event()
        self.impossible = False
        self.failure = None

    def position(self):
        return Subscribe(generation=1, version=7), [HELD]

    def fail(self, reason):
        self.failure = reason
        self.ended.set()

    def decided(self, commit):
        if self.impossible:
            raise KeyError("no such contribution")
        self.decisions.append(commit)
        self.decided_one.set()


@pytest.fixture
def first():
    return FirstServer()


@pytest.fixture
def address(first):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    service = GrpcService(first, address, FIRST, connections=16, share_port=False)
    yield address
    service.stop()


@pytest.fixture
def connect(address):
    return partial(GrpcChannel, "ps:0", address, SECOND)


@pytest.fixture
def second():
    return SecondServer()


@pytest.fixture
def follow(second, connect):
    def follow():
        follow.links.append(DecisionLink(second, connect))
        return follow.links[-1]

    follow.links = []
    follow.before = threading.enumerate()
    yield follow
    for link in follow.links:
        link.close()


def ended(follow):
    """Wait for the end of the threads that have been started since."""
    threads = [each for each in threading.enumerate() if each.name in ("commits", "reports")]
    for thread in set(threads) - set(follow.before):
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
    return True


def test_it_subscribes_reports_what_is_held_and_hears_decisions(first, second, follow):
    link = follow()
    first.until(lambda: Subscribe(generation=1, version=7) in first.heard and HELD in first.heard)
    link.report(Complete(generation=1, rank=0, incarnation=1, version=7, ordinal=0))
    first.until(lambda: Complete(generation=1, rank=0, incarnation=1, version=7, ordinal=0) in first.heard)
    first.subscribers[0].send(Commit(generation=1, version=7, contributors=((2, 1, 0),)))
    assert second.decided_one.wait(TIMEOUT_S)
    assert second.decisions == [Commit(generation=1, version=7, contributors=((2, 1, 0),))]


def test_when_only_the_reports_connection_breaks_all_that_is_held_is_told_again(first, follow):
    link = follow()
    first.until(lambda: HELD in first.heard and first.subscribers)
    link._reports.channel._requests.put(iter([b"not a message: the server ends this connection"]))
    first.until(lambda: first.heard.count(HELD) >= 2)
    assert len(first.subscribers) == 1, "the other connection is a good one"


def test_when_the_commits_connection_breaks_it_subscribes_again_from_where_it_stands(first, follow):
    follow()
    first.until(lambda: HELD in first.heard and first.subscribers)
    first.subscribers[0].hang_up()
    first.until(lambda: len(first.subscribers) >= 2)
    assert first.heard.count(Subscribe(generation=1, version=7)) == 2


def test_what_is_no_decision_is_not_obeyed_and_it_subscribes_again(first, second, follow):
    follow()
    first.until(lambda: HELD in first.heard and first.subscribers)
    first.subscribers[0].send(Refusal(reason="not now"))
    first.until(lambda: len(first.subscribers) >= 2)
    assert second.decisions == []


def test_after_its_end_neither_connection_is_opened_again(first, follow):
    link = follow()
    first.until(lambda: HELD in first.heard and first.subscribers)
    link.close()
    assert ended(follow)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_decision_that_cannot_be_carried_out_ends_the_server_by_name(first, second, follow):
    second.impossible = True
    follow()
    first.until(lambda: first.subscribers)
    first.subscribers[0].send(Commit(generation=1, version=7, contributors=((2, 1, 0),)))
    assert second.ended.wait(TIMEOUT_S)
    assert second.failure == "the decisions of ps:0 cannot be followed: KeyError: 'no such contribution'"
    follow.links[0].close()
    assert ended(follow)  # what it dies of is warned about in this test, and in no other
