"""The question of a leader that was started again: whether the run has gone on without it."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dtrain.errors import PeerError
from dtrain.messages import Enter, Entered, Over, Refusal
from dtrain.process.clock import SYSTEM
from dtrain.roles.collective.meeting import descriptors_of
from dtrain.strategies.multi_worker_mirrored.opening import ledger_of
from dtrain.strategies.multi_worker_mirrored.orders import standing_by
from dtrain.wire.channel import Channel
from dtrain.wire.one_host.growing_memory import GrowingMemory

_PROBE_S = 0.5
_ANSWER_S = 5.0


@dataclass(frozen=True)
class Meanwhile:
    """The doings of other replicas as a leader is started again.

    Attributes:
        trains: whether any of them is in a call of `fit`, or leads the next one.
        ended: how many calls of `fit` have ended, where they wait for the leader of these.
        silent: the ranks that did not answer, but may live.
    """

    trains: bool = False
    ended: int = 0
    silent: frozenset[int] = frozenset()


@dataclass(frozen=True)
class _Found:
    """How the newest call of `fit` of one replica stands; `ended` and `leader` where it has ended."""

    trains: bool = False
    ended: int = 0
    leader: int | None = None


def meanwhile(
    connect: Callable[[int, float], Channel],
    others: Iterable[int],
    own: int,
    may_live: Callable[[int], bool] = lambda rank: False,
) -> Meanwhile:
    """Ask other replicas what they do.

    Args:
        connect: opens a connection to the replica of a rank, within some seconds.
        others: their ranks.
        own: the rank of the leader that was started again.
        may_live: asked of a rank that does not answer.
    """
    found: dict[int, _Found] = {}
    silent = set()
    for other in others:
        one = _under_way(connect, other)
        if one is not None and one.trains:
            return Meanwhile(trains=True)
        if one is not None:
            found[other] = one
        elif may_live(other):
            silent.add(other)
    last = max(found.values(), key=lambda each: each.ended, default=_Found())
    # The one that has ended the last call leads the next one. A process that was started again in its place
    # knows nothing of that call.
    knows_it = last.leader in found and found[last.leader].ended >= last.ended
    trains = last.leader != own and (knows_it or last.leader in silent)
    return Meanwhile(trains, last.ended, frozenset(silent))


def _under_way(connect: Callable[[int, float], Channel], other: int) -> _Found | None:
    """Return how the newest call of `fit` of a replica stands; None: it does not answer."""
    generation = 1
    while True:
        try:
            channel = connect(other, _PROBE_S)
            try:
                channel.send(Enter(generation=generation, plan_hash=""))
                frame = channel.receive(deadline=SYSTEM.now() + _ANSWER_S)
            finally:
                channel.close()
        except PeerError:
            return None
        terms = frame.message
        if isinstance(terms, Entered):
            leader, concluded = terms.leader, terms.concluded
            if frame.passed:  # it is on this host
                arena_fd, ledger_fd, *others_fds = descriptors_of(frame)
                for descriptor in (arena_fd, *others_fds):
                    os.close(descriptor)
                ledger = ledger_of(GrowingMemory.received(ledger_fd))
                ledger.read()
                leader, concluded = standing_by(ledger, terms.leader)()
            return _Found(ended=terms.state.generation, leader=leader) if concluded else _Found(trains=True)
        if not isinstance(terms, Over) or terms.generation <= generation:
            return _Found(trains=isinstance(terms, Refusal))  # it gathers others for the next one
        generation = terms.generation
