"""The leader's orders and records in the ledger, as every replica reads them; see `driver.Orders`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from dtrain.collectives.board import Ledger
from dtrain.messages import Row, Sums
from dtrain.parameters.store import Change
from dtrain.state.fit_state import Open
from dtrain.strategies.in_process.fit_holder import FitHolder
from dtrain.strategies.interface import Weights
from dtrain.types import Array

ORDER, VALUES, LEADER, CONCLUDED = "order", "values", "leader", "concluded"
_ROW, _KEPT = "row ", "kept "
_encode = msgspec.msgpack.Encoder().encode


class LeaderOrder(msgspec.Struct, frozen=True):
    """The order in force; each repeats the ones before it.

    Attributes:
        number: larger than those before.
        optimizer: as `optimizers.serialize` makes it.
        until: the last step that may be made before the next order; None: there is no such limit.
        end: the last step of all, where the leader has set it.
        version: at which it was given.
        in_round: whether it holds in the round under way, for which all replicas arrive first. A replica
            that let it hold before could take itself to be finished, and never arrive.
    """

    number: int
    optimizer: dict[str, Any]
    until: int | None
    end: int | None = None
    version: int = 0
    in_round: bool = False


class OrderBook:
    """One replica's view of the ledger, applied to its store and tally.

    Attributes:
        order: in force.
        leader: the rank that leads.
        concluded: whether the leader has ended this call of `fit`.
        publish: is called with all that this replica, as the leader, writes into the ledger.
    """

    def __init__(self, ledger: Ledger, state: FitHolder, order: LeaderOrder, leader: int) -> None:
        """Apply what has been written so far, after `order`, to `state`; at the beginning `leader` leads."""
        self.order = order
        self.leader = leader
        self.concluded = False
        self.publish: Callable[[Mapping[str, bytes]], None] = lambda entries: None
        self._ledger = ledger
        self._state = state
        self._ahead: LeaderOrder | None = None
        ledger.read()
        self._apply(ledger.entries, state.global_step, between=True)

    @property
    def kept(self) -> Mapping[str, bytes]:
        """The entries that leaders have kept for the next one."""
        found = self._ledger.entries.items()
        return {name.removeprefix(_KEPT): body for name, body in found if name.startswith(_KEPT)}

    def heed(self, version: int) -> None:
        news = self._ledger.read()
        if news:
            self._apply(news, version)
        self._take_ahead(version)

    def poll(self, version: int) -> None:
        """Apply what is new, between two rounds; an order of a round stays ahead until `heed`."""
        news = self._ledger.read()
        if news:
            self._apply(news, version, between=True)

    def carry_out(self) -> None:
        self._carry_out(self._ledger.entries.get(VALUES, b""))

    def _carry_out(self, values: bytes) -> None:
        if values:
            known = self._state.weights
            self._state.assign(
                {
                    name: np.frombuffer(body, known[name].dtype).reshape(known[name].shape)
                    for name, body in msgspec.msgpack.decode(values, type=dict[str, bytes]).items()
                }
            )
        if self.order.end is not None and self.order.end == self._state.global_step:
            self._state.store.end_at(self.order.end, self.order.end)

    def sums_after(self, version: int, given: Sequence[Sums]) -> Open:
        tally = self._state.tally.holding(self._state.tally.open())
        for each in given:
            tally.add(version, each)
        return tally.open()

    def is_held(self, version: int) -> bool:
        """Return whether the next step waits for the leader."""
        until = (self._ahead or self.order).until
        return until is not None and version >= until

    # The leader

    def give(self, order: LeaderOrder, values: Weights | None, version: int) -> None:
        """Write an order, and assign values with it; None: they stay. It holds here at once."""
        assigned = b"" if values is None else _encode({name: _bytes(each) for name, each in values.items()})
        self._write({ORDER: _encode(order), VALUES: assigned}, version)

    def finish_earlier(self) -> None:
        """Carry out what the leader before has ordered and may not have finished to write."""
        self._take_ahead(self._state.global_step)
        if self.order.version == self._state.global_step:
            self.carry_out()
        self.carried_out()

    def carried_out(self) -> None:
        """Drop the values of the newest order: they lie where they belong."""
        if self._ledger.entries.get(VALUES):
            self._put({VALUES: b""})

    def record(self, rows: Mapping[int, Row], version: int) -> None:
        """Write the rows of epochs that have ended."""
        self._write({f"{_ROW}{epoch}": _encode(row) for epoch, row in rows.items()}, version)

    def store(self, entries: Mapping[str, bytes]) -> None:
        """Keep entries for the next leader, all or none."""
        self._put({f"{_KEPT}{name}": body for name, body in entries.items()})

    def lead(self, rank: int, version: int) -> None:
        self._write({LEADER: _encode(rank)}, version)

    def conclude(self, version: int) -> None:
        """Write that this call of `fit` has ended."""
        self._write({CONCLUDED: b"1"}, version)

    def _write(self, entries: Mapping[str, bytes], version: int) -> None:
        self._put(entries)
        self._apply(entries, version)

    def _put(self, entries: Mapping[str, bytes]) -> None:
        self._ledger.write(entries)
        self.publish(entries)

    # The replica that speaks for a host without the leader

    @property
    def entries(self) -> Mapping[str, bytes]:
        self.poll(self._state.global_step)  # another replica may have written them
        return self._ledger.entries

    def receive(self, entries: Mapping[str, bytes], *, whole: bool) -> None:
        """Apply entries of another host.

        Values between two steps are written before others of this host can read that the next step begins.
        """
        version = self._state.global_step
        self.poll(version)
        gone = dict.fromkeys(self._ledger.entries, b"") if whole else {}
        news = {**gone, **entries}
        if news.get(ORDER):
            order = msgspec.msgpack.decode(news[ORDER], type=LeaderOrder)
            if not order.in_round and order.number > self.order.number:
                self._let_hold(order, version)
                self._carry_out(news.get(VALUES, b""))
        self._ledger.write(news)
        self._apply(news, version, between=True)

    # Every replica

    def _apply(self, news: Mapping[str, bytes], version: int, *, between: bool = False) -> None:
        tally = self._state.tally
        rows = {
            int(name.removeprefix(_ROW)): msgspec.msgpack.decode(body, type=Row)
            for name, body in news.items()
            if name.startswith(_ROW) and body
        }
        if rows:
            tally.record(max([*tally.rows, *rows]) + 1, dict(sorted(rows.items())))
        if LEADER in news:
            self.leader = msgspec.msgpack.decode(news[LEADER], type=int)
        if news.get(ORDER):
            order = msgspec.msgpack.decode(news[ORDER], type=LeaderOrder)
            self._ahead = order if between and order.in_round and order.version == version else None
            if self._ahead is None:
                self._let_hold(order, version)
        self.concluded = self.concluded or bool(news.get(CONCLUDED))

    def _take_ahead(self, version: int) -> None:
        order, self._ahead = self._ahead, None
        if order is not None:
            self._let_hold(order, version)

    def _let_hold(self, order: LeaderOrder, version: int) -> None:
        if order.optimizer != self.order.optimizer:
            self._state.store.change(Change(version, order.optimizer), version)
        if order.end is not None:
            self._state.store.max_steps = order.end
        self.order = order


def leadership_by(ledger: Ledger, first: int) -> Callable[[], tuple[int, bool]]:
    """Return what reads from the ledger, as last read, which rank leads and whether `fit` has ended."""

    def leadership() -> tuple[int, bool]:
        said = ledger.entries.get(LEADER)
        leader = first if said is None else msgspec.msgpack.decode(said, type=int)
        return leader, CONCLUDED in ledger.entries

    return leadership


def _bytes(value: Array) -> bytes:
    return np.ascontiguousarray(value).tobytes()
