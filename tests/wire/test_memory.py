"""The twin without sockets keeps the promises of a connection."""

import threading
import time

import numpy as np
import pytest

from dtrain.errors import PeerLostError, PeerRefusedError, WaitTimeoutError
from dtrain.messages import Commit, Farewell, Hello, Pull, Refusal, Subscribe
from dtrain.wire.channel import Answer, MemoryChannel
from dtrain.wire.frames import Limits


class Echo:
    """Answers a Pull with itself and its blocks doubled; a subscriber gets three commits."""

    def limits(self, hello):
        return Limits(1 << 20, 1 << 30)

    def __init__(self):
        self.gone = []

    def refuse(self, hello):
        return "not you" if hello.task == "worker:9" else None

    def received(self, caller, frame):
        if isinstance(frame.message, Farewell):
            return Answer.NONE
        if isinstance(frame.message, Subscribe):
            for version in range(3):
                caller.send(Commit(generation=1, version=version, contributors=()))
            return Answer.STREAM
        caller.send(frame.message, [block * 2 for block in frame.blocks])
        return Answer.ONE

    def disconnected(self, caller):
        self.gone.append(caller)


@pytest.fixture
def echo():
    return Echo()


def connect(handler, task="worker:0", **more):
    return MemoryChannel("ps:0", handler, Hello(run_id="run", cluster_hash="hash", task=task), **more)


def test_messages_and_blocks_go_both_ways_as_bytes(echo):
    channel = connect(echo)
    into = [np.zeros(3, np.float32)]
    channel.send(Pull(generation=1, at_least=0, wait_s=0.0), [np.arange(3, dtype=np.float32)])
    frame = channel.receive(into)
    assert frame.message == Pull(generation=1, at_least=0, wait_s=0.0)
    assert frame.blocks[0] is into[0]
    assert into[0].tolist() == [0, 2, 4]
    assert channel.bytes_sent == channel.bytes_received > 12


def test_a_message_without_an_answer_and_one_with_many(echo):
    channel = connect(echo)
    channel.send(Farewell())
    channel.send(Subscribe(generation=1, version=0))
    assert [channel.receive().message.version for _ in range(3)] == [0, 1, 2]


def test_opening_is_the_handshake(echo):
    with pytest.raises(PeerRefusedError, match="ps:0 refused worker:9: not you"):
        connect(echo, "worker:9")


def test_after_an_abort_from_another_thread_the_wait_ends_with_its_reason(echo):
    channel = connect(echo)
    thread = threading.Timer(0.01, channel.abort, ["the run has ended"])
    thread.start()
    with pytest.raises(PeerLostError, match="the run has ended"):
        channel.receive()
    thread.join()
    with pytest.raises(PeerLostError, match="the run has ended"):
        channel.send(Farewell())


def test_a_wait_has_an_end_and_names_the_peer_that_was_waited_for(echo):
    channel = connect(echo)
    with pytest.raises(WaitTimeoutError, match="ps:0 did not answer in time"):
        channel.receive(deadline=time.monotonic() + 0.01)
    channel.send(Pull(generation=1, at_least=7, wait_s=0.0))
    answer = channel.receive(deadline=time.monotonic() + 20).message
    assert answer.at_least == 7, "the connection stays as it is"


def test_the_server_hears_of_a_closed_connection_once(echo):
    channel = connect(echo)
    channel.close()
    channel.close()
    assert len(echo.gone) == 1
    with pytest.raises(PeerLostError, match="closed"):
        channel.send(Refusal(reason="x"))


def test_a_message_is_dropped_or_refused_by_the_limits_of_a_server(echo):
    channel, pull = connect(echo), Pull(generation=1, at_least=0, wait_s=0.0)
    echo.limits = lambda hello: Limits(1000, 8, 16)
    for size, expected in ((2, 1), (4, 0)):
        channel.send(pull, [np.zeros(size, np.float32)])
        assert len(channel.receive().blocks) == expected
    channel.send(pull, [np.zeros(5, np.float32)])
    assert channel.receive().message == Refusal(reason="a message of 20 bytes; at most 16 are expected here")
