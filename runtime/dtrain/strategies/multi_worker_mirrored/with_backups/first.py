"""The beginning of a call of `fit` with backups: its first standing, and the bells of one that joins."""

import socket
import threading
from collections.abc import Callable, Sequence

import msgspec

from dtrain.collectives.backups import Standing
from dtrain.messages import Entered
from dtrain.process.clock import SYSTEM
from dtrain.wire.one_host.bells import Bells

SPARE_PLACES = 2
"""The number of replicas, beyond those that began, that may compute at the same time."""
HAND_OUT_S = 1.0
"""The time for which a joining replica waits for members to take its bells; a stopped one does so later."""
_TRIES = 100
_AGAIN_S = 1.0


def has_backups(terms: Entered, *, several_hosts: bool) -> bool:
    """Return whether steps are made of any parts, of whichever replicas come first."""
    return terms.state.dealt.even and not several_hosts


def places_of(parts: int, replicas: int) -> int:
    """Return for how many gradients there is room, where so many replicas begin and `parts` make a step."""
    return max(parts, replicas) + SPARE_PLACES


def first_standing(terms: Entered, members: Sequence[int], places: int) -> Standing:
    """Return how a call of `fit` stands as it begins with these members."""
    _, following, due, *_ = terms.state.dealt
    standing = Standing(
        [None] * places, following, list(due), version=terms.state.version, leader=terms.leader
    )
    standing.sums = msgspec.msgpack.encode(terms.state.tally)
    for rank in members:
        standing.enter(rank)
    return standing


def hand_out(bells: Bells, handed: Callable[[int], socket.socket | None], members: Sequence[int]) -> None:
    """Hand each member one end of a bell, and keep the other; who takes it late is heard from then on.

    Args:
        bells: of the replica that joins.
        handed: hands a rank its end and returns the other one; None: it has not taken it.
        members: their ranks.
    """

    def hand(rank: int) -> None:
        for _ in range(_TRIES):
            if (end := handed(rank)) is not None:
                bells.offer(rank, end)
                return
            SYSTEM.sleep(_AGAIN_S)

    threads = [threading.Thread(target=hand, args=(rank,), daemon=True) for rank in members]
    for thread in threads:
        thread.start()
    until_s = SYSTEM.now() + HAND_OUT_S
    for thread in threads:
        thread.join(max(0.0, until_s - SYSTEM.now()))
