"""The beginning of a call of `fit`: the leader gathers the other replicas, and those of a host share memory.

A replica that does not lead enters on the leader's host or on another one, by the terms that the leader
tells to all.
"""

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
from msgspec.structs import replace

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.collectives.board import HEAD_BYTES, Ledger, ranks_in
from dtrain.config.training_section import SPARE_RANKS
from dtrain.errors import PeerError, PeerLostError, PeerRefusedError, WaitTimeoutError
from dtrain.messages import Doorbell, Enter, Entered, NotReady, Over, Refusal
from dtrain.messages.replicas import Welcome
from dtrain.parameters.placement import Plan
from dtrain.process.clock import SYSTEM
from dtrain.roles.chief.start import Start
from dtrain.roles.collective.arena import Arena, ArenaShape
from dtrain.roles.collective.calls import CallLog, CallMemory
from dtrain.roles.collective.meeting import Meeting, SharedResources, descriptors_of
from dtrain.strategies.multi_worker_mirrored.backups import first_fit, hand_out, has_backups, places_of
from dtrain.strategies.multi_worker_mirrored.hosts import HostWays, first_words
from dtrain.strategies.multi_worker_mirrored.orders import CONCLUDED, leadership_by
from dtrain.wire.channel import Channel, PassesOn
from dtrain.wire.frames import Frame
from dtrain.wire.one_host.shared_memory import GrowingMemory
from dtrain.wire.one_host.synchronization import Doorbells, Locks, is_open, pairs
from dtrain.wire.peer import Peer

LEDGER_BYTES = 1 << 20
COPIES = 8
"""The ledger has room for so many copies of the variables: callbacks keep some, and each half has all."""
SOCKET_ALONE = "127.0.0.1:1"
"""The address of a task of this host that listens nowhere."""
_LOOK_S = 0.02
_DOORBELL_S = 5.0


class MembersGoneError(Exception):
    """All members of a call of `fit` are gone before they have let this replica in."""


class Entry(msgspec.Struct, frozen=True):
    """The objects that one replica uses in a call of `fit`.

    Attributes:
        shared: what the meeting keeps for later joiners.
        from_round: the first round in which the replica is a member.
        locks: None where all replicas are on one host.
        speaks: whether it speaks for its host at first, as it has made its memory.
    """

    shared: SharedResources
    arena: Arena
    ledger: Ledger
    calls: CallLog
    rank: int
    from_round: int = 1
    locks: Locks | None = None
    speaks: bool = False


def task_of(cluster: ClusterSpec, rank: int) -> TaskId:
    """Return the task of a rank, also of a worker that has joined."""
    replicas = cluster.replicas()
    if rank < len(replicas):
        return replicas[rank]
    return TaskId(Role.WORKER, cluster.first_joined + rank - len(replicas))


def enter_message(generation: int, plan: Plan, slots: Sequence[str], hosts: HostWays | None) -> Enter:
    message = Enter(generation=generation, plan_hash=plan.hash, slots=tuple(slots))
    return message if hosts is None else hosts.signed(message)


def shape_of(plan: Plan, terms: Entered, *, several_hosts: bool) -> ArenaShape:
    parts, ranks = terms.state.dealt.parts, terms.ranks
    backups = has_backups(terms, several_hosts=several_hosts)
    if backups:
        parts = places_of(parts, ranks - SPARE_RANKS)
    return ArenaShape(
        plan, terms.state.optimizer, parts=parts, ranks=ranks, several_hosts=several_hosts, backups=backups
    )


def begin_as_leader(
    meeting: Meeting,
    start: Start,
    terms: Entered,
    rank: int,
    wait: Callable[[Mapping[int, str], threading.Condition], bool],
    hosts: HostWays | None = None,
) -> Entry:
    """Gather the others, fill the memory that the replicas of a host share, and let them in.

    Args:
        meeting, rank, hosts: of this task; no `hosts` where all tasks share memory.
        start: the state to begin with.
        terms: the answer to the others, still without the replicas.
        wait: see `Meeting.gather`.

    Raises:
        SharedMemoryError: the machine has not that much memory.
        TooFewReplicasError: raised by `wait`.
    """
    shape = shape_of(start.plan, terms, several_hosts=hosts is not None)
    arena = Arena.make(shape)
    arena.store(start.state.optimizer, version=start.state.version).fill(start.values, start.slots)
    own = enter_message(start.state.generation, start.plan, shape.slots, hosts)
    entered = {**meeting.gather(own, wait), rank: own}
    if hosts is None:
        return begin_here(meeting, terms, arena, sorted(entered), rank)
    terms = hosts.seated(terms, entered)
    here = sorted(seat.rank for seat in terms.seats[0])
    entry = begin_here(meeting, terms, arena, here, rank, hosts)
    hosts.send_values(arena, terms)
    return entry


def begin_here(
    meeting: Meeting,
    terms: Entered,
    arena: Arena,
    members: Sequence[int],
    rank: int,
    hosts: HostWays | None = None,
    joined: Welcome | None = None,
) -> Entry:
    """Let the replicas of this host in; `rank` is this one, and `joined` is set where its host is late."""
    number = 1 if joined is None else joined.step + 1
    if arena.shape.backups:
        arena.record.write(first_fit(terms, members, arena.shape.parts))
    if joined is None:
        arena.begin(members, terms.state.version, terms.state.tally)
    else:
        arena.begin(members, joined.version, joined.tally, number=number, batches=joined.batches)
    nbytes = LEDGER_BYTES + COPIES * arena.shape.values_nbytes
    memory = GrowingMemory.make(nbytes + -nbytes % 4096)
    memory.need(0, HEAD_BYTES)
    ends = pairs(members)
    doorbells = Doorbells(ends.pop(rank))
    ledger = ledger_of(memory)
    calls = CallLog(CallMemory.make(terms.state.dealt.parts))
    copies = os.dup(arena.fd), os.dup(memory.fd), os.dup(arena.rows_fd), os.dup(calls.memory.fd)
    shared = SharedResources(terms, copies, doorbells, leadership_by(ledger, terms.leader), hosts)
    locks = None if hosts is None else first_words(arena, terms, rank, joined)
    meeting.begin(shared, ends)
    return Entry(shared, arena, ledger, calls, rank, number, locks, speaks=True)


def ledger_of(memory: GrowingMemory) -> Ledger:
    words = memoryview(memory)[:HEAD_BYTES].cast("q")
    return Ledger(np.frombuffer(memory, np.uint8), words, memory.need)


class Peers(msgspec.Struct, frozen=True):
    """The connections of a replica that enters.

    Attributes:
        go_on: directs `leader` to the next task, as this one does not lead.
        connect: opens a connection to the replica of a rank, within some seconds.
        waiting: gets the name of what is awaited; None: nothing.
        failure: returns why the task cannot go on; None while it can.
        patience_s: how long tasks that do not lead are asked for one that does.
    """

    leader: Peer
    go_on: Callable[[], None]
    connect: Callable[[int, float], Channel]
    waiting: Callable[[str | None], None]
    failure: Callable[[], Exception | None]
    patience_s: float

    def at(self, name: str, rank: int) -> "Peers":
        """Return the same, with the replica of a rank in the place of the leader."""
        peer = Peer(name, lambda timeout_s: self.connect(rank, timeout_s), patience_s=self.patience_s)
        return replace(self, leader=peer, go_on=lambda: None)


def enter_here(
    meeting: Meeting,
    peers: Peers,
    frame: Frame,
    terms: Entered,
    plan: Plan,
    rank: int,
    hosts: HostWays | None = None,
) -> Entry | None:
    """Map the memory that came with an answer, and join where others began before; None: it has ended.

    Raises:
        PeerError: the leader is gone.
        MembersGoneError: all others are gone too.
    """
    arena_fd, ledger_fd, rows_fd, calls_fd, *sockets = descriptors_of(frame)
    ends = {
        other: socket.socket(fileno=descriptor)
        for other, descriptor in zip(terms.doorbells, sockets, strict=True)
    }
    copies = os.dup(arena_fd), os.dup(ledger_fd), os.dup(rows_fd), os.dup(calls_fd)
    shape = shape_of(plan, terms, several_hosts=hosts is not None)
    arena = Arena.received(arena_fd, rows_fd, shape)
    ledger = ledger_of(GrowingMemory.received(ledger_fd))
    calls = CallLog(CallMemory.received(calls_fd, terms.state.dealt.parts))
    from_round = 1
    if hosts is not None:
        arena.put_address(rank, hosts.address)
    if terms.joins and shape.backups:
        return _enter_beside_backups(meeting, peers, (arena, ledger, calls), copies, terms, rank)
    if terms.joins:
        found = None
        try:
            found = _admitted(arena, ledger, peers, terms.state.generation, rank)
        finally:
            for copy in copies if found is None else ():
                os.close(copy)
        if found is None:
            return None
        from_round, ends = found
    shared = SharedResources(terms, copies, Doorbells(ends), leadership_by(ledger, terms.leader), hosts)
    meeting.store(shared)
    locks = None if hosts is None else Locks(copies[0])
    return Entry(shared, arena, ledger, calls, rank, from_round, locks)


def _enter_beside_backups(
    meeting: Meeting,
    peers: Peers,
    mapped: tuple[Arena, Ledger, CallLog],
    copies: tuple[int, ...],
    terms: Entered,
    rank: int,
) -> Entry | None:
    """Hand out sockets where no step waits for every replica; the driver makes this one a member."""
    arena, ledger, calls = mapped
    ledger.read()
    if CONCLUDED in ledger.entries:
        for copy in copies:
            os.close(copy)
        return None
    doorbells = Doorbells({})
    hand_out(
        doorbells,
        partial(handed, peers, terms.state.generation, rank),
        [other for other in arena.record.read().members if other != rank],
    )
    shared = SharedResources(terms, copies, doorbells, leadership_by(ledger, terms.leader))
    meeting.store(shared)
    return Entry(shared, arena, ledger, calls, rank)


def asked(peers: Peers, message: Enter) -> Frame:
    """Ask for the leader, or raise a `PeerError` if no task is reached or leads for `peers.patience_s`."""
    peers.waiting(peers.leader.name)
    since_s = SYSTEM.now()
    try:
        while True:
            peers.leader.send(message)
            frame = peers.leader.receive()
            if not isinstance(frame.message, NotReady):
                return frame
            if SYSTEM.now() - since_s > peers.patience_s:
                raise PeerLostError(
                    f"no task leads: each that could be reached has said for {peers.patience_s:g} s "
                    "(wait.leader_s) that it does not; has the leader ended? Start the run again from its "
                    "last checkpoint (dtrain launch --resume)"
                )
            peers.leader.close()
            peers.go_on()
            SYSTEM.sleep(_LOOK_S)
    finally:
        peers.waiting(None)
        peers.leader.close()


def _admitted(
    arena: Arena, ledger: Ledger, peers: Peers, generation: int, rank: int
) -> tuple[int, dict[int, socket.socket]] | None:
    """Hand every member a socket; return the first round of this replica, and its sockets.

    None: training has ended. Raises a `MembersGoneError` if none of them lives.
    """
    board = arena.board
    ends: dict[int, socket.socket] = {}
    before = board.admitted[rank]
    peers.waiting("the members, the end of their step")
    try:
        while True:
            ledger.read()
            if CONCLUDED in ledger.entries:
                return None
            if (failure := peers.failure()) is not None:
                raise failure
            admitted = board.admitted[rank]
            if admitted > before and _is_over(arena, admitted - 1):
                members = ranks_in(board.members[admitted % 2])
                if rank in members:
                    return admitted, {other: ends[other] for other in members if other != rank}
                before = admitted
            others = {*ranks_in(board.members[0]), *ranks_in(board.members[1])} - {rank}
            for other in others - ends.keys():
                if (end := handed(peers, generation, rank, other)) is not None:
                    ends[other] = end
            if not any(other in ends and is_open(ends[other]) for other in others):
                for end in ends.values():
                    end.close()
                raise MembersGoneError
            SYSTEM.sleep(_LOOK_S)
    finally:
        peers.waiting(None)


def _is_over(arena: Arena, of_round: int) -> bool:
    members = ranks_in(arena.board.members[of_round % 2])
    return all(arena.board.fin[number] >= of_round for number in range(len(members)))


def handed(peers: Peers, generation: int, rank: int, other: int) -> socket.socket | None:
    """Hand a member one end of a socket; return the other end, or None if the member is gone."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        channel = peers.connect(other, _DOORBELL_S)
        try:
            if isinstance(channel, PassesOn):
                channel.pass_on(Doorbell(generation=generation, rank=rank), [its.fileno()])
            if isinstance(channel.receive(deadline=SYSTEM.now() + _DOORBELL_S).message, Doorbell):
                return mine
        finally:
            channel.close()
    except PeerError:
        pass  # it is gone: the members find that as well
    finally:
        its.close()
    mine.close()
    return None


OTHERS_HERE_S = 30.0
"""The time for which the first replica of a host waits for the others of which it knows."""


def enter_over_hosts(
    meeting: Meeting,
    peers: Peers,
    generation: int,
    plan: Plan,
    optimizer: dict[str, object],
    rank: int,
    hosts: HostWays,
) -> Entry | None:
    """Enter a call of `fit` over hosts that the leader begins, or has begun; None: it has ended.

    Raises:
        PeerError: the leader is gone, or refuses this task.
    """
    leader = peers
    own = enter_message(generation, plan, ArenaShape(plan, optimizer, 1, 1).slots, hosts)
    frame = asked(peers, own)
    while (terms := terms_in(frame, peers, generation)) is not None:
        if frame.passed:
            try:
                return enter_here(meeting, peers, frame, terms, plan, rank, hosts)
            except MembersGoneError:
                peers = leader
                frame = asked(peers, own)  # again: another task may lead by now
                continue
        if terms.concluded:
            return None
        if not terms.joins and hosts.first(terms) == rank:
            return _begin_at_host(meeting, peers, own, terms, plan, rank, hosts)
        found = _asked_on_this_host(peers, own, terms, rank, hosts)
        if found is not None:
            frame, peers = found
        elif not terms.joins:
            raise PeerRefusedError(f"{hosts.name_of(hosts.first(terms))}, which begins on this host, is gone")
        elif (entry := _join(meeting, peers, terms, plan, rank, hosts)) is not None:
            return entry
        else:
            frame = asked(peers, own)  # again: another task may lead by now
    return None


def terms_in(frame: Frame, peers: Peers, generation: int) -> Entered | None:
    """Return the terms of an answer; None: this call has ended. Raise a `PeerRefusedError` for a refusal."""
    said = frame.message
    if isinstance(said, Over) and said.generation > generation:
        return None
    if not isinstance(said, Entered):
        reason = said.reason if isinstance(said, Refusal) else f"answered {type(said).__name__}"
        raise PeerRefusedError(f"{peers.leader.name}: {reason}")
    return said


def _asked_on_this_host(
    peers: Peers, own: Enter, terms: Entered, rank: int, hosts: HostWays
) -> tuple[Frame, Peers] | None:
    """Ask the other replicas of this host, which share memory; None: none of them is there."""
    for other in hosts.others_here(terms, rank):
        at_other = peers.at(hosts.name_of(other), other)
        try:
            frame = asked(at_other, own)
        except PeerError:
            continue
        if frame.passed:
            return frame, at_other
    return None


def _begin_at_host(
    meeting: Meeting, peers: Peers, own: Enter, terms: Entered, plan: Plan, rank: int, hosts: HostWays
) -> Entry:
    """Make the memory of a host without the leader, as its first replica, and let its others in.

    Raises:
        PeerError: the leader has ended.
        SharedMemoryError: the machine has not that much memory.
    """
    arena = Arena.make(shape_of(plan, terms, several_hosts=True))
    peers.waiting(f"{peers.leader.name}, the variables")
    hosts.receive_values(arena, terms, peers.failure)
    awaited = set(hosts.others_here(terms, rank))
    until_s = SYSTEM.now() + OTHERS_HERE_S

    def all_here(there: Mapping[int, str], more: threading.Condition) -> bool:
        peers.waiting(", ".join(hosts.name_of(each) for each in sorted(awaited - there.keys())) or None)
        if awaited <= there.keys() or SYSTEM.now() >= until_s:
            return True
        more.wait(_LOOK_S)
        return False

    meeting.gathers = True
    try:
        there = meeting.gather(own, all_here)
    finally:
        meeting.gathers = False
        peers.waiting(None)
    return begin_here(meeting, terms, arena, sorted({rank, *there}), rank, hosts)


def _join(
    meeting: Meeting, peers: Peers, terms: Entered, plan: Plan, rank: int, hosts: HostWays
) -> Entry | None:
    """Take part with a new host, once the leader welcomes it; None: it has not for a while.

    Raises:
        PeerError: this task cannot go on.
        SharedMemoryError: the machine has not that much memory.
    """
    if (failure := peers.failure()) is not None:
        raise failure
    peers.waiting("the other hosts, the end of their step")
    try:
        with hosts.welcomed(terms) as (welcome, stream):
            arena = Arena.make(shape_of(plan, terms, several_hosts=True))
            hosts.receive(arena, welcome.version, stream)
    except (WaitTimeoutError, PeerError):
        return None
    finally:
        peers.waiting(None)
    terms = msgspec.structs.replace(terms, seats=welcome.seats)
    return begin_here(meeting, terms, arena, [rank], rank, hosts, welcome)
