"""The one place where a connection that breaks is opened again.

A `Peer` belongs to one thread of a driver and leads to one server. What it was asked to `send` and has not
been answered is said again on the new connection, in its order; what it is to `notify` is said once. The
server recognises what it has heard before: see "exactly once" in docs/design/protocol.md.

Several peers of one thread may stand `together`. Then the thread that waits for one of them also opens
another one again, whose connection breaks meanwhile with a question under way: in synchronous training the
answer that is waited for may itself wait for what the other server has not heard.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from dtrain.errors import PeerError, PeerLostError, WaitTimeoutError
from dtrain.messages import AnyMessage
from dtrain.process.clock import SYSTEM, Clock
from dtrain.runs.events import AnyEvent, Disconnected, Reconnected
from dtrain.types import Array
from dtrain.wire.channel import Channel, NoticesLoss
from dtrain.wire.frames import Frame

PAUSE_S = 0.05
"""The pause before each attempt to open a connection again."""
ATTEMPT_S = 2.0
"""The longest time that one attempt may take: over 500 ms of network it is two round trips."""
STEADY_S = 1.0
"""A connection that has lasted so long was a good one."""

Connect = Callable[[float], Channel]
"""Opens a connection to the server, waiting at most the given seconds."""


class Peer:
    """A server, as one thread sees it; `abort` and `break_with` may come from other threads."""

    def __init__(
        self,
        name: str,
        connect: Connect,
        *,
        patience_s: float,
        clock: Clock = SYSTEM,
        pause_s: float = PAUSE_S,
        greeting: Callable[[], Iterable[AnyMessage]] | None = None,
        note: Callable[[AnyEvent], None] | None = None,
    ) -> None:
        """Remember how to connect. A server that is away, or breaks connections, for `patience_s` is
        lost. A `greeting` is sent first on every connection, in place of what is unanswered.
        """
        self.name = name
        self.channel: Channel | None = None
        self._connect = connect
        self._patience_s = patience_s
        self._clock = clock
        self._pause_s = pause_s
        self._greeting = greeting
        self._note = note
        self._asked: list[tuple[AnyMessage, Sequence[Array]]] = []
        self._aborted: str | None = None
        self._opened_s = -math.inf
        self._patient_until_s: float | None = None
        self._dead: Channel | None = None
        self._waits = False
        self._together: Sequence[Peer] = ()
        self._losses: list[Peer] = []

    @staticmethod
    def together(peers: "Sequence[Peer]") -> None:
        losses: list[Peer] = []
        for peer in peers:
            peer._together = peers
            peer._losses = losses

    def open(self, within_s: float) -> None:
        """Open the connection, or a new one; what was unanswered is not sent again."""
        self._drop()
        self._asked = []
        if self._aborted is None:
            self._adopt(self._connect(within_s))
        self._raise_if_aborted()

    def send(
        self,
        message: AnyMessage,
        blocks: Sequence[Array] = (),
        *,
        deadline: float | None = None,
        follows: bool = False,
    ) -> None:
        """Ask a question; it is sent again on a new connection until it is answered, so its blocks must not
        change. It takes the place of those that are unanswered, or `follows` them. Raises a `PeerLostError`
        after the patience, or a `WaitTimeoutError` by a sooner deadline, without a connection.
        """
        self._asked = [*(self._asked if follows else ()), (message, blocks)]
        channel = self.channel
        if channel is None or channel is self._dead:
            self._open_again(PeerLostError(f"{self.name} cannot be reached"), deadline)
            return
        with contextlib.suppress(PeerLostError):  # `receive` hears it as well
            channel.send(message, blocks)

    def notify(self, message: AnyMessage, blocks: Sequence[Array] = ()) -> None:
        """Send something once, if there is a connection: it may be lost with it."""
        if (channel := self.channel) is not None:
            with contextlib.suppress(PeerLostError):
                channel.send(message, blocks)

    def receive(self, into: Sequence[Array] = (), deadline: float | None = None) -> Frame:
        """Wait for the next message, as `Channel.receive`. A `PeerLostError` also says that the patience
        is over, or that the connection broke and there is nothing to be sent again.
        """
        self._waits = True
        try:
            while True:
                while self._losses:
                    peer = self._losses.pop()
                    if peer.channel is peer._dead and peer._asked:
                        peer._open_again(PeerLostError(f"lost {peer.name}"), deadline)
                if (channel := self.channel) is None:
                    self._open_again(PeerLostError(f"{self.name} cannot be reached"), deadline)
                    continue
                try:
                    frame = channel.receive(into, deadline)
                except PeerLostError as error:
                    self._open_again(error, deadline)
                    continue
                self._asked = self._asked[1:]
                self._patient_until_s = None
                return frame
        finally:
            self._waits = False

    def ask(self, message: AnyMessage, deadline: float) -> Frame:
        """Ask, and return the answer, or raise as `receive`; at the deadline the connection is given up."""
        try:
            self.send(message, deadline=deadline)
            return self.receive(deadline=deadline)
        except WaitTimeoutError:
            self._drop()
            raise

    def abort(self, reason: str) -> None:
        """From any thread: make every wait, also of later calls, raise PeerLostError with this reason."""
        self._aborted = reason
        self.break_with(reason)

    def break_with(self, reason: str) -> None:
        """From any thread: break the connection; what is unanswered is sent again on a new one."""
        if (channel := self.channel) is not None:
            channel.abort(reason)

    def close(self) -> None:
        self._asked = []
        self._drop()

    def _open_again(self, lost: PeerError, deadline: float | None) -> None:
        self._drop()
        if not self._asked and self._greeting is None:
            raise lost
        now_s = self._clock.now()
        # Breaking again and again without an answer, a server has no more time than if it were away.
        if self._patient_until_s is None or now_s - self._opened_s >= STEADY_S:
            self._patient_until_s = now_s + self._patience_s
        until_s = self._patient_until_s if deadline is None else min(deadline, self._patient_until_s)
        first = self._opened_s == -math.inf
        pause_s = 0.0 if first else self._pause_s
        if self._note is not None and not first:
            self._note(Disconnected(peer=self.name, reason=str(lost)))
        while self._aborted is None:
            if self._clock.now() >= self._patient_until_s:
                raise PeerLostError(f"{lost}; it did not come back within {self._patience_s:g} s")
            if self._clock.now() >= until_s:
                raise lost
            self._clock.sleep(pause_s)
            try:
                self._adopt(self._connect(min(ATTEMPT_S, max(0.0, until_s - self._clock.now()))))
                break
            except (WaitTimeoutError, PeerLostError) as error:
                pause_s = self._pause_s
                lost = error if first else lost
        self._raise_if_aborted()
        if self._note is not None and not first:
            self._note(Reconnected(peer=self.name, after_s=self._clock.now() - now_s))

    def _adopt(self, channel: Channel) -> None:
        self._opened_s = self._clock.now()
        self.channel = channel
        if isinstance(channel, NoticesLoss):
            channel.watch(partial(self._lost, channel))
        if self._aborted is not None:
            return
        with contextlib.suppress(PeerLostError):
            if self._greeting is not None:
                for message in self._greeting():
                    channel.send(message)
            else:
                for message, blocks in self._asked:
                    channel.send(message, blocks)

    def _lost(self, channel: Channel) -> None:
        """From a thread of the transport: note that this connection is gone, and wake the waiting thread."""
        self._dead = channel  # before the question is looked at: `send` looks the other way round
        if self._together and self._asked and channel is self.channel:
            self._losses.append(self)
            for other in self._together:
                if other is not self and other._waits:
                    other.break_with(f"the connection to {self.name} broke while {other.name} was waited for")

    def _drop(self) -> None:
        if (channel := self.channel) is not None:
            self.channel = None
            channel.close()

    def _raise_if_aborted(self) -> None:
        if self._aborted is not None:
            self._drop()
            raise PeerLostError(self._aborted)
