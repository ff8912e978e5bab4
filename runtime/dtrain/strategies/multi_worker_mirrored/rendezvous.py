"""The beginning of a call of `fit`: the leader gathers the other replicas, and those of a host share memory.

A replica that does not lead enters on the leader's host or on another one, by the terms that the leader
tells to all.
"""

import socket
import threading
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.collectives.ledger import HEAD_BYTES, Ledger
from dtrain.errors import PeerError, PeerLostError, PeerRefusedError
from dtrain.messages import Enter, Entered, NotifySocket, NotReady, Over, Refusal
from dtrain.parameters.placement import Plan
from dtrain.process.clock import SYSTEM
from dtrain.strategies.multi_worker_mirrored.hosts import HostWays
from dtrain.wire.channel import Channel, PassesOn
from dtrain.wire.frames import Frame
from dtrain.wire.one_host.shared_memory import GrowingMemory
from dtrain.wire.peer import Peer

LEDGER_BYTES = 1 << 20
COPIES = 8
"""The ledger has room for so many copies of the variables: callbacks keep some, and each half has all."""
SOCKET_ALONE = "127.0.0.1:1"
"""The address of a task of this host that listens nowhere."""
_LOOK_S = 0.02
_NOTIFY_SOCKET_S = 5.0


class MembersGoneError(Exception):
    """All members of a call of `fit` are gone before they have let this replica in."""


def task_of(cluster: ClusterSpec, rank: int) -> TaskId:
    """Return the task of a rank, also of a worker that has joined."""
    replicas = cluster.replicas()
    if rank < len(replicas):
        return replicas[rank]
    return TaskId(Role.WORKER, cluster.first_joined + rank - len(replicas))


def enter_message(generation: int, plan: Plan, slots: Sequence[str], hosts: HostWays | None) -> Enter:
    message = Enter(generation=generation, plan_hash=plan.hash, slots=tuple(slots))
    return message if hosts is None else hosts.signed(message)


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
        lives: returns whether the replica of a rank may live: one that is stopped does.
    """

    leader: Peer
    go_on: Callable[[], None]
    connect: Callable[[int, float], Channel]
    waiting: Callable[[str | None], None]
    failure: Callable[[], Exception | None]
    patience_s: float
    lives: Callable[[int], bool]

    def at(self, name: str, rank: int) -> "Peers":
        """Return the same, with the replica of a rank in the place of the leader."""
        peer = Peer(name, lambda timeout_s: self.connect(rank, timeout_s), patience_s=self.patience_s)
        return replace(self, leader=peer, go_on=lambda: None)


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
        channel = peers.connect(other, _NOTIFY_SOCKET_S)
        try:
            if isinstance(channel, PassesOn):
                channel.pass_on(NotifySocket(generation=generation, rank=rank), [its.fileno()])
            if isinstance(channel.receive(deadline=SYSTEM.now() + _NOTIFY_SOCKET_S).message, NotifySocket):
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
