"""The twin of a connection without sockets: the same bytes, handed over in one process. For tests and
simulations.
"""

import queue
from collections.abc import Sequence

from dtrain.errors import PeerLostError, PeerRefusedError
from dtrain.messages import AnyMessage, Hello, Refusal
from dtrain.types import Array
from dtrain.wire.answers import next_of
from dtrain.wire.channel import Answer, Handler, silent
from dtrain.wire.frames import UNKNOWN, Frame, FrameDecoder, Payload, encode, with_payload


class MemoryCaller:
    """The serving end: what is sent waits in `outbox`."""

    reading: Sequence[Array] = ()

    def __init__(self, hello: Hello) -> None:
        self.hello = hello
        self.outbox: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()

    def has_read(self) -> None:
        """See `Caller.has_read`: nothing is read in place."""

    def send(self, message: AnyMessage, blocks: Sequence[Array] = (), payload: Payload | None = None) -> None:
        """See `Caller.send`."""
        self.outbox.put(list(with_payload(message, blocks, (payload or Payload(blocks)).chunks())))


class MemoryChannel:
    """The client end, joined to a handler in the same process. Opening it is the handshake."""

    def __init__(self, peer: str, handler: Handler, hello: Hello) -> None:
        if reason := handler.refuse(hello):
            raise PeerRefusedError(f"{peer} refused {hello.task}: {reason}")
        self.peer = peer
        self.bytes_sent = 0
        self.bytes_received = 0
        self._handler = handler
        self._caller = MemoryCaller(hello)
        self._requests = FrameDecoder(handler.limits(hello))
        self._lost: str | None = None

    def send(self, message: AnyMessage, blocks: Sequence[Array] = ()) -> None:
        """See `Channel.send`."""
        if self._lost:
            raise PeerLostError(self._lost)
        self._requests.limits = self._handler.limits(self._caller.hello)
        for chunk in encode(message, blocks):
            self.bytes_sent += len(chunk)
            try:
                frame = self._requests.feed(chunk)
            except PeerRefusedError as error:
                self._caller.send(Refusal(reason=str(error)))
                return
            if frame is not None and self._handler.received(self._caller, frame) is Answer.NONE:
                return

    def receive(self, into: Sequence[Array] = (), deadline: float | None = None) -> Frame:
        """See `Channel.receive`."""
        try:
            chunks = None if self._lost else next_of(self._caller.outbox, deadline)
        except queue.Empty:
            raise silent(self.peer) from None
        if chunks is None:
            raise PeerLostError(self._lost or f"the connection to {self.peer} is closed")
        decoder = FrameDecoder(UNKNOWN, offer=lambda _: into)
        frame = None
        for chunk in chunks:
            self.bytes_received += len(chunk)
            frame = decoder.feed(chunk)
        if frame is None:
            raise AssertionError("a sender's chunks make one whole frame")
        return frame

    def abort(self, reason: str) -> None:
        """See `Channel.abort`."""
        self._lost = self._lost or reason
        self._caller.outbox.put(None)

    def close(self) -> None:
        """See `Channel.close`."""
        if self._lost is None:
            self._lost = f"the connection to {self.peer} is closed"
            self._handler.disconnected(self._caller)
