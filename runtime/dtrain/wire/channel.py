"""The interface of a connection: what roles see of every transport.

A connection is opened by one task (the client end, `Channel`) to a server (the serving end, `Caller`).
Messages keep their order on a connection; most are answered by exactly one message. There is a twin without
sockets in `memory`.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol, runtime_checkable

from dtrain.errors import WaitTimeoutError
from dtrain.messages import AnyMessage, Hello
from dtrain.types import Array
from dtrain.wire.frames import Frame, Limits, Payload


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
    def bytes_received(self) -> int:
        """The same, the other way."""

    def send(self, message: AnyMessage, blocks: Sequence[Array] = ()) -> None:
        """Send a message. The blocks must not change before the answer has come.

        Raises:
            PeerLostError: the connection is gone. A transport may leave it to `receive` to say so.
        """

    def receive(self, into: Sequence[Array] = (), deadline: float | None = None) -> Frame:
        """Wait for the next message; blocks that fit `into` (dtypes and sizes) are written there.

        So are those of later messages, until other arrays are offered. Or they lie where the server wrote
        them: they cannot be written, and stay as they are until the next message with blocks, unless that is
        `Rows`.

        Args:
            into: arrays of the caller, which belong to the channel until others are offered.
            deadline: in seconds of the channel's clock (`time.monotonic`, where it is a real one); None: wait
                as long as the peer lives, unless another thread calls `abort`.

        Raises:
            WaitTimeoutError: no message has come by the deadline. The connection stays as it is.
            PeerLostError: the connection is gone, or was aborted.
            PeerRefusedError: the server does not want this connection; the message says why.
        """

    def abort(self, reason: str) -> None:
        """Make the `receive` under way, and all later ones, raise PeerLostError with this reason."""

    def close(self) -> None:
        """Give the connection up. Never raises."""


@runtime_checkable
class PassesOn(Protocol):
    """An end of a connection between two tasks of one host, on which file descriptors can travel."""

    def pass_on(self, message: AnyMessage, descriptors: Sequence[int]) -> None:
        """Send a message without blocks, and copies of file descriptors: `Frame.passed` at the other end.

        The caller's own may be closed when this returns.
        """


@runtime_checkable
class NoticesLoss(Protocol):
    """A channel whose transport learns of a loss also while no thread waits for an answer."""

    def watch(self, lost: Callable[[], None]) -> None:
        """Have `lost` called, from any thread, once the connection is gone; at once if it is gone already."""


def silent(peer: str) -> WaitTimeoutError:
    """Return the error of a wait that has reached its deadline."""
    return WaitTimeoutError(f"{peer} did not answer in time")


class Caller(Protocol):
    """The serving end of one connection."""

    hello: Hello

    @property
    def reading(self) -> Sequence[Array]:
        """The blocks last sent, as long as the peer reads them where they are: until it is answered with
        others, or `has_read`.
        """

    def has_read(self) -> None:
        """Record that the peer reads no more of the blocks: from now on `reading` is empty."""

    def __hash__(self) -> int:
        """Two connections are never equal."""

    def send(self, message: AnyMessage, blocks: Sequence[Array] = (), payload: Payload | None = None) -> None:
        """Answer, now or later. The blocks are copied before this returns, or stand in `reading`; one that is
        gone is no error.

        `payload` holds the same blocks, where many get the same answer.
        """


class Handler(Protocol):
    """The interface of a server, which the service calls from many threads at once."""

    def limits(self, hello: Hello) -> Limits:
        """Return the longest message that makes sense now from a task; what the task cannot know is no reason
        to refuse it (`Limits.dropped`).
        """

    @property
    def answers_at_once(self) -> bool:
        """Whether a large message is answered before another one is needed: they may come one at a time."""

    def refuse(self, hello: Hello) -> str | None:
        """Why this connection is not let in; None if it is."""

    def received(self, caller: Caller, frame: Frame) -> Answer:
        """Take a message; answer through `caller.send`. Its blocks stay as they are until it is answered."""

    def disconnected(self, caller: Caller) -> None:
        """Take note that a connection is gone."""
