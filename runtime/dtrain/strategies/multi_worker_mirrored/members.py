"""The members of a call of `fit` on one host: how they begin together, and how one comes later."""

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from dtrain.collectives.board import Ledger
from dtrain.messages import Entered, Told
from dtrain.messages.rounds import Known, MemberSeat
from dtrain.parameters.placement import Plan
from dtrain.process.clock import SYSTEM
from dtrain.roles.chief.start import Start
from dtrain.roles.collective.arena import Arena, ArenaShape
from dtrain.roles.collective.calls import CallLog, CallMemory
from dtrain.roles.collective.meeting import Meeting, SharedResources, descriptors_of
from dtrain.roles.collective.member_rounds import LINK_S
from dtrain.steps.follower import next_term
from dtrain.steps.round_parts import places_of
from dtrain.strategies.multi_worker_mirrored.hosts import HostWays
from dtrain.strategies.multi_worker_mirrored.orders import CONCLUDED, leadership_by
from dtrain.strategies.multi_worker_mirrored.rendezvous import (
    COPIES,
    LEDGER_BYTES,
    Entry,
    MembersGoneError,
    Peers,
    asked,
    enter_here,
    enter_message,
    enter_over_hosts,
    handed,
    ledger_of,
    terms_in,
)
from dtrain.wire.frames import Frame
from dtrain.wire.one_host.members import MemberLinks
from dtrain.wire.one_host.shared_memory import GrowingMemory
from dtrain.wire.one_host.synchronization import pairs

_LOOK_S, _SOON_S = 0.1, 0.01


class AllReplicas(NamedTuple):
    """The replicas of a run: how many train at the start, and their tasks by rank."""

    number: int
    name_of: Callable[[int], str]


class MemberEntry(msgspec.Struct, frozen=True):
    """The objects that one member uses in a call of `fit`.

    Attributes:
        shared: what the meeting keeps for those that come later.
        replicas: how many train at the start.
        number: of this member.
        known: what it begins from.
        told: by which leader, and what, where it comes later than others.
        gone: members that had ended before it began.
    """

    shared: SharedResources
    links: MemberLinks
    arena: Arena
    ledger: Ledger
    calls: CallLog
    number: int
    known: Known
    term: int
    replicas: int
    told: Told | None = None
    gone: Sequence[int] = ()


def arena_shape(plan: Plan, terms: Entered, replicas: int) -> ArenaShape:
    cut = terms.state.dealt
    places = places_of(cut.parts, replicas, whole=not cut.even)
    return ArenaShape(plan, terms.state.optimizer, parts=places, ranks=terms.ranks)


def begin_as_first(
    meeting: Meeting,
    start: Start,
    terms: Entered,
    rank: int,
    replicas: AllReplicas,
    wait: Callable[[Mapping[int, str], threading.Condition], bool],
) -> MemberEntry:
    """Gather the others, fill the memory that all share, and let them in; `wait` is as of `Meeting.gather`.

    Raises:
        SharedMemoryError: the machine has not that much memory.
        TooFewReplicasError: raised by `wait`.
    """
    state = start.state
    shape = arena_shape(start.plan, terms, replicas.number)
    arena = Arena.make(shape)
    arena.store(state.optimizer, version=state.version).fill(start.values, start.slots)
    arena.put_tally(state.version, state.tally)
    own = enter_message(state.generation, start.plan, shape.slots, None)
    ranks = sorted({*meeting.gather(own, wait), rank})
    nbytes = LEDGER_BYTES + COPIES * shape.values_nbytes
    memory = GrowingMemory.make(nbytes + -nbytes % 4096)
    calls = CallLog(CallMemory.make(state.dealt.parts))
    ends = pairs(ranks)
    copies = os.dup(arena.fd), os.dup(memory.fd), os.dup(arena.rows_fd), os.dup(calls.memory.fd)
    entry = _among(ranks, rank, ends.pop(rank), (arena, ledger_of(memory), calls), copies, terms, replicas)
    meeting.begin(entry.shared, ends)
    return entry


def _among(
    ranks: Sequence[int],
    rank: int,
    sockets: Mapping[int, socket.socket],
    mapped: tuple[Arena, Ledger, CallLog],
    copies: tuple[int, ...],
    terms: Entered,
    replicas: AllReplicas,
) -> MemberEntry:
    """Begin with all others: members have numbers in the order of their ranks."""
    numbers = {each: number for number, each in enumerate(ranks)}
    seats = tuple(MemberSeat(number=numbers[each], rank=each, task=replicas.name_of(each)) for each in ranks)
    state = terms.state
    known = Known(members=seats, version=state.version, side=state.version, dealt=state.dealt)
    links = MemberLinks({numbers[other]: each for other, each in sockets.items()})
    term = next_term(0, numbers[terms.leader])
    return _entry(links, mapped, copies, terms, replicas.number, number=numbers[rank], known=known, term=term)


def _entry(
    links: MemberLinks,
    mapped: tuple[Arena, Ledger, CallLog],
    copies: tuple[int, ...],
    terms: Entered,
    replicas: int,
    **begun: Any,
) -> MemberEntry:
    arena, ledger, calls = mapped
    ledger.read()
    links.ranks = [seat.rank for seat in begun["known"].members]
    leadership = leadership_by(ledger, terms.leader)
    shared = SharedResources(terms, copies, links, leadership, members=lambda: links.ranks)
    return MemberEntry(shared, links, arena, ledger, calls, replicas=replicas, **begun)


def enter(
    meeting: Meeting,
    peers: Peers,
    generation: int,
    plan: Plan,
    optimizer: dict[str, object],
    rank: int,
    hosts: HostWays | None,
    replicas: AllReplicas,
) -> MemberEntry | Entry | None:
    """Enter a call of `fit` that the leader begins, or has begun; None: it has ended.

    Raises:
        PeerError: the leader is gone, or refuses this task.
    """
    if hosts is not None:
        return enter_over_hosts(meeting, peers, generation, plan, optimizer, rank, hosts)
    own = enter_message(generation, plan, ArenaShape(plan, optimizer, 1, 1).slots, None)
    while True:
        frame = asked(peers, own)
        if (terms := terms_in(frame, peers, generation)) is None:
            return None
        try:
            if terms.state.dealt.even:
                return enter_here(meeting, peers, frame, terms, plan, rank)
            return _enter_among(meeting, peers, frame, terms, plan, rank, replicas)
        except MembersGoneError:
            SYSTEM.sleep(_LOOK_S)  # another task may lead by then


def _enter_among(
    meeting: Meeting,
    peers: Peers,
    frame: Frame,
    terms: Entered,
    plan: Plan,
    rank: int,
    replicas: AllReplicas,
) -> MemberEntry | None:
    """Map the memory that came with an answer, and join where others began before; None: it has ended.

    Raises:
        PeerError: the leader is gone.
        MembersGoneError: all others are gone too.
    """
    arena_fd, ledger_fd, rows_fd, calls_fd, *sockets = descriptors_of(frame)
    ends = {other: socket.socket(fileno=each) for other, each in zip(terms.doorbells, sockets, strict=True)}
    copies = os.dup(arena_fd), os.dup(ledger_fd), os.dup(rows_fd), os.dup(calls_fd)
    arena = Arena.received(arena_fd, rows_fd, arena_shape(plan, terms, replicas.number))
    ledger = ledger_of(GrowingMemory.received(ledger_fd))
    mapped = arena, ledger, CallLog(CallMemory.received(calls_fd, terms.state.dealt.parts))
    if not terms.joins:
        entry = _among(sorted({*ends, rank}), rank, ends, mapped, copies, terms, replicas)
        meeting.store(entry.shared)
        return entry
    links = MemberLinks({})
    found = None
    try:
        found = _welcomed(links, ledger, peers, terms, rank)
    finally:
        if found is None:
            links.close()
            for copy in copies:
                os.close(copy)
    if found is None:
        return None
    told, number = found
    known = Known(
        members=told.members, version=told.version, side=told.side, dealt=told.dealt, made=told.made
    )
    entry = _entry(
        links, mapped, copies, terms, replicas.number, number=number, known=known, term=told.term, told=told
    )
    meeting.store(entry.shared)
    gone = _link_all(links, peers, terms, rank, told, number)
    return msgspec.structs.replace(entry, gone=gone)


def _key(rank: int) -> int:
    """Return the number under which a member is linked of which only the rank is known."""
    return -1 - rank


def _welcomed(
    links: MemberLinks, ledger: Ledger, peers: Peers, terms: Entered, rank: int
) -> tuple[Told, int] | None:
    """Hand every member a socket, the leader last, and wait to be let in; return what the leader then tells,
    and the number of this member. None: training has ended.

    Raises:
        MembersGoneError: none of them lives, or one asks that knows of a leader who has not let this one in.
        PeerError: this task cannot go on.
    """
    peers.waiting("the members, the end of their step")
    try:
        for other in sorted({*terms.members} - {rank}, key=lambda each: (each == terms.leader, each)):
            end = handed(peers, terms.state.generation, rank, other)
            if end is not None:
                links.use(_key(other), end)
        while links.numbers:
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


def _link_all(
    links: MemberLinks, peers: Peers, terms: Entered, rank: int, told: Told, number: int
) -> list[int]:
    """Give all links the numbers of their members; return who is gone. Of two that begin at the same time the
    one of the higher number hands the other one a socket.
    """
    gone = []
    others = {seat.number: seat.rank for seat in told.members if seat.number != number}
    for other, its_rank in others.items():
        if _key(its_rank) in links.numbers:
            links.number(_key(its_rank), other)
        elif other < number:
            end = _handed_soon(peers, terms.state.generation, rank, its_rank)
            if end is None:
                gone.append(other)
            else:
                links.use(other, end)
    for stranger in links.numbers - others.keys():
        links.drop(stranger)
    return gone


def _handed_soon(peers: Peers, generation: int, rank: int, other: int) -> socket.socket | None:
    """Hand a socket to a member that may not have begun yet; None: it has ended."""
    until_s = SYSTEM.now() + LINK_S
    while (end := handed(peers, generation, rank, other)) is None and SYSTEM.now() < until_s:
        SYSTEM.sleep(_SOON_S)
    return end
