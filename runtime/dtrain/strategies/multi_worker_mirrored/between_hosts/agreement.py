"""The part of one replica in the agreement of hosts, for one call of `fit`."""

import socket
from functools import partial

from dtrain.config import MultiWorkerMirroredSection
from dtrain.config.choices import TooFew
from dtrain.roles.collective.between_hosts.across import OF_THREADS, Hosts, Speaker
from dtrain.roles.collective.between_hosts.voice import Voice
from dtrain.roles.collective.rules import Across, Book, Rules
from dtrain.strategies.multi_worker_mirrored.between_hosts.hosts import HostWays
from dtrain.strategies.multi_worker_mirrored.opening import Entry
from dtrain.strategies.multi_worker_mirrored.orders import OrderBook

LEASE_S = 10.0
"""The time without a message after which a host is silent."""


def across(
    hosts: HostWays | None,
    entry: Entry,
    book: OrderBook,
    section: MultiWorkerMirroredSection,
    patience_s: float,
    rules: Rules,
) -> Across | None:
    """Return the part of a replica that has entered, in the agreement of its host with others.

    Args:
        hosts: the ways to them; None where all tasks share memory.
        entry: of the replica.
        book: of the leader's orders, which goes to all hosts from now on.
        section: of the spec.
        patience_s: how long a sum may take.
        rules: of the steps.
    """
    if hosts is None:
        return None
    terms, bells, arena = entry.shared.terms, entry.shared.bells, entry.arena
    needed = rules.needed(arena.shape.parts, arena.shape.parts)
    hosts.learn(terms.seats)
    heard, bell = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    bells.offer(OF_THREADS, heard)
    bells.take_up(OF_THREADS)
    known = Hosts(
        *hosts.named(terms.state.generation),
        lease_s=LEASE_S,
        patience_s=patience_s,
        alone=rules.alone,
        needed=needed if rules.too_few != TooFew.SHRINK else 0,
        name_of=hosts.name_of,
        longest_record=entry.ledger.nbytes,
        learn=hosts.learn,
        welcome=partial(hosts.welcome, arena, terms.state.generation),
    )

    def speak(number: int, written: Book) -> Speaker:
        hosts.learn(arena.promise.read().seats)
        return Speaker(
            arena,
            known,
            entry.rank,
            bells.ring,
            bell,
            number=number,
            book=written,
            weighting=section.weighting,
            deterministic=section.deterministic,
            calls=entry.calls,
        )

    assert entry.locks is not None, "several hosts have locks"
    about = arena, entry.locks, entry.rank, speak
    made = hosts.voice = Voice(*about, number=entry.from_round, speaks=entry.speaks)
    book.publish = made.record
    made.keep(book)
    return made
