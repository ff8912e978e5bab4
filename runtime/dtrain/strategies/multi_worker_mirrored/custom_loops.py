"""The first collective call of a custom loop, at which its replicas meet: on one host, or on several."""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from threading import Condition

from dtrain.errors import PeerRefusedError
from dtrain.messages import Enter, Entered, FitState, Refusal
from dtrain.roles.collective.calls import CallMemory, Calls
from dtrain.roles.collective.calls_over_hosts import CallsBetweenHosts, StreamPair
from dtrain.roles.collective.meeting import Meeting, SharedResources, descriptors_of
from dtrain.roles.collective.rules import Waits
from dtrain.state.batch_cut import Dealt
from dtrain.strategies.interface import Strategy
from dtrain.strategies.multi_worker_mirrored.hosts import HostWays
from dtrain.strategies.multi_worker_mirrored.rendezvous import Peers, asked
from dtrain.strategies.replicas.calls import CollectiveCalls, PeerProcesses
from dtrain.strategies.replicas.loops import Loops
from dtrain.wire.one_host.synchronization import NotifySockets, pairs

LOOPS = 0
"""Calls of `fit` are numbered from 1; this is the number of what is not one of them."""
CALLS = "calls"
"""The name of the streams on which arrays of loops travel."""
CONNECT_S = 60.0
"""The time for which a task waits for the streams of the others, which all know that they may open them."""
Wait = Callable[[Mapping[int, str], Condition], bool]


def make_loops(strategy: Strategy, rank: int, ranks: int, meet: Callable[[], CollectiveCalls]) -> Loops:
    """Return the replicas of a task's loops, which `meet` at their first call; an evaluator has none."""
    if rank < 0:
        return Loops(strategy, ends="the evaluator ends: a loop of the program's own evaluates for itself")
    return Loops(strategy, 1, rank, PeerProcesses(ranks, rank, meet) if ranks > 1 else None)


def met(
    meeting: Meeting,
    hosts: HostWays | None,
    peers: Peers | None,
    rank: int,
    ranks: int,
    wait: Wait,
    waits: Waits,
) -> CollectiveCalls:
    """Meet the replicas of all tasks, here or by `hosts`; the leader has no `peers`, and lets all others in.

    `wait` returns True when all are there; see `Meeting.gather`.

    Raises:
        SharedMemoryError: the machine has not that much memory.
        TooFewReplicasError: raised by `wait`.
        PeerError: the leader is gone, the others began without this task, or one does not connect.
    """
    enter = Enter(generation=LOOPS, plan_hash="")
    if hosts is not None:
        enter = hosts.signed(enter)
    if peers is not None:
        return _enter(peers, enter, hosts, rank, ranks, waits)
    memory = CallMemory.make(ranks) if hosts is None else None
    entered = {**meeting.gather(enter, wait), rank: enter}
    terms = Entered(state=FitState(generation=LOOPS, dealt=Dealt(ranks)), leader=rank)
    if hosts is not None:
        terms = hosts.seated(terms, entered)
    ends = pairs(range(ranks)) if memory is not None else {}
    notify_sockets = NotifySockets(ends.pop(rank, {}))
    shared = () if memory is None else (os.dup(memory.fd),)
    meeting.begin(SharedResources(terms, shared, notify_sockets, lambda: (rank, False)), ends)
    if memory is not None:
        return Calls(memory, notify_sockets, rank, waits)
    assert hosts is not None, "replicas that share no memory are on several hosts"
    return _connected(hosts, terms, rank, waits)


def _enter(
    peers: Peers, enter: Enter, hosts: HostWays | None, rank: int, ranks: int, waits: Waits
) -> CollectiveCalls:
    """Take part in what the leader has begun."""
    frame = asked(peers, enter)
    terms = frame.message
    if not isinstance(terms, Entered):
        said = terms.reason if isinstance(terms, Refusal) else f"answered {type(terms).__name__}"
        raise PeerRefusedError(f"{peers.leader.name}: {said}")
    if hosts is not None:
        if terms.joins:
            raise _late(peers)
        return _connected(hosts, terms, rank, waits)
    memory_fd, *sockets = descriptors_of(frame)
    pairs_of = zip(terms.notify_sockets, sockets, strict=True)
    notify_sockets = NotifySockets(
        {other: socket.socket(fileno=descriptor) for other, descriptor in pairs_of}
    )
    if len(notify_sockets.linked) < ranks - 1:
        notify_sockets.close()
        os.close(memory_fd)
        raise _late(peers)
    return Calls(CallMemory.received(memory_fd, ranks), notify_sockets, rank, waits)


def _late(peers: Peers) -> PeerRefusedError:
    return PeerRefusedError(
        f"{peers.leader.name}: the program's own loop has begun without this task, which was started again; "
        "such a loop has no recovery: start the whole run again"
    )


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
    return CallsBetweenHosts({other: StreamPair(to[other], come[other]) for other in tasks}, rank, waits)
