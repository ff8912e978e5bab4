"""The first collective call of a custom loop, at which its replicas meet: on one host, or on several."""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from threading import Condition

from dtrain.errors import PeerRefusedError
from dtrain.messages import Enter, Entered, FitState, Refusal
from dtrain.roles.collective.between_hosts.calls import CallsBetweenHosts, StreamPair
from dtrain.roles.collective.calls import CallMemory, Calls
from dtrain.roles.collective.meeting import Meeting, SharedResources, descriptors_of
from dtrain.roles.collective.rules import Waits
from dtrain.state.batch_cut import Dealt
from dtrain.strategies.interface import Strategy
from dtrain.strategies.multi_worker_mirrored.hosts import HostWays
from dtrain.strategies.multi_worker_mirrored.rendezvous import Peers, asked
from dtrain.strategies.replicas.calls import CollectiveCalls, PeerProcesses, check
from dtrain.strategies.replicas.loops import Loops
from dtrain.wire.one_host.synchronization import Doorbells, pairs

LOOPS = 0
"""Calls of `fit` are numbered from 1; this is the number of what is not one of them."""


def begin_calls(
    meeting: Meeting, rank: int, ranks: int, wait: Callable[[Mapping[int, str], Condition], bool]
) -> tuple[CallMemory, Doorbells]:
    """Make the memory of the calls, as the leader, and let all others in.

    Raises:
        SharedMemoryError: the machine has not that much memory.
        TooFewReplicasError: raised by `wait`.
    """
    memory = CallMemory.make(ranks)
    meeting.gather(enter_message(), wait)
    ends = pairs(range(ranks))
    doorbells = Doorbells(ends.pop(rank))
    terms = terms_of_loops(rank, ranks)
    meeting.begin(SharedResources(terms, (os.dup(memory.fd),), doorbells, lambda: (rank, False)), ends)
    return memory, doorbells


def enter_calls(peers: Peers, ranks: int) -> tuple[CallMemory, Doorbells]:
    """Map the leader's memory; raise a `PeerError` if it is gone, or the others began without this task."""
    frame = asked(peers, enter_message())
    terms = frame.message
    if not isinstance(terms, Entered):
        said = terms.reason if isinstance(terms, Refusal) else f"answered {type(terms).__name__}"
        raise PeerRefusedError(f"{peers.leader.name}: {said}")
    memory_fd, *sockets = descriptors_of(frame)
    pairs_of = zip(terms.doorbells, sockets, strict=True)
    ends = {other: socket.socket(fileno=descriptor) for other, descriptor in pairs_of}
    if len(ends) < ranks - 1:
        for each in ends.values():
            each.close()
        os.close(memory_fd)
        raise late(peers.leader.name)
    return CallMemory.received(memory_fd, ranks), Doorbells(ends)


def make_loops(strategy: Strategy, rank: int, ranks: int, meet: Callable[[], CollectiveCalls]) -> Loops:
    """Return the replicas of a task's loops, which `meet` at their first call; an evaluator has none."""
    if rank < 0:
        return Loops(strategy, ends="the evaluator ends: a loop of the program's own evaluates for itself")
    return Loops(strategy, 1, rank, PeerProcesses(ranks, rank, meet) if ranks > 1 else None)


def enter_message() -> Enter:
    return Enter(generation=LOOPS, plan_hash="")


def terms_of_loops(leader: int, ranks: int) -> Entered:
    state = FitState(generation=LOOPS, dealt=Dealt(ranks))
    return Entered(state=state, leader=leader, ranks=ranks)


def late(leader: str) -> PeerRefusedError:
    return PeerRefusedError(
        f"{leader}: the program's own loop has begun without this task, which was started again; such a loop "
        "has no recovery: start the whole run again"
    )


CALLS = "calls"
"""The name of the streams on which arrays of loops travel."""
CONNECT_S = 60.0
"""The time for which a task waits for the streams of the others, which all know that they may open them."""
Wait = Callable[[Mapping[int, str], Condition], bool]


def met(
    meeting: Meeting,
    hosts: HostWays | None,
    peers: Peers | None,
    rank: int,
    ranks: int,
    wait: Wait,
    waits: Waits,
) -> CollectiveCalls:
    """Meet the replicas of all tasks, here or by `hosts`; the leader has no `peers`.

    `wait` returns True when all are there; see `Meeting.gather`. Raises as `begin_calls` and `enter_calls`.
    """
    if hosts is None:
        memory, doorbells = (
            begin_calls(meeting, rank, ranks, wait) if peers is None else enter_calls(peers, ranks)
        )
        return Calls(memory, doorbells, rank, range(ranks), check, waits)
    if peers is None:
        return begin_over_hosts(meeting, hosts, rank, ranks, wait, waits)
    return enter_over_hosts(peers, hosts, rank, waits)


def begin_over_hosts(
    meeting: Meeting,
    hosts: HostWays,
    rank: int,
    ranks: int,
    wait: Wait,
    waits: Waits,
) -> CallsBetweenHosts:
    """Let all others in, as the leader, and connect to them; errors as of `begin_calls`."""
    own = hosts.signed(enter_message())
    entered = {**meeting.gather(own, wait), rank: own}
    terms = hosts.seated(terms_of_loops(rank, ranks), entered)
    meeting.begin(SharedResources(terms, (), Doorbells({}), lambda: (rank, False)), {})
    return _connected(hosts, terms, rank, waits)


def enter_over_hosts(peers: Peers, hosts: HostWays, rank: int, waits: Waits) -> CallsBetweenHosts:
    """Connect to all others, once the leader has let them in; errors as of `enter_calls`."""
    terms = asked(peers, hosts.signed(enter_message())).message
    if not isinstance(terms, Entered):
        said = terms.reason if isinstance(terms, Refusal) else f"answered {type(terms).__name__}"
        raise PeerRefusedError(f"{peers.leader.name}: {said}")
    if terms.joins:
        raise late(peers.leader.name)
    return _connected(hosts, terms, rank, waits)


def _connected(hosts: HostWays, terms: Entered, rank: int, waits: Waits) -> CallsBetweenHosts:
    """Open a stream to every replica, and accept theirs; raise a `PeerError` if one does not connect."""
    hosts.learn(terms.seats)
    open_, take = hosts.named(terms.state.generation)
    tasks = {seat.rank: seat.task for seats in terms.seats.values() for seat in seats if seat.rank != rank}
    deadline = time.monotonic() + CONNECT_S
    with contextlib.ExitStack() as opened:
        to, come = {}, {}
        for other, task in tasks.items():
            to[other] = open_(task, CALLS, CONNECT_S)
            opened.callback(to[other].close)
        for other, task in tasks.items():
            waits.waiting(f"{task}, its connection")
            come[other] = take(task, CALLS, deadline, lambda: None)
            opened.callback(come[other].close)
        waits.waiting(None)
        opened.pop_all()
    return CallsBetweenHosts(
        {other: StreamPair(to[other], come[other]) for other in tasks}, rank, check, waits
    )
