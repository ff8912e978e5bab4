"""Gives the leader's orders, on connections of its own, in the training thread; `order` decides how."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from dtrain.cluster import Role, TaskId
from dtrain.errors import PeerLostError, PeerRefusedError
from dtrain.messages import AnyMessage, Control, Holding, NotReady, Record, Recorded, Refusal, Row
from dtrain.parameters.store import Values
from dtrain.process.clock import SYSTEM, Clock
from dtrain.roles.chief.order import Order, OrdersInForce
from dtrain.wire.connecting import ConnectTask
from dtrain.wire.peer import Peer

PAUSE_S = 0.05


class OrderDriver:
    """The leader's way to give orders; connected at the first one.

    Attributes:
        term: in which the last order was given, or the one before it if that waits.
        waits: the servers had begun another term: the last order is given with `repeat_in`.
        torn: the values of an order of an earlier process of the leader have reached some servers only, as
            `poll` has seen.
    """

    def __init__(
        self,
        servers: int,
        generation: int,
        incarnation: int,
        connect: ConnectTask,
        patience_s: float,
        clock: Clock = SYSTEM,
        host: int = 0,
    ) -> None:
        self._host = host
        self._clock = clock
        self._generation = generation
        self._number = (incarnation, 0)
        self._patience_s = patience_s
        self._aborted: str | None = None
        self._peers = [
            Peer(str(task), partial(connect, task), patience_s=patience_s, clock=clock)
            for task in (TaskId(Role.PS, server) for server in range(servers))
        ]
        self._in_force = OrdersInForce()
        self._ends_at: int | None = None
        self._rows_term = self._told_term = 0
        self.torn = self.waits = False
        self.term = 0
        self.rows: Mapping[int, Row] = {}

    def poll(self) -> Holding:
        order = self._order(None)
        self._give(order, ())
        self.torn = order.torn
        return order.seen

    def give(
        self,
        optimizer: dict[str, Any],
        *,
        term: int,
        reached: int,
        stop: bool,
        until: int | None,
        values: Sequence[Values],
        saved: int = 0,
    ) -> tuple[int, bool]:
        """Order something; returns from which version on it holds, and whether that is the last one.

        If the servers have begun another term, no server gets the order before `repeat_in` is called with
        that term.

        Args:
            reached: the version that it has seen.
            until: make none beyond this one before the next order.
            values: each server's new ones; empty: they stay.

        Raises:
            PeerLostError: a server is away for too long.
            PeerRefusedError: it will not obey.
        """
        control = Control(
            generation=self._generation,
            number=(0, 0),
            term=0,
            version=0,
            optimizer=optimizer,
            stop=stop,
            until=until,
        )
        order = self._order(control, term=term, since=self._ends_at or 0, assigns=bool(values))
        self._give(order, values)
        since = reached if order.void else max(order.seen.version, order.since)
        self.waits = order.void
        self._ends_at = since if order.stops else None
        self._in_force.given(control, values, since, frozenset(self.rows), saved)
        return since, order.stops

    def repeat_in(self, term: int) -> bool:
        """Repeat the last order in another term; return whether that was needed."""
        if self._rows_term not in (0, term):
            self.ask_for_rows()
        if not self._in_force:
            self.term = term  # nothing was ordered that the servers could have lost
        if term == self.term:
            return False
        servers = len(self._peers)
        for order, values in self._in_force.again(servers, self._generation, term, self.rows):
            order.number = self._next_number()
            self._carry_out(order, values)
            if order.void:
                return True
        self.term = term
        self.waits = False
        return True

    def record(self, term: int, epoch: int, rows: Mapping[int, Row]) -> bool:
        """Have ps:0 keep the numbers of ended epochs; those from `epoch` on have not ended. Return False if
        the servers have begun another term. Raises as `give`.
        """
        number = self._next_number()
        record = Record(generation=self._generation, term=term, epoch=epoch, rows=dict(rows), number=number)
        kept = self._ask_first(record).term == term
        if kept:
            self.rows = {**{number: row for number, row in self.rows.items() if number < epoch}, **rows}
        return kept

    def ask_for_rows(self) -> None:
        answer = self._ask_first(Record(generation=self._generation))
        self.rows = answer.rows
        self._rows_term = answer.term

    def _ask_first(self, message: Record) -> Recorded:
        deadline = self._clock.now() + self._patience_s
        host = self._peers[self._host]
        while True:
            host.send(message)
            answer = host.receive().message
            match answer:
                case Recorded():
                    return answer
                case NotReady(reason=reason):
                    self._pause(deadline, reason)
                case Refusal(reason=reason):
                    raise PeerRefusedError(reason)
                case _:
                    raise PeerRefusedError(
                        f"{host.name} answered {type(message).__name__} with {type(answer).__name__}"
                    )

    def _order(
        self, control: Control | None, *, term: int = 0, since: int = 0, assigns: bool = False
    ) -> Order:
        number = self._next_number()
        servers = len(self._peers)
        return Order(servers, self._generation, number, control, term, since, assigns, host=self._host)

    def _next_number(self) -> tuple[int, int]:
        self._number = (self._number[0], self._number[1] + 1)
        return self._number

    def _give(self, order: Order, values: Sequence[Values]) -> None:
        self._carry_out(order, values)
        if not order.void:
            self.term = order.seen.term

    def _carry_out(self, order: Order, values: Sequence[Values]) -> None:
        deadline = self._clock.now() + self._patience_s
        while not order.done:
            for server, message in order.start():
                self._send(server, message, order, values)
            while order.unanswered:
                server = next(iter(order.unanswered))
                answer = self._peers[server].receive().message
                for next_server, message in order.receive(server, answer):
                    self._send(next_server, message, order, values)
            if not order.done:
                self._pause(deadline, "the servers are not all in one term")

    def heard_term(self, term: int) -> None:
        """From another thread: this is the term at ps:0. Connections from before it are made anew.

        A machine that goes without a word breaks no connection for 15 s, and an order would wait so long.
        """
        if self._told_term not in (0, term):
            for peer in self._peers:
                peer.break_with(f"ps:0 has begun a new term, and {peer.name} may be another process")
        self._told_term = term

    def abort(self, reason: str) -> None:
        self._aborted = reason
        for peer in self._peers:
            peer.abort(reason)

    def close(self) -> None:
        for peer in self._peers:
            peer.close()

    def _send(self, server: int, message: AnyMessage, order: Order, values: Sequence[Values]) -> None:
        brings = isinstance(message, Control) and order.brings_values
        self._peers[server].send(message, values[server] if brings else ())

    def _pause(self, deadline: float, why: str) -> None:
        if self._aborted or self._clock.now() >= deadline:
            raise PeerLostError(self._aborted or f"an order could not be given: {why}")
        self._clock.sleep(PAUSE_S)
