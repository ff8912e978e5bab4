"""The leader's machine for its orders: every server changes its ways at the same version. Pure.

    1. Every server is asked to hold. ps:0 names the version: the next one that no replica has begun
       to make. It makes no version beyond it until the third step: in sync no commit, in async no ticket but
       those under way.
    2. All others are told what holds from that version on; a server that has not reached it keeps it for
      then.
    3. Last ps:0 is told, and training goes on.

An order with values that its leader did not live to give to ps:0 is `torn`: some servers have the values.
Then the servers go back to the newest checkpoint, and every checkpoint has the values on all servers or on
none.

In a new term the order in force is given again. It holds from the version that it held for before, or from
the beginning of the term if that is later. Its values are given again only where the term begins at that
version: further back training comes there again, and so do the callbacks that assigned them. So are the
values of an earlier order, before it: the checkpoint may have been written just before them. If
the ends of epochs that had come before the order are lost, they come again too: then nothing is made before
the leader's next order.

So no server is ever past the version when it hears of it. An order says everything that is in force, not what
is new, and has a number: it may be repeated, and one that arrives late is not obeyed. If the leader dies on
the way, ps:0 holds until its successor gives an order of its own; a stop of which some server has heard is
then part of it. If the servers begin a new term on the way, the order begins again.

In async a server other than ps:0 may be past the version after all, by pushes whose sender died before it
reached ps:0; it changes at once.

Rule *Configuration changes* (docs/design/protocol.md#configuration-changes).
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import msgspec
import numpy as np

from dtrain.errors import PeerRefusedError
from dtrain.messages import AnyMessage, Control, Controlled, Hold, Holding, NotReady, Refusal
from dtrain.parameters.store import Values, laid_over
from dtrain.roles.worker.machine import Outgoing


class Order(msgspec.Struct):
    """One order to all servers.

    Attributes:
        number: (incarnation of the leader, a count): larger than that of every order before.
        control: what is ordered, but for number, term and version; None: only to hold, and see.
        term: the only one that it is for; 0: any.
        since: the version that it holds for at the earliest.
        assigns: whether values belong to it.
        again: whether it was given in an earlier term.
        comes_back: the ends of epochs that came before it are lost.
        for_its_values: whether it is given only where it brings them: a later order is given after it.
        holding: what ps:0 said; None before.
        brings_values: whether the control that is given now comes with the values.
    """

    servers: int
    generation: int
    number: tuple[int, int]
    control: Control | None = None
    term: int = 0
    since: int = 0
    assigns: bool = False
    again: bool = False
    comes_back: bool = False
    for_its_values: bool = False
    holding: Holding | None = None
    unanswered: dict[int, AnyMessage] = msgspec.field(default_factory=dict)
    done: bool = False
    brings_values: bool = False
    host: int = 0
    _answers: list[Holding] = msgspec.field(default_factory=list)
    _void: bool = False

    @property
    def seen(self) -> Holding:
        if self.holding is None:
            raise AssertionError("an order that is done was answered by ps:0")
        return self.holding

    @property
    def stops(self) -> bool:
        """Whether it ends training: by itself, or because an earlier one did so on some server."""
        return (self.control is not None and self.control.stop) or any(
            answer.stopped for answer in self._answers
        )

    @property
    def void(self) -> bool:
        """Return whether the servers are in another term than the order's: then no server got it."""
        return self.term not in (0, self.seen.term)

    @property
    def torn(self) -> bool:
        """Whether the values of an earlier order have reached some servers only."""
        return len({answer.assigned for answer in self._answers}) > 1

    def start(self) -> Iterator[Outgoing]:
        """Begin, or begin again, as the servers were not all in one term."""
        self._answers = []
        self._void = False
        for server in range(self.servers):
            yield self._ask(server, Hold(generation=self.generation, number=self.number))

    def receive(self, server: int, message: AnyMessage) -> Iterator[Outgoing]:
        """Process an answer. With nothing unanswered and not `done`, wait a moment and start again. Raises a
        PeerRefusedError if a server will not obey this task.
        """
        asked = self.unanswered.pop(server)
        match message:
            case Holding():
                self._answers.append(message)
                if server == self.host:
                    self.holding = message
            case Controlled():
                self.done = server == self.host
            case NotReady():
                self._void = True
            case Refusal(reason=reason):
                raise PeerRefusedError(reason)
            case _:
                raise PeerRefusedError(
                    f"ps:{server} answered {type(asked).__name__} with {type(message).__name__}"
                )
        if not (self.unanswered or self._void or self.done):
            yield from self._next(told=isinstance(asked, Control))

    def _next(self, told: bool) -> Iterator[Outgoing]:
        if len({answer.term for answer in self._answers}) != 1 or self.holding is None:
            return
        if self.control is None or self.void:
            self.done = True
            return
        control = self._told_now(self.control, self.holding)
        if self.for_its_values and not self.brings_values:
            self.done = True
            return
        others = [server for server in range(self.servers) if server != self.host]
        for server in others if others and not told else [self.host]:
            yield self._ask(server, control)

    def _told_now(self, control: Control, holding: Holding) -> Control:
        """Return the order as the servers get it, once ps:0 has said at which version it holds."""
        version = max(holding.version, self.since)
        control = msgspec.structs.replace(
            control, number=self.number, term=holding.term, version=version, stop=self.stops
        )
        self.brings_values = self.assigns and not (
            self.again and (holding.version != self.since or self.comes_back)
        )
        if self.again and (self.comes_back or self.for_its_values):
            control = msgspec.structs.replace(control, until=holding.version)
        return control

    def _ask(self, server: int, message: AnyMessage) -> Outgoing:
        self.unanswered[server] = message
        return server, message


class GivenOrder(msgspec.Struct, frozen=True):
    """An order that was given.

    Attributes:
        values: by server, the values that belong to it; empty if it has none.
        epochs: those that had ended before it.
    """

    control: Control
    values: Sequence[Values]
    since: int
    epochs: Set[int]


class OrdersInForce(msgspec.Struct):
    """The last order, and those before it whose values a checkpoint may lack.

    A checkpoint of the version at which values were assigned may have been written before them. One of a
    later version has them.
    """

    _orders: list[GivenOrder] = msgspec.field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self._orders)

    @property
    def last(self) -> GivenOrder:
        return self._orders[-1]

    def given(
        self, control: Control, values: Sequence[Values], since: int, epochs: Set[int], saved: int
    ) -> None:
        """Note an order; its values are copied. The newest checkpoint is of version `saved`."""
        kept: list[Any] = [[np.array(block) for block in blocks] for blocks in values]
        if self._orders and self.last.since == since and self.last.values:
            earlier = self.last.values
            kept = [laid_over(*both) for both in zip(kept or [()] * len(earlier), earlier, strict=True)]
        before = [each for each in self._orders if each.values and saved <= each.since < since]
        self._orders = [*before, GivenOrder(control, kept, since, epochs)]

    def again(
        self, servers: int, generation: int, term: int, rows: Mapping[int, object]
    ) -> Iterator[tuple[Order, Sequence[Values]]]:
        """Yield every order for a new term, in which the epochs of `rows` have ended, without a number."""
        for each in self._orders:
            order = Order(servers, generation, (0, 0), each.control, term, each.since, bool(each.values))
            order.again = True
            order.comes_back = not each.epochs <= rows.keys()
            order.for_its_values = each is not self.last
            yield order, each.values
