"""`simulate.network`: a connection that is slower than it is, whatever carries it. A simulated link, not a
measured one.

A message arrives `latency_ms` after its last byte has left, in either direction, and a byte leaves no faster
than `bandwidth_mbit_s` allows; messages keep their order. Only blocks take bandwidth, headers do not, so that
a heartbeat is late by the latency alone and a narrow link never costs a lease. Each connection is a line of
its own: a gradient under way to one server delays nothing that goes to another.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from dtrain.config import LinkFault, SimulateSection
from dtrain.errors import PeerLostError
from dtrain.messages import AnyMessage
from dtrain.types import Array
from dtrain.wire.channel import Channel, NoticesLoss, silent
from dtrain.wire.frames import Frame, written
from dtrain.wire.interruptible import next_of


def through_link(channel: Channel, simulate: SimulateSection, task: str) -> Channel:
    fault = simulate.link(task, channel.peer)
    return channel if fault is None else SlowChannel(channel, fault)


class Line(msgspec.Struct):
    """One direction of a link: says when what is sent arrives."""

    fault: LinkFault
    _free_s: float = 0.0

    def arrival_s(self, now_s: float, blocks: Sequence[Array]) -> float:
        bandwidth = self.fault.bandwidth_mbit_s
        sending_s = sum(block.nbytes for block in blocks) * 8e-6 / bandwidth if bandwidth else 0.0
        self._free_s = max(now_s, self._free_s) + sending_s
        return self._free_s + self.fault.latency_ms / 1000


class SlowChannel:
    """A channel behind a slow link. Two threads of its own hold messages back, so `send` returns at once.

    It owns the `channel` from now on. `sleep` waits seconds; the default is woken by `abort` and `close`.
    """

    def __init__(
        self,
        channel: Channel,
        fault: LinkFault,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        self.peer = channel.peer
        self.bytes_sent = self.bytes_received = 0
        self._channel = channel
        self._clock = clock
        self._lost: str | None = None
        self._ended = threading.Event()
        self._sleep = sleep or self._ended.wait
        self._out = Line(fault)
        self._in = Line(fault)
        self._outbox: queue.SimpleQueue[tuple[float, AnyMessage, Sequence[Array]] | None] = (
            queue.SimpleQueue()
        )
        self._inbox: queue.SimpleQueue[tuple[float, Frame] | Exception] = queue.SimpleQueue()
        for run in (self._carry_out, self._carry_in):
            threading.Thread(target=run, name=f"slow link to {self.peer}", daemon=True).start()

    def send(self, message: AnyMessage, blocks: Sequence[Array] = ()) -> None:
        self._outbox.put((self._out.arrival_s(self._clock(), blocks), message, blocks))

    def receive(self, into: Sequence[Array] = (), deadline: float | None = None) -> Frame:
        """Receive as the channel does; what is late by the link alone is waited for beyond the deadline."""
        try:
            item = next_of(self._inbox, deadline)
        except queue.Empty:
            raise silent(self.peer) from None
        if isinstance(item, Exception):
            self._inbox.put(item)  # the next call hears it again
            raise item
        arrival_s, frame = item
        self._wait_until(arrival_s)
        if self._lost is not None:
            raise PeerLostError(self._lost)
        self.bytes_sent = self._channel.bytes_sent
        self.bytes_received = self._channel.bytes_received
        return Frame(frame.message, written(frame.blocks, into))

    def watch(self, lost: Callable[[], None]) -> None:
        if isinstance(self._channel, NoticesLoss):
            self._channel.watch(lost)

    def abort(self, reason: str) -> None:
        self._lost = self._lost or reason
        self._ended.set()
        self._channel.abort(reason)

    def close(self) -> None:
        """Close; what is still held back is dropped, as on any connection."""
        self._outbox.put(None)
        self._channel.close()
        self.abort(f"the connection to {self.peer} is closed")

    def _carry_out(self) -> None:
        while (item := self._outbox.get()) is not None:
            arrival_s, message, blocks = item
            self._wait_until(arrival_s)
            if self._ended.is_set():
                return
            try:
                self._channel.send(message, blocks)
            except Exception as error:  # it belongs to the thread that waits for the answer
                self._inbox.put(error)
                return

    def _carry_in(self) -> None:
        """Note when each message came, also while the training thread waits for another peer."""
        try:
            while True:
                frame = self._channel.receive()
                self._inbox.put((self._in.arrival_s(self._clock(), frame.blocks), frame))
        except Exception as error:
            self._inbox.put(error)

    def _wait_until(self, arrival_s: float) -> None:
        while (left_s := arrival_s - self._clock()) > 0 and not self._ended.is_set():
            self._sleep(left_s)
