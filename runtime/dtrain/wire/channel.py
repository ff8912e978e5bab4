"""The interface of a connection, which roles see of every transport, and its twin without sockets.

A connection is opened by one task (the client end, `Channel`) to a server (the serving end, `Caller`).
Messages keep their order on a connection; most are answered by exactly one message. The twin without
sockets is `MemoryChannel`.
"""

import queue
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol, runtime_checkable

from dtrain.errors import PeerLostError, PeerRefusedError, WaitTimeoutError
from dtrain.messages import AnyMessage, Hello, Refusal
from dtrain.types import Array
from dtrain.wire.frames import UNKNOWN, Frame, FrameDecoder, Limits, Payload, encode
from dtrain.wire.interruptible import next_of


class Answer(Enum):
    """How a server answers a message on its connection."""

    NONE = "none"
    ONE = "one"
    """With one message, now or later."""
    STREAM = "stream"
    """With messages from now on; nothing more is read from the connection."""


class Channel(Protocol):
    """The client end. One thread uses it; `abort` alone may come from another."""

    peer: str

    @property
    def bytes_sent(self) -> int:
        """Bytes that the peer has been given, also where it reads them in place."""

    @property
    def bytes_received(self) -> int: ...

    def send(self, message: AnyMessage, blocks: Sequence[Array] = ()) -> None:
        """Send a message. The blocks must not change before the answer has come. Raises a `PeerLostError` if
        the connection is gone, which a transport may leave to `receive`.
        """

    def receive(self, into: Sequence[Array] = (), deadline: float | None = None) -> Frame:
        """Wait for the next message; blocks that fit `into` (dtypes and sizes) are written there. So are
        those of later messages, until other arrays are offered. Or they lie where the server wrote them:
        they cannot be written, and stay as they are until the next message with blocks, unless that is
        `Rows`. The deadline is in seconds of the channel's clock. Raises a `WaitTimeoutError` at the
        deadline, a `PeerLostError` where the connection is gone or was aborted, and a `PeerRefusedError`
        with the server's reason.
        """

    def abort(self, reason: str) -> None:
        """Make the `receive` under way, and all later ones, raise PeerLostError with this reason."""

    def close(self) -> None: ...


@runtime_checkable
class PassesOn(Protocol):
    """An end of a connection between two tasks of one host, on which file descriptors can travel."""

    def pass_on(self, message: AnyMessage, descriptors: Sequence[int]) -> None:
        """Send a message without blocks, and copies of file descriptors (`Frame.passed`), which may be closed
        then.
        """


@runtime_checkable
class NoticesLoss(Protocol):
    """A channel whose transport learns of a loss also while no thread waits for an answer."""

    def watch(self, lost: Callable[[], None]) -> None:
        """Call `lost`, from any thread, once the connection is gone; at once if it is gone already."""


def silent(peer: str) -> WaitTimeoutError:
    return WaitTimeoutError(f"{peer} did not answer in time")


class Caller(Protocol):
    """The serving end of one connection."""

    hello: Hello

    @property
    def reading(self) -> Sequence[Array]:
        """The blocks last sent, as long as the peer reads them in place: until other blocks are sent, or
        `has_read`.
        """

    def has_read(self) -> None: ...

    def __hash__(self) -> int: ...

    def send(self, message: AnyMessage, blocks: Sequence[Array] = (), payload: Payload | None = None) -> None:
        """Answer, now or later. The blocks are copied before this returns, or stand in `reading`; a peer that
        is gone is no error. `payload` holds the same blocks, where many get the same answer.
        """


class Handler(Protocol):
    """The interface of a server, which the service calls from many threads at once."""

    def limits(self, hello: Hello) -> Limits:
        """Return the longest message that makes sense now from a task, which cannot know it
        (`Limits.dropped`).
        """

    @property
    def answers_at_once(self) -> bool:
        """Whether a large message is answered before another one is needed: they may come one at a time."""

    def refuse(self, hello: Hello) -> str | None: ...

    def received(self, caller: Caller, frame: Frame) -> Answer:
        """Handle a message; answer through `caller.send`. Its blocks stay as they are until then."""

    def disconnected(self, caller: Caller) -> None: ...


class MemoryCaller:
    """The serving end: what is sent waits in `outbox`."""

    reading: Sequence[Array] = ()

    def __init__(self, hello: Hello) -> None:
        self.hello = hello
        self.outbox: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()

    def has_read(self) -> None: ...

    def send(self, message: AnyMessage, blocks: Sequence[Array] = (), payload: Payload | None = None) -> None:
        self.outbox.put(list(encode(message, blocks, payload)))


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
        self._lost = self._lost or reason
        self._caller.outbox.put(None)

    def close(self) -> None:
        if self._lost is None:
            self._lost = f"the connection to {self.peer} is closed"
            self._handler.disconnected(self._caller)
