"""A virtual clock, and connections between tasks that delay, lose, repeat late and break, all drawn from one
seed.
"""

import heapq
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from dtrain.messages import AnyMessage

Blocks = Sequence[Any]


class Clock:
    """Events in the order of their virtual time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._scheduled = 0

    def later(self, delay_s: float, act: Callable[..., None], *arguments: Any) -> None:
        self._scheduled += 1
        heapq.heappush(self._events, (self.now + delay_s, self._scheduled, act, arguments))

    def next_event(self) -> Callable[[], None] | None:
        """The next thing to do; the clock stands at its time."""
        if not self._events:
            return None
        self.now, _, act, arguments = heapq.heappop(self._events)
        return lambda: act(*arguments)


class Wire:
    """One connection from a task to a server. Messages keep their order; when it breaks, a part of what is
    under way still arrives.

    So a server may hear a message on an old connection after its repetition on a new one, and hear of the
    break later still.
    """

    def __init__(self, network: "Network", task: str, kind: str, server: Any, client: Any) -> None:
        self.network = network
        self.task = task
        self.kind = kind
        self.server = server
        self.server_life = server.life
        self.client = client
        self.open = True
        self.breakable = True
        self.asked: tuple[Any, Blocks] = None, ()
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
        if self.open:
            self.client.answered(self, message, blocks)

    def cut(self) -> None:
        """The connection breaks now: the task knows at once, the server after what still arrives."""
        if self.open:
            self.open = False
            self._lost_from = self.network.random.randint(self._heard + 1, self._sent + 1)
            self.network.wires.discard(self)
            self.network.clock.later(self._arrival(0), self.server.hung_up, self)

    def breaks(self) -> None:
        """As `cut`, and the task, which did not want it, reacts."""
        if self.open:
            self.network.say(f"{self} breaks")
            self.cut()
            self.client.broken(self)


class Network:
    """All open connections, and the seed's own chance; `judge` sees what travels."""

    def __init__(
        self, clock: Clock, random: Random, mean_delay_s: float, judge: Any, story: list[str] | None
    ) -> None:
        self.clock = clock
        self.judge = judge
        self.random = random
        self.wires: set[Wire] = set()
        self._mean_delay_s = mean_delay_s
        self._story = story

    def delay_s(self) -> float:
        """Mostly the usual, sometimes ten times as long, never so long that a lease runs out by it alone."""
        return min(
            1.0,
            self.random.expovariate(1.0)
            * self._mean_delay_s
            * (10.0 if self.random.random() < 0.05 else 1.0),
        )

    def connect(self, task: str, kind: str, server: Any, client: Any) -> Wire | None:
        """A new connection; None while the server cannot be reached."""
        if server.ended or server.down:
            return None
        wire = Wire(self, task, kind, server, client)
        self.wires.add(wire)
        return wire

    def say(self, text: str) -> None:
        """Tell the story, if somebody listens."""
        if self._story is not None:
            self._story.append(f"{self.clock.now:9.3f}  {text}")
