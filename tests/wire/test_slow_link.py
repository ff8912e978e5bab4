"""A slow link on a clock of the test's own; and over the twin without sockets, with a clock that is ahead as
soon as one sleeps.
"""

import threading

import numpy as np
import pytest

from dtrain.config import LinkFault, SimulateSection
from dtrain.errors import PeerLostError
from dtrain.messages import Hello, Pull, Subscribe
from dtrain.wire.channel import Answer, MemoryChannel
from dtrain.wire.frames import Limits
from dtrain.wire.slow_link import Line, SlowChannel, through_link

MEGABYTE = [np.zeros(250_000, np.float32)]


class Echo:
    def limits(self, hello):
        return Limits(1 << 20, 1 << 30)

    answers_at_once = True

    def __init__(self):
        self.gone = threading.Event()

    def refuse(self, hello):
        return None

    def received(self, caller, frame):
        for _ in range(3 if isinstance(frame.message, Subscribe) else 1):
            caller.send(frame.message, frame.blocks)
        return Answer.STREAM if isinstance(frame.message, Subscribe) else Answer.ONE

    def disconnected(self, caller):
        self.gone.set()


class Clock:
    """Time passes only by sleeping."""

    def __init__(self):
        self.now_s = 100.0
        self._lock = threading.Lock()

    def __call__(self):
        with self._lock:
            return self.now_s

    def sleep(self, seconds):
        with self._lock:
            self.now_s += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def echo():
    return Echo()


@pytest.fixture
def channel(clock, echo):
    inner = MemoryChannel("ps:1", echo, Hello(run_id="run", cluster_hash="hash", task="worker:0"))
    channel = SlowChannel(inner, LinkFault(("worker:0", "ps:1"), 2.0, 1000.0), clock, clock.sleep)
    yield channel
    channel.close()


def test_latency_delays_and_bandwidth_fills_the_line():
    line = Line(LinkFault(("worker:0", "ps:1"), latency_ms=2.0, bandwidth_mbit_s=1000.0))
    assert line.arrival_s(5.0, []) == pytest.approx(5.002)
    assert line.arrival_s(5.0, MEGABYTE) == pytest.approx(5.010)
    assert line.arrival_s(5.0, MEGABYTE) == pytest.approx(5.018)  # after the first one has left
    assert line.arrival_s(9.0, MEGABYTE) == pytest.approx(9.010)  # the line had been idle


def test_without_a_bandwidth_size_does_not_matter():
    line = Line(LinkFault(("worker:0", "ps:1"), latency_ms=3.0))
    assert [line.arrival_s(1.0, MEGABYTE) for _ in range(2)] == pytest.approx([1.003, 1.003])


def test_there_and_back_take_two_latencies_and_two_transfers(clock, channel):
    channel.send(Pull(generation=1, at_least=0, wait_s=0.0), MEGABYTE)
    into = [np.ones(250_000, np.float32)]
    frame = channel.receive(into)
    assert frame.blocks[0] is into[0]
    assert not into[0].any()
    assert clock.now_s == pytest.approx(100.020)
    assert channel.bytes_sent == channel.bytes_received > 1_000_000


def test_messages_keep_their_order_and_blocks_that_do_not_fit_are_new(channel):
    for version in range(5):
        channel.send(
            Pull(generation=1, at_least=version, wait_s=0.0), [np.full(version + 1, version, np.float32)]
        )
    frames = [channel.receive([np.zeros(1, np.float64)]) for _ in range(5)]
    assert [frame.message.at_least for frame in frames] == [0, 1, 2, 3, 4]
    assert [frame.blocks[0].tolist() for frame in frames] == [[v] * (v + 1) for v in range(5)]


def test_a_stream_passes(channel):
    channel.send(Subscribe(generation=1, version=7))
    assert [channel.receive().message for _ in range(3)] == [Subscribe(generation=1, version=7)] * 3


def test_a_send_that_is_held_back_blocks_neither_the_sender_nor_another_link(echo):
    never = threading.Event()
    slow = SlowChannel(
        MemoryChannel("ps:1", echo, Hello(run_id="run", cluster_hash="hash", task="worker:0")),
        LinkFault(("worker:0", "ps:1"), 1e9),
        sleep=lambda seconds: never.wait(20),
    )
    quick = MemoryChannel("ps:0", echo, Hello(run_id="run", cluster_hash="hash", task="worker:0"))
    for channel in (slow, quick):
        channel.send(Pull(generation=1, at_least=0, wait_s=0.0))
    assert quick.receive().message == Pull(generation=1, at_least=0, wait_s=0.0)
    assert slow.bytes_sent == 0
    never.set()
    slow.close()
    assert echo.gone.wait(20)


def test_abort_breaks_a_wait_at_once_and_for_good(echo):
    channel = SlowChannel(
        MemoryChannel("ps:1", echo, Hello(run_id="run", cluster_hash="hash", task="worker:0")),
        LinkFault(("worker:0", "ps:1"), 1e9),
    )
    channel.send(Pull(generation=1, at_least=0, wait_s=0.0))
    threading.Timer(0.01, channel.abort, ["given up"]).start()
    for _ in range(2):
        with pytest.raises(PeerLostError, match="given up"):
            channel.receive()


def test_only_the_link_that_is_named_is_slow_from_either_end(echo):
    simulate = SimulateSection(network=(LinkFault(("/job:ps/task:1", "worker:0"), 2.0),))
    for task, peer, slow in (
        ("worker:0", "ps:1", True),
        ("worker:0", "ps:0", False),
        ("worker:1", "ps:1", False),
    ):
        inner = MemoryChannel(peer, echo, Hello(run_id="run", cluster_hash="hash", task=task))
        channel = through_link(inner, simulate, task)
        assert isinstance(channel, SlowChannel) is slow
        assert (channel is inner) is not slow
        channel.close()
