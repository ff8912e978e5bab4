"""Connections between tasks that delay, lose, repeat late and break, all drawn from one seed; and the client end
of each as drivers have it (`dtrain.wire.channel.Channel`).
"""

from collections import deque
from collections.abc import Callable, Sequence
from math import log
from random import Random
from typing import Any

import msgspec
from simulation.clock import Clock, Life

from dtrain.errors import PeerLostError, WaitTimeoutError
from dtrain.messages import AnyMessage, Conclude, Hello, Recorded, SnapshotReply
from dtrain.wire.frames import Frame, Payload

Blocks = Sequence[Any]

RETRY_S = 0.1
CHANGING = (SnapshotReply, Recorded, Conclude)
"""Messages that hold what a server goes on changing."""


class Wire:
    """One connection from a task to a server. Messages keep their order; when it breaks, a part of what is
    under way still arrives.

    So a server may hear a message on an old connection after its repetition on a new one, and hear of the
    break later still.
    """

    def __init__(self, network: "Network", task: str, kind: str, server: Any, life: Life) -> None:
        self.network = network
        self.task = task
        self.kind = kind
        self.server = server
        self.server_life = server.life
        self.life = life
        self.open = True
        self.breakable = True
        self.asked: tuple[Any, Blocks] = None, ()
        self.caller = Caller(self)
        self.channel = VirtualChannel(self)
        self._arrives_s = [0.0, 0.0]
        self._sent = 0
        self._heard = 0
        self._lost_from: int | None = None

    def __repr__(self) -> str:
        return f"{self.task}={self.kind}=>{self.server.name}"

    def send(self, message: AnyMessage, blocks: Blocks = ()) -> None:
        """From the task to the server."""
        if self.open:
            self._sent += 1
            self.asked = message, blocks
            self.network.judge.sent(self, message, blocks)
            self.network.clock.later(self._arrival(0), self._hear, self._sent, message, blocks)

    def answer(self, message: AnyMessage, blocks: Blocks = ()) -> None:
        """From the server to the task."""
        if self.open:
            self.network.judge.answered(self, message, blocks)
            self.network.clock.later(self._arrival(1), self._return, message, blocks)

    def _arrival(self, direction: int) -> float:
        now = self.network.clock.now
        self._arrives_s[direction] = max(self._arrives_s[direction], now + self.network.delay_s())
        return self._arrives_s[direction] - now

    def _hear(self, number: int, message: AnyMessage, blocks: Blocks) -> None:
        if self._lost_from is None or number < self._lost_from:
            self._heard = number
            self.server.heard(self, message, blocks)

    def _return(self, message: AnyMessage, blocks: Blocks) -> None:
        if self.open and not self.life.not_now(self._return, message, blocks):
            self.channel.arrived(message, blocks)

    def cut(self) -> None:
        """The connection breaks now: the task knows at once, the server after what still arrives."""
        if self.open:
            self.open = False
            self._lost_from = self.network.random.randint(self._heard + 1, self._sent + 1)
            del self.network.wires[self]
            self.network.clock.later(self._arrival(0), self.server.hung_up, self)
            self.channel.wire_is_cut()

    def breaks(self) -> None:
        """As `cut`, and it was not the task's own will."""
        if self.open:
            self.network.say(f"{self} breaks")
            self.cut()


class Caller:
    """The serving end; see `dtrain.wire.channel.Caller`."""

    reading: Blocks = ()

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.hello = Hello(run_id="run", cluster_hash="cluster", task=wire.task)

    def has_read(self) -> None:
        """Nothing is read in place."""

    def send(self, message: AnyMessage, blocks: Blocks = (), payload: Payload | None = None) -> None:
        self.wire.answer(self.wire.network.as_it_is(message), [block.copy() for block in blocks])


class VirtualChannel:
    """The client end; see `dtrain.wire.channel.Channel`."""

    bytes_sent = bytes_received = 0

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.peer = wire.server.name
        self._clock = wire.network.clock
        self._inbox: deque[Frame] = deque()
        self._reason: str | None = None
        self._waiting: Any = None
        self._tell_loss: Callable[[], None] = lambda: None

    @property
    def is_gone(self) -> bool:
        return not (self.wire.open or self._inbox)

    def watch(self, lost: Callable[[], None]) -> None:
        self._tell_loss = lost
        if not self.wire.open:
            self.wire_is_cut()

    def send(self, message: AnyMessage, blocks: Blocks = ()) -> None:
        self.wire.send(message, [block.copy() for block in blocks])

    def receive(self, into: Blocks = (), deadline: float | None = None) -> Frame:
        clock = self._clock
        while not self._inbox or self._reason:
            if self._reason or not self.wire.open:
                raise PeerLostError(self._reason or f"lost {self.peer}")
            if deadline is not None and clock.now >= deadline:
                raise WaitTimeoutError(f"{self.peer} did not answer in time")
            self._waiting = clock.current
            clock.park(deadline)
        return self._inbox.popleft()

    def arrived(self, message: AnyMessage, blocks: Blocks) -> None:
        """A message has come."""
        self._inbox.append(Frame(message, blocks))
        self.changed()

    def wire_is_cut(self) -> None:
        """The connection is gone, and the task, unless it stands still, knows."""
        if not self.wire.life.not_now(self.wire_is_cut):
            self._tell_loss()
            self.changed()

    def changed(self) -> None:
        """Wake all waiting threads."""
        if self._waiting is not None:
            self._clock.wake(self._waiting)

    def abort(self, reason: str) -> None:
        self._reason = self._reason or reason
        self.wire.cut()
        self.changed()

    def close(self) -> None:
        self._reason = self._reason or f"the connection to {self.peer} is closed"
        self.wire.cut()


class Network:
    """All open connections, and the seed's own chance; `judge` sees what travels."""

    def __init__(
        self, clock: Clock, random: Random, mean_delay_s: float, judge: Any, story: list[str] | None
    ) -> None:
        self.clock = clock
        self.judge = judge
        self.random = random
        self.wires: dict[Wire, None] = {}
        self._mean_delay_s = mean_delay_s
        self._story = story
        self.tells = story is not None

    def delay_s(self) -> float:
        """Mostly the usual, sometimes ten times as long, never so long that a lease runs out by it alone."""
        random = self.random
        often = 10.0 if random.random() < 0.05 else 1.0
        return min(1.0, -log(1.0 - random.random()) * self._mean_delay_s * often)

    def connect(
        self, task: str, kind: str, server: Any, life: Life, timeout_s: float, there: Callable[[], bool]
    ) -> VirtualChannel:
        """A new connection, waited for; `there` says whether the network lets the task through.

        Raises:
            WaitTimeoutError: the server cannot be reached in time.
        """
        until = self.clock.now + timeout_s
        while server.ended or server.down or not there():
            if self.clock.now >= until:
                raise WaitTimeoutError(f"{server.name} is not there")
            self.clock.park(min(until, self.clock.now + RETRY_S))
        wire = Wire(self, task, kind, server, life)
        self.wires[wire] = None
        return wire.channel

    def hang_up(self, life: Life) -> None:
        """A life has ended: so have its connections."""
        for wire in sorted((wire for wire in self.wires if wire.life is life), key=repr):
            wire.cut()

    def as_it_is(self, message: AnyMessage) -> AnyMessage:
        """A message as it is now: what it holds may change before it arrives."""
        return (
            msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message))
            if isinstance(message, CHANGING)
            else message
        )

    def say(self, text: str) -> None:
        """Pass a line of the story on, where a listener is set."""
        if self._story is not None:
            self._story.append(f"{self.clock.now:9.3f}  {text}")
