"""The part of one replica in the agreement of hosts, for one call of `fit`."""

import socket
from functools import partial

from dtrain.config import MultiWorkerMirroredSection
from dtrain.config.choices import TooFew
from dtrain.roles.collective.between_hosts.across import OF_THREADS, Hosts, Speaker, Spoken
from dtrain.roles.collective.rules import Across, Rules
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
        hosts: the ways to them; None where all tasks share memory, and nothing has to be agreed upon.
        entry: of the replica.
        book: of the leader's orders, which goes to all hosts from now on.
        section: of the spec.
        patience_s: how long a sum may take.
        rules: of the steps.
    """
    if hosts is None:
        return None
    terms, bells, arena = entry.shared.terms, entry.shared.bells, entry.arena
    parts = arena.shape.parts
    hosts.learn(terms.seats)
    if entry.joined is not None:
        host = entry.joined.host
    else:
        host = next(host for host, seats in terms.seats.items() if seats[0].host == hosts.identity)
    first = terms.seats[host][0]
    made: Across
    hosts.speaker = None
    if entry.rank != first.rank:
        made = Spoken(arena, first.rank, first.task)
    else:
        heard, bell = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        bells.offer(OF_THREADS, heard)
        bells.take_up(OF_THREADS)
        open_, take = hosts.named(terms.generation)
        known = Hosts(
            host,
            terms.seats,
            open_,
            take,
            lease_s=LEASE_S,
            patience_s=patience_s,
            alone=rules.alone,
            needed=rules.needed(parts, parts) if rules.too_few != TooFew.SHRINK else 0,
            name_of=hosts.name_of,
            longest_record=entry.ledger.nbytes,
            step=entry.from_round - 1,
            joined=entry.joined,
            learn=hosts.learn,
            welcome=partial(hosts.welcome, arena, terms.generation),
        )
        speaks = partial(Speaker, weighting=section.weighting, deterministic=section.deterministic)
        made = hosts.speaker = speaks(arena, known, bells.ring, bell, calls=entry.calls)
    book.publish = made.record
    made.keep(book)
    return made
