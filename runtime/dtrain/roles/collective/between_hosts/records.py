"""The leader's ledger on its way to other hosts: what the leader writes goes to each of them as records, and
is written there when it may hold.

A record is kept until every host has it in its ledger. A new leader, and a host that takes part newly, begin
with a whole record, which has all entries that count.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from dtrain.collectives.between_hosts.follower import UNRECORDED
from dtrain.messages.replicas import LedgerRecord
from dtrain.roles.collective.rules import Book
from dtrain.steps.follower import first_attempt

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, bytes]).decode


class StoredRecord(NamedTuple):
    """A record, and its bytes."""

    head: LedgerRecord
    body: bytes


class Records:
    """The records of one host while it leads. Threads share it."""

    def __init__(self, hosts: Sequence[int]) -> None:
        self._lock = threading.Lock()
        self._kept: list[StoredRecord] = []
        self._acknowledged = dict.fromkeys(hosts, -1)

    def add(self, record: StoredRecord) -> None:
        """Keep a record, after all others; a whole one takes the place of those before."""
        with self._lock:
            self._kept = [*([] if record.head.whole else self._kept), record]
            self._forget()

    def acknowledge(self, host: int, position: int) -> None:
        with self._lock:
            if host in self._acknowledged:
                self._acknowledged[host] = max(position, self._acknowledged[host])
            self._forget()

    def keep_for(self, hosts: Sequence[int]) -> None:
        """Set the other hosts; a new one needs a whole record."""
        with self._lock:
            self._acknowledged = {host: self._acknowledged.get(host, -1) for host in hosts}
            self._forget()

    def _forget(self) -> None:
        least = min(self._acknowledged.values(), default=UNRECORDED)
        self._kept = [each for each in self._kept if each.head.position > least]

    def acknowledged(self, host: int) -> int:
        with self._lock:
            return self._acknowledged.get(host, -1)

    def after(self, position: int) -> list[StoredRecord]:
        with self._lock:
            return [each for each in self._kept if each.head.position > position]


class NoBook:
    """A ledger without entries."""

    entries: Mapping[str, bytes] = MappingProxyType({})
    concluded = False

    def receive(self, entries: Mapping[str, bytes], *, whole: bool) -> None: ...


class Books:
    """The ledger at one host, as the replica that speaks for it sends and receives records.

    Attributes:
        term: in which this host led last; 0: it has not led.
        position: of the newest record that it has sent.
    """

    def __init__(
        self, book: Book, send: Callable[[LedgerRecord, bytes], None], written: Callable[[int], None]
    ) -> None:
        """Begin; `send` sends to all other hosts, `written` gets the position of each record received."""
        self.book = book
        self.term = 0
        self.position = -1
        self._send = send
        self._written = written
        self._kept: list[StoredRecord] = []

    def begin(self, term: int, number: int) -> None:
        """Lead from round `number` on: all that counts takes the place of what other hosts had."""
        self.term, self.position = term, first_attempt(term) - 1
        self.write_all(number)

    def write_all(self, number: int) -> None:
        self._write(self.book.entries, number, whole=True)

    def write(self, entries: Mapping[str, bytes], number: int) -> None:
        self._write(entries, number, whole=False)

    def _write(self, entries: Mapping[str, bytes], number: int, *, whole: bool) -> None:
        body = _encode(dict(entries))
        self.position += 1
        self._send(LedgerRecord(position=self.position, step=number - 1, whole=whole, nbytes=len(body)), body)

    def add(self, record: StoredRecord) -> None:
        """Keep a record that has come until it may hold; what came before a whole one counts no more."""
        self._kept = [*([] if record.head.whole else self._kept), record]

    def let_in(self, number: int) -> bool:
        """Write the records that may hold in this round; return whether there were any."""
        there = [each for each in self._kept if each.head.step < number]
        self._kept = self._kept[len(there) :]
        for head, body in there:
            self.book.receive(_decode(body), whole=head.whole)
            self._written(head.position)
        return bool(there)
