"""The entry of a replica that does not lead into a call of `fit`, on the leader's host or on another one."""

import threading
from collections.abc import Mapping

import msgspec

from dtrain.errors import PeerError, PeerRefusedError, WaitTimeoutError
from dtrain.messages import Enter, Entered, Over, Refusal
from dtrain.parameters.placement import Plan
from dtrain.process.clock import SYSTEM
from dtrain.roles.collective.arena import Arena, ArenaShape
from dtrain.roles.collective.meeting import Meeting
from dtrain.strategies.multi_worker_mirrored.between_hosts.hosts import HostWays
from dtrain.strategies.multi_worker_mirrored.opening import (
    Doors,
    Entry,
    MembersGoneError,
    asked,
    begin_here,
    enter_here,
    enter_message,
    shape_of,
)
from dtrain.wire.frames import Frame

MATES_S = 30.0
"""The time for which the first replica of a host waits for the others of which it knows."""
_LOOK_S = 0.02


def enter(
    meeting: Meeting,
    doors: Doors,
    generation: int,
    plan: Plan,
    optimizer: dict[str, object],
    rank: int,
    hosts: HostWays | None = None,
) -> Entry | None:
    """Enter a call of `fit` that the leader begins, or has begun; None: it has ended.

    Raises:
        PeerError: the leader is gone, or does not want this task.
    """
    leader = doors
    own = enter_message(generation, plan, ArenaShape(plan, optimizer, 1, 1).slots, hosts)
    frame = asked(doors, own)
    while (terms := _terms(frame, doors, generation)) is not None:
        if frame.passed or hosts is None:
            try:
                return enter_here(meeting, doors, frame, terms, plan, rank, hosts)
            except MembersGoneError:
                doors = leader
                frame = asked(doors, own)  # again: another task may lead by now
                continue
        if terms.concluded:
            return None
        if not terms.joins and hosts.first(terms) == rank:
            return _begin_at_host(meeting, doors, own, terms, plan, rank, hosts)
        found = _beside_a_mate(doors, own, terms, rank, hosts)
        if found is not None:
            frame, doors = found
        elif not terms.joins:
            raise PeerRefusedError(f"{hosts.name_of(hosts.first(terms))}, which begins on this host, is gone")
        elif (entry := _join(meeting, doors, terms, plan, rank, hosts)) is not None:
            return entry
        else:
            frame = asked(doors, own)  # again: another task may lead by now
    return None


def _terms(frame: Frame, doors: Doors, generation: int) -> Entered | None:
    """Return the terms in an answer; None: this call of `fit` has ended.

    Raises:
        PeerRefusedError: it is a refusal.
    """
    said = frame.message
    if isinstance(said, Over) and said.generation > generation:
        return None
    if not isinstance(said, Entered):
        reason = said.reason if isinstance(said, Refusal) else f"answered {type(said).__name__}"
        raise PeerRefusedError(f"{doors.leader.name}: {reason}")
    return said


def _beside_a_mate(
    doors: Doors, own: Enter, terms: Entered, rank: int, hosts: HostWays
) -> tuple[Frame, Doors] | None:
    """Ask the other replicas of this host, which share memory; None: none of them is there."""
    for mate in hosts.mates(terms, rank):
        at_mate = doors.at(hosts.name_of(mate), mate)
        try:
            frame = asked(at_mate, own)
        except PeerError:
            continue
        if frame.passed:
            return frame, at_mate
    return None


def _begin_at_host(
    meeting: Meeting, doors: Doors, own: Enter, terms: Entered, plan: Plan, rank: int, hosts: HostWays
) -> Entry:
    """Make the memory of a host without the leader, as its first replica, and let the others of it in.

    Raises:
        PeerError: the leader has ended.
        SharedMemoryError: the machine has not that much memory.
    """
    arena = Arena.make(shape_of(plan, terms, several_hosts=True))
    doors.waiting(f"{doors.leader.name}, the variables")
    hosts.receive_values(arena, terms, doors.failure)
    awaited = set(hosts.mates(terms, rank))
    until_s = SYSTEM.now() + MATES_S

    def all_here(there: Mapping[int, str], more: threading.Condition) -> bool:
        doors.waiting(", ".join(hosts.name_of(each) for each in sorted(awaited - there.keys())) or None)
        if awaited <= there.keys() or SYSTEM.now() >= until_s:
            return True
        more.wait(_LOOK_S)
        return False

    meeting.gathers = True
    try:
        there = meeting.gather(own, all_here)
    finally:
        meeting.gathers = False
        doors.waiting(None)
    return begin_here(meeting, terms, arena, sorted({rank, *there}), rank, hosts)


def _join(
    meeting: Meeting, doors: Doors, terms: Entered, plan: Plan, rank: int, hosts: HostWays
) -> Entry | None:
    """Take part with a host of its own, once the leader welcomes it; None: it has not for a while.

    Raises:
        PeerError: this task cannot go on.
        SharedMemoryError: the machine has not that much memory.
    """
    if (failure := doors.failure()) is not None:
        raise failure
    doors.waiting("the other hosts, the end of their step")
    try:
        with hosts.welcomed(terms) as (welcome, stream):
            arena = Arena.make(shape_of(plan, terms, several_hosts=True))
            hosts.receive(arena, stream)
    except (WaitTimeoutError, PeerError):
        return None
    finally:
        doors.waiting(None)
    terms = msgspec.structs.replace(terms, seats=welcome.seats)
    return begin_here(meeting, terms, arena, [rank], rank, hosts, welcome)
