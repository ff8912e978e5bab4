"""The leader's orders and records in the ledger, and what makes a round where values are there once."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from dtrain.collectives.ledger import Ledger
from dtrain.messages import Row
from dtrain.messages.rounds import RoundMade
from dtrain.parameters.store import Change
from dtrain.strategies.in_process.fit_holder import FitHolder
from dtrain.strategies.interface import Weights
from dtrain.types import Array

ORDER, VALUES, LEADER, CONCLUDED = "order", "values", "leader", "concluded"
CARRYING, POSITION = "carrying", "position"
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
        side: of the values, before the newest order that changes them; its round moves all to the next side.
    """

    number: int
    optimizer: dict[str, Any]
    until: int | None
    end: int | None = None
    version: int = 0
    side: int = -1


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
        self._writes_records = False
        self._first = order, state.store.max_steps
        ledger.read()
        self._apply(ledger.entries, state.global_step)

    @property
    def kept(self) -> Mapping[str, bytes]:
        """The entries that leaders have kept for the next one."""
        found = self._ledger.entries.items()
        return {name.removeprefix(_KEPT): body for name, body in found if name.startswith(_KEPT)}

    def heed(self, version: int) -> int | None:
        """Apply what is new; return the last step that may be made before the next order."""
        news = self._ledger.read()
        if news:
            self._apply(news, version)
        return self.order.until

    def stand_at(self, version: int) -> None:
        """Let this replica go on from a version."""
        self._state.global_step = version

    def is_held(self, version: int) -> bool:
        """Return whether the next step waits for the leader."""
        until = self.order.until
        return until is not None and version >= until

    # The leader

    def give(self, order: LeaderOrder, values: Weights | None, version: int) -> None:
        """Write an order, and assign values with it; None: they stay. It holds here at once."""
        assigned = b"" if values is None else _encode({name: _bytes(each) for name, each in values.items()})
        self._write({ORDER: _encode(order), VALUES: assigned}, version)

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
        if self._writes_records:
            entries = {**entries, POSITION: b"%d" % (self.position + 1)}
        self._ledger.write(entries)
        self.publish(entries)

    @property
    def entries(self) -> Mapping[str, bytes]:
        self.heed(self._state.global_step)  # another replica may have written them
        return self._ledger.entries

    def owes_values(self) -> bool:
        """Return whether an order was given at this version whose values may not have been assigned."""
        order = self.order
        at_this = order.version == self._state.global_step
        return at_this and (bool(self._ledger.entries.get(VALUES)) or order.end == order.version)

    def awaits_values(self, side: int) -> bool:
        """Return whether a replica at this side of the values still lacks values that were ordered."""
        return side <= self.order.side

    def values(self, version: int) -> tuple[Mapping[str, bytes], bool]:
        """Return the values to be assigned, by name, and whether training ends at this version."""
        body = self._ledger.entries.get(VALUES)
        values = msgspec.msgpack.decode(body, type=dict[str, bytes]) if body else {}
        return values, self.order.end == version

    @property
    def position(self) -> int:
        """The position of the newest record for other hosts; -1: there is none."""
        return int(self._ledger.entries.get(POSITION, b"-1"))

    def begin_term(self, position: int) -> None:
        """Write records from this position on, as the leader of several hosts."""
        self._writes_records = True
        self._ledger.write({POSITION: b"%d" % position})

    def take_over(self, entries: Mapping[str, bytes], whole: bool) -> None:
        """Write what the leader, at another host, has written; with `whole` nothing else counts any more."""
        version = self._state.global_step
        self.heed(version)
        gone = dict.fromkeys(self._ledger.entries, b"") if whole else {}
        news = {**gone, **entries}
        self._ledger.write(news)
        self._apply(news, version)

    def carry(self, round_: int, made: RoundMade) -> None:
        body = _encode((round_, made))
        if self._ledger.entries.get(CARRYING) != body:
            self._ledger.write({CARRYING: body})

    def carrying(self, round_: int) -> RoundMade | None:
        """Return what makes a round, if that has begun to change values that are there once."""
        body = self.entries.get(CARRYING)
        of_round, made = msgspec.msgpack.decode(body, type=tuple[int, RoundMade]) if body else (-1, None)
        return made if of_round == round_ else None

    # Every replica

    def _apply(self, news: Mapping[str, bytes], version: int) -> None:
        tally = self._state.tally
        rows = {
            int(name.removeprefix(_ROW)): msgspec.msgpack.decode(body, type=Row)
            for name, body in news.items()
            if name.startswith(_ROW) and body
        }
        if rows:
            tally.record(max([*tally.rows, *rows]) + 1, dict(sorted(rows.items())))
        if news.get(LEADER):
            self.leader = msgspec.msgpack.decode(news[LEADER], type=int)
        if (order := news.get(ORDER)) is not None:  # an empty one: the next leader does not know the last one
            known = msgspec.msgpack.decode(order, type=LeaderOrder) if order else self._first[0]
            self._let_hold(known, version)
        self.concluded = self.concluded or bool(news.get(CONCLUDED))

    def _let_hold(self, order: LeaderOrder, version: int) -> None:
        if order.optimizer != self.order.optimizer:
            self._state.store.change(Change(version, order.optimizer), version)
        self._state.store.max_steps = self._first[1] if order.end is None else order.end
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
