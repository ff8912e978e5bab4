"""One sum over several hosts, as one task of each carries it out on its streams."""

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dtrain.collectives.between_hosts.all_reduce import Flow, Receive, Send, Terms, Way, carry_out
from dtrain.errors import PeerError, PeerRefusedError
from dtrain.process.clock import SYSTEM, Clock
from dtrain.roles.collective.between_hosts.ways import Ways
from dtrain.types import Array


class Sum(NamedTuple):
    """Which sum goes over the streams; both ends of each must mean the same one.

    Attributes:
        step: the version that it is to make.
        attempt: how often this step was begun before.
        block: which block of variables.
        elements: of the whole block.
    """

    step: int
    attempt: int
    block: int
    elements: int


def exchange(
    which: Sum,
    flows: Sequence[Flow],
    terms: Terms,
    mean: Array,
    ways: Ways,
    deadline: float,
    clock: Clock = SYSTEM,
) -> None:
    """Carry flows out side by side; when this returns, this host has the mean and the others have its bytes.

    Args:
        which: named at the beginning of each stream's bytes, and compared there.
        flows: of this host, for the slice of this lane.
        terms: the gradients that this host adds.
        mean: of the whole block; only the slice is written. It must not change before `ways.flush` returns.
        ways: the streams.
        deadline: for each wait, in seconds of `time.monotonic`.
        clock: starts threads.

    Raises:
        PeerLostError: a peer is gone, or `ways` were aborted. Then all waits on the ways are over.
        WaitTimeoutError: a peer was silent until the deadline.
        PeerRefusedError: a peer means another sum.
    """
    errors: list[Exception] = []
    lock = threading.Lock()

    def carried(flow: Flow) -> None:
        try:
            _carry(which, flow, terms, mean, ways, deadline)
        except Exception as error:  # raised below, in the thread that waits for all
            with lock:
                errors.append(error)
            ways.abort(str(error))

    others = [clock.start(_calling(carried, flow), "flow of a sum") for flow in flows[1:]]
    for flow in flows[:1]:
        carried(flow)
    for other in others:
        other.join()  # each of its waits has the deadline, or was aborted
    if errors:
        raise errors[0]


def _calling(carried: Callable[[Flow], None], flow: Flow) -> Callable[[], None]:
    return lambda: carried(flow)


def _carry(which: Sum, flow: Flow, terms: Terms, mean: Array, ways: Ways, deadline: float) -> None:
    begun: set[Way] = set()
    head = np.array(which, np.int64)
    for each in carry_out(flow, terms, mean):
        first = each.way not in begun
        begun.add(each.way)
        try:
            if isinstance(each, Send):
                _send(each, head if first else None, ways, deadline)
            else:
                _receive(each, which if first else None, ways, deadline)
        except PeerError:
            ways.blame(each.way.target if isinstance(each, Send) else each.way.source)
            raise


def _send(each: Send, head: Array | None, ways: Ways, deadline: float) -> None:
    out = ways.outgoing(each.way, deadline)
    if head is not None:
        out.send(head)
    out.send(each.block)


def _receive(each: Receive, which: Sum | None, ways: Ways, deadline: float) -> None:
    come = ways.incoming(each.way, deadline)
    if which is not None:
        told = np.empty(len(which), np.int64)
        come.receive(told, deadline)
        if told.tolist() != list(which):
            raise PeerRefusedError(
                f"{come.peer} sends {Sum(*told.tolist())}, and {which} is expected; do both ends run the "
                "same version and program?"
            )
    come.receive(each.block, deadline)
