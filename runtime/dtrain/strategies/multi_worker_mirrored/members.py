"""The members of a call of `fit`: how they begin together, and how one comes later.

A replica that does not lead enters on the leader's host or on another one, by the terms that the leader tells
to all. The members of a host share memory: the first one makes it.
"""

import math
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import msgspec

from dtrain.collectives.ledger import Ledger
from dtrain.errors import PeerError, PeerRefusedError, WaitTimeoutError
from dtrain.messages import Enter, Entered, Told
from dtrain.messages.replicas import Seat
from dtrain.messages.rounds import Known, MemberSeat
from dtrain.parameters.placement import Plan
from dtrain.process.clock import SYSTEM
from dtrain.roles.chief.start import Start
from dtrain.roles.collective.arena import Arena, ArenaShape
from dtrain.roles.collective.calls import CallLog, CallMemory
from dtrain.roles.collective.calls_over_hosts import LONGEST_BYTES as LONGEST_CALL_BYTES
from dtrain.roles.collective.meeting import Meeting, SharedResources, descriptors_of
from dtrain.steps.follower import next_term
from dtrain.steps.round_parts import places_of
from dtrain.strategies.multi_worker_mirrored.hosts import HostWays
from dtrain.strategies.multi_worker_mirrored.orders import CONCLUDED, leadership_by
from dtrain.strategies.multi_worker_mirrored.rendezvous import (
    COPIES,
    LEDGER_BYTES,
    MembersGoneError,
    Peers,
    asked,
    enter_message,
    handed,
    ledger_of,
    terms_in,
)
from dtrain.wire.frames import Frame
from dtrain.wire.one_host.members import MemberLinks
from dtrain.wire.one_host.shared_memory import GrowingMemory
from dtrain.wire.one_host.synchronization import Locks, pairs

ASKS_AGAIN_S = 10.0
"""The time for which a newcomer waits to be let in over several hosts before it asks again who leads."""
OTHERS_HERE_S = 30.0
"""The time for which the first replica of a host waits for the others of which it knows."""
HAND_OUT_S = 0.2
"""The seconds for which a newcomer waits for members to take its sockets; one that is stopped does later."""
_LOOK_S = 0.1


class AllReplicas(NamedTuple):
    """The replicas of a run: how many train at the start, tasks by rank, and the ranks that only lead."""

    number: int
    name_of: Callable[[int], str]
    idle: frozenset[int] = frozenset()


class MemberEntry(msgspec.Struct, frozen=True):
    """The objects that one member uses in a call of `fit`.

    Attributes:
        shared: what the meeting keeps for those that come later.
        number: of this member.
        known: what it begins from.
        hosts: the ways to other hosts; None where all share memory.
        told: by which leader, and what, where it comes later than others.
    """

    shared: SharedResources
    links: MemberLinks
    arena: Arena
    ledger: Ledger
    calls: CallLog
    number: int
    known: Known
    term: int
    replicas: AllReplicas
    hosts: HostWays | None = None
    told: Told | None = None


class _Here(NamedTuple):
    """The memory that the members of a host share, and copies of its descriptors for those who come later."""

    arena: Arena
    ledger: Ledger
    calls: CallLog
    copies: tuple[int, ...]

    def close(self) -> None:
        for copy in self.copies:
            os.close(copy)


def arena_shape(plan: Plan, terms: Entered, replicas: int, *, several_hosts: bool) -> ArenaShape:
    cut = terms.state.dealt
    places = places_of(cut.parts, replicas, whole=not cut.even)
    return ArenaShape(
        plan,
        terms.state.optimizer,
        parts=places,
        several_hosts=several_hosts,
        backups=cut.even,
    )


def begin_as_first(
    meeting: Meeting,
    start: Start,
    terms: Entered,
    rank: int,
    replicas: AllReplicas,
    wait: Callable[[Mapping[int, str], threading.Condition], bool],
    hosts: HostWays | None = None,
) -> MemberEntry:
    """Gather the others, fill the memory that all of this host share, and let them in; `wait` is as of
    `Meeting.gather`.

    Raises:
        SharedMemoryError: the machine has not that much memory.
        TooFewReplicasError: raised by `wait`.
    """
    state = start.state
    shape = arena_shape(start.plan, terms, replicas.number, several_hosts=hosts is not None)
    arena = Arena.make(shape)
    arena.store(state.optimizer, version=state.version).fill(start.values, start.slots)
    own = enter_message(state.generation, start.plan, shape.slots, hosts)
    entered = {**meeting.gather(own, wait), rank: own}
    here = sorted(entered)
    if hosts is not None:
        terms = hosts.seated(terms, entered)
        here = sorted(seat.rank for seat in terms.seats[0])
    entry = _begin_here(meeting, terms, arena, here, rank, replicas, hosts)
    if hosts is not None:
        hosts.send_values(arena, terms)
    return entry


def _begin_here(
    meeting: Meeting,
    terms: Entered,
    arena: Arena,
    here: Sequence[int],
    rank: int,
    replicas: AllReplicas,
    hosts: HostWays | None,
) -> MemberEntry:
    """Let the other replicas of this host in, as the one that has filled its memory."""
    state = terms.state
    arena.put_tally(state.version, state.tally)
    ends = pairs(here)
    memory = _made_here(arena, terms, hosts)
    entry = _among(here, rank, ends.pop(rank), memory, terms, replicas, hosts)
    meeting.begin(entry.shared, ends)
    return entry


def _made_here(arena: Arena, terms: Entered, hosts: HostWays | None) -> _Here:
    nbytes = LEDGER_BYTES + COPIES * arena.shape.values_nbytes
    memory = GrowingMemory.make(nbytes + -nbytes % 4096)
    parts = terms.state.dealt.parts
    calls = CallMemory.make(parts if hosts is None else 2 * parts)
    copies = os.dup(arena.fd), os.dup(memory.fd), os.dup(arena.rows_fd), os.dup(calls.fd)
    return _Here(arena, ledger_of(memory), CallLog(calls, parts), copies)


def _among(
    here: Sequence[int],
    rank: int,
    sockets: Mapping[int, socket.socket],
    memory: _Here,
    terms: Entered,
    replicas: AllReplicas,
    hosts: HostWays | None,
) -> MemberEntry:
    """Begin with all others: members have numbers in the order of their ranks."""
    if hosts is None:
        all_seats = [Seat(rank=each, task=replicas.name_of(each), address="") for each in here]
    else:
        seated = [seat for seats in terms.seats.values() for seat in seats]
        all_seats = sorted(seated, key=lambda seat: seat.rank)
    seats = tuple(
        MemberSeat(number=number, rank=seat.rank, task=seat.task, host=seat.host, address=seat.address)
        for number, seat in enumerate(all_seats)
    )
    numbers = {seat.rank: seat.number for seat in seats}
    state = terms.state
    known = Known(members=seats, version=state.version, side=state.version, dealt=state.dealt)
    links = MemberLinks({numbers[other]: each for other, each in sockets.items()}, Locks(memory.copies[0]))
    term = next_term(0, numbers[terms.leader])
    return _entry(links, memory, terms, replicas, hosts, number=numbers[rank], known=known, term=term)


def _entry(
    links: MemberLinks,
    memory: _Here,
    terms: Entered,
    replicas: AllReplicas,
    hosts: HostWays | None,
    **begun: Any,
) -> MemberEntry:
    arena, ledger, calls, copies = memory
    ledger.read()
    seats, number = begun["known"].members, begun["number"]
    links.begin(number)
    if hosts is not None:
        hosts.number = number
        if links.far is None:
            hosts.reach_members(links, terms.state.generation, max(ledger.nbytes, LONGEST_CALL_BYTES))
    own = next(seat.host for seat in seats if seat.number == number)
    links.ranks = [seat.rank for seat in seats if seat.host == own]
    leadership = leadership_by(ledger, terms.leader)
    shared = SharedResources(terms, copies, links, leadership, hosts, members=lambda: links.ranks)
    return MemberEntry(shared, links, arena, ledger, calls, replicas=replicas, hosts=hosts, **begun)


def enter(
    meeting: Meeting,
    peers: Peers,
    generation: int,
    plan: Plan,
    optimizer: dict[str, object],
    rank: int,
    hosts: HostWays | None,
    replicas: AllReplicas,
) -> MemberEntry | None:
    """Enter a call of `fit` that the leader begins, or has begun; None: it has ended.

    Raises:
        PeerError: the leader is gone, or refuses this task.
    """
    own = enter_message(generation, plan, ArenaShape(plan, optimizer, 1).slots, hosts)
    asks = _Asks(meeting, peers, own, plan, rank, hosts, replicas)
    while True:
        frame = asked(peers, own)
        if (terms := terms_in(frame, peers, generation)) is None:
            return None
        try:
            if hosts is not None:
                return asks.over_hosts(frame, terms, hosts)
            return asks.among(peers, frame, terms)
        except MembersGoneError:
            SYSTEM.sleep(_LOOK_S)  # another task may lead by then


class _Asks(NamedTuple):
    """One replica that would like to take part; `peers` lead to the task that leads."""

    meeting: Meeting
    peers: Peers
    own: Enter
    plan: Plan
    rank: int
    hosts: HostWays | None
    replicas: AllReplicas

    def among(self, peers: Peers, frame: Frame, terms: Entered) -> MemberEntry | None:
        """Map the memory that came with an answer, and join where others began before; None: it has ended.

        Raises:
            PeerError: the leader is gone.
            MembersGoneError: all others are gone too, or it was not let in for long.
        """
        arena_fd, ledger_fd, rows_fd, calls_fd, *sockets = descriptors_of(frame)
        ends = {
            other: socket.socket(fileno=each)
            for other, each in zip(terms.notify_sockets, sockets, strict=True)
        }
        copies = os.dup(arena_fd), os.dup(ledger_fd), os.dup(rows_fd), os.dup(calls_fd)
        arena = Arena.received(arena_fd, rows_fd, self._shape(terms))
        ledger = ledger_of(GrowingMemory.received(ledger_fd))
        parts = terms.state.dealt.parts
        calls = CallMemory.received(calls_fd, parts if self.hosts is None else 2 * parts)
        memory = _Here(arena, ledger, CallLog(calls, parts), copies)
        if not terms.joins:
            here = sorted({*ends, self.rank})
            entry = _among(here, self.rank, ends, memory, terms, self.replicas, self.hosts)
            self.meeting.store(entry.shared)
            return entry
        links = MemberLinks({}, Locks(copies[0]))
        if self.hosts is not None:
            longest = max(ledger.nbytes, LONGEST_CALL_BYTES)
            self.hosts.reach_members(links, terms.state.generation, longest)
        found = None
        try:
            found = _welcomed(links, ledger, peers, terms, self.rank, self.hosts)
        finally:
            if found is None:
                links.close()
                memory.close()
        if found is None:
            return None
        entry = self._later(links, memory, terms, *found)
        _link_all(links, peers, terms, self.rank, *found)
        return entry

    def _later(
        self, links: MemberLinks, memory: _Here, terms: Entered, told: Told, number: int
    ) -> MemberEntry:
        known = Known(
            members=told.members, version=told.version, side=told.side, dealt=told.dealt, made=told.made
        )
        about = links, memory, terms, self.replicas, self.hosts
        entry = _entry(*about, number=number, known=known, term=told.term, told=told)
        self.meeting.store(entry.shared)
        return entry

    def _shape(self, terms: Entered) -> ArenaShape:
        several = self.hosts is not None
        return arena_shape(self.plan, terms, self.replicas.number, several_hosts=several)

    # Several hosts

    def over_hosts(self, frame: Frame, terms: Entered, hosts: HostWays) -> MemberEntry | None:
        """Take part where a leader has answered; None: it has ended. Errors as of `among`."""
        if frame.passed:
            return self.among(self.peers, frame, terms)
        if terms.concluded:
            return None
        if not terms.joins and hosts.first(terms) == self.rank:
            return self._begin_at_host(terms, hosts)
        found = self._asked_on_this_host(terms, hosts)
        if found is not None:
            frame, peers = found
            generation = self.own.generation
            here = terms_in(frame, peers, generation)
            return None if here is None else self.among(peers, frame, here)
        if not terms.joins:
            raise PeerRefusedError(f"{hosts.name_of(hosts.first(terms))}, which begins on this host, is gone")
        return self._join(terms, hosts)

    def _asked_on_this_host(self, terms: Entered, hosts: HostWays) -> tuple[Frame, Peers] | None:
        """Ask the other replicas of this host, which share memory; None: none of them is there."""
        for other in hosts.others_here(terms, self.rank):
            at_other = self.peers.at(hosts.name_of(other), other)
            try:
                frame = asked(at_other, self.own)
            except PeerError:
                continue
            if frame.passed:
                return frame, at_other
        return None

    def _begin_at_host(self, terms: Entered, hosts: HostWays) -> MemberEntry:
        """Make the memory of a host without the leader, as its first replica, and let its others in.

        Raises:
            PeerError: the leader has ended.
            SharedMemoryError: the machine has not that much memory.
        """
        peers = self.peers
        arena = Arena.make(self._shape(terms))
        peers.waiting(f"{peers.leader.name}, the variables")
        hosts.receive_values(arena, terms, peers.failure)
        awaited = set(hosts.others_here(terms, self.rank))
        until_s = SYSTEM.now() + OTHERS_HERE_S

        def all_here(there: Mapping[int, str], more: threading.Condition) -> bool:
            peers.waiting(", ".join(hosts.name_of(each) for each in sorted(awaited - there.keys())) or None)
            if awaited <= there.keys() or SYSTEM.now() >= until_s:
                return True
            more.wait(_LOOK_S)
            return False

        self.meeting.gathers = True
        try:
            there = self.meeting.gather(self.own, all_here)
        finally:
            self.meeting.gathers = False
            peers.waiting(None)
        here = sorted({self.rank, *there})
        return _begin_here(self.meeting, terms, arena, here, self.rank, self.replicas, hosts)

    def _join(self, terms: Entered, hosts: HostWays) -> MemberEntry:
        """Take part with a new host, once the leader welcomes it.

        Raises:
            MembersGoneError: it has not for a while.
            PeerError: this task cannot go on.
            SharedMemoryError: the machine has not that much memory.
        """
        peers = self.peers
        if (failure := peers.failure()) is not None:
            raise failure
        peers.waiting("the other hosts, the end of their step")
        try:
            with hosts.welcomed(terms) as (told, tally, stream):
                arena = Arena.make(self._shape(terms))
                hosts.receive(arena, told.side, stream)
        except (WaitTimeoutError, PeerError):
            raise MembersGoneError from None
        finally:
            peers.waiting(None)
        arena.put_tally(told.side, tally)
        own = [seat.number for seat in told.members if seat.rank == self.rank]
        if not own:
            raise MembersGoneError
        memory = _made_here(arena, terms, hosts)
        return self._later(MemberLinks({}, Locks(memory.copies[0])), memory, terms, told, max(own))


def _key(rank: int) -> int:
    """Return the number under which a member is linked of which only the rank is known."""
    return -1 - rank


def _welcomed(
    links: MemberLinks, ledger: Ledger, peers: Peers, terms: Entered, rank: int, hosts: HostWays | None
) -> tuple[Told, int] | None:
    """Hand every member a socket, the leader last, and wait to be let in; return what the leader then tells,
    and the number of this member. None: training has ended.

    Raises:
        MembersGoneError: none of them lives, or one asks that knows of a leader who has not let this one in.
            Over several hosts also where nobody does so for a while: the leader may have ended.
        PeerError: this task cannot go on.
    """
    peers.waiting("the members, the end of their step")
    try:
        others = sorted({*terms.members} - {rank})
        hands = _hand_out(links, peers, terms, rank, [each for each in others if each != terms.leader])
        hands += _hand_out(links, peers, terms, rank, [each for each in others if each == terms.leader])
        until_s = math.inf if hosts is None else SYSTEM.now() + ASKS_AGAIN_S
        while SYSTEM.now() < until_s:
            if not _take_up(links, others) and not any(each.is_alive() for each in hands):
                break
            ledger.read()
            if CONCLUDED in ledger.entries:
                return None
            if (failure := peers.failure()) is not None:
                raise failure
            for _, told in links.receive(_LOOK_S):
                if not isinstance(told, Told):
                    continue
                own = [seat.number for seat in told.members if seat.rank == rank]
                if told.round < 0 or not own:
                    raise MembersGoneError
                return told, max(own)
        raise MembersGoneError
    finally:
        peers.waiting(None)


def _take_up(links: MemberLinks, ranks: Sequence[int]) -> Set[int]:
    """Put the sockets in use that members of these ranks have taken; return who is linked."""
    for rank in ranks:
        links.take_up(rank, _key(rank))
    return links.numbers


def _hand_out(
    links: MemberLinks, peers: Peers, terms: Entered, rank: int, others: Sequence[int]
) -> list[threading.Thread]:
    """Hand a socket to each member that lives, soon or when it goes on, and offer its other end to `links`;
    return the threads that do.
    """

    def hand(other: int) -> None:
        while peers.lives(other) and not links.is_closed:
            if (end := handed(peers, terms.state.generation, rank, other)) is not None:
                links.offer(other, end)
                return
            SYSTEM.sleep(_LOOK_S)

    threads = [threading.Thread(target=hand, args=(other,), daemon=True) for other in others]
    for thread in threads:
        thread.start()
    until_s = SYSTEM.now() + HAND_OUT_S
    for thread in threads:
        thread.join(max(0.0, until_s - SYSTEM.now()))
    return threads


def _link_all(links: MemberLinks, peers: Peers, terms: Entered, rank: int, told: Told, number: int) -> None:
    """Give all links of this host the numbers of their members. Of two that begin at the same time the one of
    the higher number hands the other one a socket.
    """
    host = next(seat.host for seat in told.members if seat.number == number)
    here = [seat for seat in told.members if seat.host == host]
    others = {seat.number: seat.rank for seat in here if seat.number != number}
    left = [rank for other, rank in others.items() if other < number and rank not in terms.members]
    _hand_out(links, peers, terms, rank, left)
    for other, its_rank in others.items():
        if _key(its_rank) in links.numbers:
            links.number(_key(its_rank), other)
    for stranger in links.numbers - others.keys():
        links.drop(stranger)
