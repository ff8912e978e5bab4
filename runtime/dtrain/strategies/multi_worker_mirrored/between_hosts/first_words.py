"""The beginning of a host in a call of `fit`: what it has promised to others before it has said anything."""

from dtrain.collectives.between_hosts.promise import Promise
from dtrain.messages import Entered
from dtrain.messages.between_hosts import Welcome
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.between_hosts.voice import SPEAKS
from dtrain.wire.one_host.locks import Locks


def first_words(arena: Arena, terms: Entered, rank: int, joined: Welcome | None) -> Locks:
    """Write what a host has promised that begins, before its other replicas are let in; return the locks of
    this one, which speaks for the host.

    Args:
        arena: that this process has made.
        terms: with the replicas of all hosts.
        rank: of this replica.
        joined: by which its host takes part later than others; None: it begins with them.
    """
    locks = Locks(arena.fd)
    taken = locks.take(SPEAKS)
    assert taken, "nobody else has this memory yet"
    host = next(host for host, seats in terms.seats.items() if rank in {seat.rank for seat in seats})
    step, term, membership = (0, 0, 0) if joined is None else (joined.step, joined.term, joined.membership)
    arena.promise_first(Promise.first(host, terms.seats, step, term, membership))
    return locks
