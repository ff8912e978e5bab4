"""How the replicas of a loop of one's own meet on several hosts, at its first collective call."""

import contextlib
import time
from collections.abc import Callable, Mapping
from threading import Condition

from dtrain.errors import PeerRefusedError
from dtrain.messages import Entered, Refusal
from dtrain.roles.collective.between_hosts.calls import CallsBetweenHosts, Way
from dtrain.roles.collective.meeting import Meeting, Shared
from dtrain.roles.collective.rules import Waits
from dtrain.strategies.multi_worker_mirrored.between_hosts.hosts import HostWays
from dtrain.strategies.multi_worker_mirrored.opening import Doors, asked
from dtrain.strategies.multi_worker_mirrored.own_loops import (
    begin_calls,
    calls_of,
    enter_calls,
    enter_message,
    late,
    terms_of_loops,
)
from dtrain.strategies.replicas.calls import CollectiveCalls, check
from dtrain.wire.one_host.bells import Bells

CALLS = "calls"
"""The name of the streams on which arrays of loops travel."""
CONNECT_S = 60.0
"""The time for which a task waits for the streams of the others, which all know that they may open them."""
Wait = Callable[[Mapping[int, str], Condition], bool]


def met(
    meeting: Meeting,
    hosts: HostWays | None,
    doors: Doors | None,
    rank: int,
    ranks: int,
    wait: Wait,
    waits: Waits,
) -> CollectiveCalls:
    """Meet the replicas of all tasks.

    Args:
        meeting: of the loops of this task.
        hosts: the ways to other hosts; None: all tasks share memory.
        doors: to the others; None in the task that leads.
        rank: of this replica.
        ranks: how many there are.
        wait: see `Meeting.gather`; returns True when all are there.
        waits: how this replica waits.

    Raises: as `begin_calls` and `enter_calls`.
    """
    if hosts is None:
        way = begin_calls(meeting, rank, ranks, wait) if doors is None else enter_calls(doors, ranks)
        return calls_of(way, rank, ranks, waits)
    if doors is None:
        return begin_over_hosts(meeting, hosts, rank, ranks, wait, waits)
    return enter_over_hosts(doors, hosts, rank, waits)


def begin_over_hosts(
    meeting: Meeting,
    hosts: HostWays,
    rank: int,
    ranks: int,
    wait: Wait,
    waits: Waits,
) -> CallsBetweenHosts:
    """Let all others in, as the leader, and connect to them; arguments and errors as of `begin_calls`."""
    own = hosts.signed(enter_message())
    entered = {**meeting.gather(own, wait), rank: own}
    terms = hosts.seated(terms_of_loops(rank, ranks), entered)
    meeting.begin(Shared(terms, (), Bells({}), lambda: (rank, False)), {})
    return _connected(hosts, terms, rank, waits)


def enter_over_hosts(doors: Doors, hosts: HostWays, rank: int, waits: Waits) -> CallsBetweenHosts:
    """Connect to all others, once the leader has let them in; errors as of `enter_calls`."""
    terms = asked(doors, hosts.signed(enter_message())).message
    if not isinstance(terms, Entered):
        said = terms.reason if isinstance(terms, Refusal) else f"answered {type(terms).__name__}"
        raise PeerRefusedError(f"{doors.leader.name}: {said}")
    if terms.joins:
        raise late(doors.leader.name)
    return _connected(hosts, terms, rank, waits)


def _connected(hosts: HostWays, terms: Entered, rank: int, waits: Waits) -> CallsBetweenHosts:
    """Open a stream to every other replica, and take theirs.

    Raises:
        PeerError: one has ended, or does not connect.
    """
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
    return CallsBetweenHosts({other: Way(to[other], come[other]) for other in tasks}, rank, check, waits)
