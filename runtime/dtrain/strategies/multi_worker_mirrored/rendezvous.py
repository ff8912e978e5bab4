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
from dtrain.collectives.board import HEAD_BYTES, Ledger
from dtrain.config.training_section import SPARE_RANKS
from dtrain.errors import PeerError, PeerLostError, PeerRefusedError
from dtrain.messages import Doorbell, Enter, Entered, NotReady, Over, Refusal
from dtrain.parameters.placement import Plan
from dtrain.process.clock import SYSTEM
from dtrain.roles.chief.start import Start
from dtrain.roles.collective.arena import Arena, ArenaShape
from dtrain.roles.collective.calls import CallLog, CallMemory
from dtrain.roles.collective.meeting import Meeting, SharedResources, descriptors_of
from dtrain.strategies.multi_worker_mirrored.backups import first_fit, hand_out, places_of
from dtrain.strategies.multi_worker_mirrored.hosts import HostWays
from dtrain.strategies.multi_worker_mirrored.orders import CONCLUDED, leadership_by
from dtrain.wire.channel import Channel, PassesOn
from dtrain.wire.frames import Frame
from dtrain.wire.one_host.shared_memory import GrowingMemory
from dtrain.wire.one_host.synchronization import Doorbells, pairs
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
    """

    shared: SharedResources
    arena: Arena
    ledger: Ledger
    calls: CallLog
    rank: int


def task_of(cluster: ClusterSpec, rank: int) -> TaskId:
    """Return the task of a rank, also of a worker that has joined."""
    replicas = cluster.replicas()
    if rank < len(replicas):
        return replicas[rank]
    return TaskId(Role.WORKER, cluster.first_joined + rank - len(replicas))


def enter_message(generation: int, plan: Plan, slots: Sequence[str], hosts: HostWays | None) -> Enter:
    message = Enter(generation=generation, plan_hash=plan.hash, slots=tuple(slots))
    return message if hosts is None else hosts.signed(message)


def shape_of(plan: Plan, terms: Entered) -> ArenaShape:
    parts = places_of(terms.state.dealt.parts, terms.ranks - SPARE_RANKS)
    return ArenaShape(plan, terms.state.optimizer, parts=parts, ranks=terms.ranks, backups=True)


def begin_as_leader(
    meeting: Meeting,
    start: Start,
    terms: Entered,
    rank: int,
    wait: Callable[[Mapping[int, str], threading.Condition], bool],
) -> Entry:
    """Gather the others, fill the memory that the replicas share, and let them in.

    Args:
        meeting, rank: of this task.
        start: the state to begin with.
        terms: the answer to the others.
        wait: see `Meeting.gather`.

    Raises:
        SharedMemoryError: the machine has not that much memory.
        TooFewReplicasError: raised by `wait`.
    """
    shape = shape_of(start.plan, terms)
    arena = Arena.make(shape)
    arena.store(start.state.optimizer, version=start.state.version).fill(start.values, start.slots)
    own = enter_message(start.state.generation, start.plan, shape.slots, None)
    members = sorted({*meeting.gather(own, wait), rank})
    arena.record.write(first_fit(terms, members, arena.shape.parts))
    nbytes = LEDGER_BYTES + COPIES * arena.shape.values_nbytes
    memory = GrowingMemory.make(nbytes + -nbytes % 4096)
    ends = pairs(members)
    doorbells = Doorbells(ends.pop(rank))
    ledger = ledger_of(memory)
    calls = CallLog(CallMemory.make(terms.state.dealt.parts))
    copies = os.dup(arena.fd), os.dup(memory.fd), os.dup(arena.rows_fd), os.dup(calls.memory.fd)
    shared = SharedResources(terms, copies, doorbells, leadership_by(ledger, terms.leader))
    meeting.begin(shared, ends)
    return Entry(shared, arena, ledger, calls, rank)


def ledger_of(memory: GrowingMemory) -> Ledger:
    memory.need(0, HEAD_BYTES)
    words = memoryview(memory)[:HEAD_BYTES].cast("q")
    return Ledger(np.frombuffer(memory, np.uint8), words, memory.need, threading.RLock())


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
    meeting: Meeting, peers: Peers, frame: Frame, terms: Entered, plan: Plan, rank: int
) -> Entry | None:
    """Map the memory that came with an answer, and join where others began before; None: it has ended.

    Raises:
        PeerError: the leader is gone.
    """
    arena_fd, ledger_fd, rows_fd, calls_fd, *sockets = descriptors_of(frame)
    ends = {
        other: socket.socket(fileno=descriptor)
        for other, descriptor in zip(terms.doorbells, sockets, strict=True)
    }
    copies = os.dup(arena_fd), os.dup(ledger_fd), os.dup(rows_fd), os.dup(calls_fd)
    arena = Arena.received(arena_fd, rows_fd, shape_of(plan, terms))
    ledger = ledger_of(GrowingMemory.received(ledger_fd))
    calls = CallLog(CallMemory.received(calls_fd, terms.state.dealt.parts))
    if terms.joins:
        return _enter_beside_backups(meeting, peers, (arena, ledger, calls), copies, terms, rank)
    shared = SharedResources(terms, copies, Doorbells(ends), leadership_by(ledger, terms.leader))
    meeting.store(shared)
    return Entry(shared, arena, ledger, calls, rank)


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


def terms_in(frame: Frame, peers: Peers, generation: int) -> Entered | None:
    """Return the terms of an answer; None: this call has ended. Raise a `PeerRefusedError` for a refusal."""
    said = frame.message
    if isinstance(said, Over) and said.generation > generation:
        return None
    if not isinstance(said, Entered):
        reason = said.reason if isinstance(said, Refusal) else f"answered {type(said).__name__}"
        raise PeerRefusedError(f"{peers.leader.name}: {reason}")
    return said
