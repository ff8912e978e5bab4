"""The way by which a task reaches any other task of its run, and the one that leads.

    auto    through a Unix socket and shared memory where both are on one host, else over gRPC
    local   the former, or a clear error
    grpc    the latter

Two tasks are on one host if the server's socket can be reached from here. Its name travels over gRPC; where
the server's address is loopback a task of the same run knows it, so that gRPC, which takes 5 MB a process and
wakes it 40 times a second, is not even started.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from dtrain.cluster import AddressBook, TaskId
from dtrain.cluster.hosts import is_loopback
from dtrain.config.choices import Transport
from dtrain.errors import PeerError, PeerLostError, PeerRefusedError, SharedMemoryError
from dtrain.process.assignment import TaskAssignment
from dtrain.process.clock import SYSTEM, Clock
from dtrain.types import Array
from dtrain.variables import DTYPE_BYTES
from dtrain.wire.addresses import SILENT, Tell, not_reached, obstacle, reach, silence
from dtrain.wire.channel import Channel
from dtrain.wire.interruptible import in_own_thread
from dtrain.wire.one_host import shared_memory
from dtrain.wire.one_host.local import LocalChannel, socket_name
from dtrain.wire.one_host.packets import SMALL_BYTES
from dtrain.wire.one_host.shared_memory import shared_arrays
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.slow_link import through_link

_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.1
"""How soon to look again for a server that is not up, at first and later."""


def connect(
    peer: str,
    address: str,
    credentials: Credentials,
    timeout_s: float,
    transport: Transport = Transport.AUTO,
    tell: Tell = lambda reason: None,
) -> Channel:
    """Open a connection to `peer` at `address`, which may take `timeout_s` to accept it, and then to
    answer. `tell` is called with the reason while it is not reached, and with None when it is.
    """
    on_this_host = transport != Transport.GRPC and is_loopback(address) and not shared_memory.shortage
    channel = _met(peer, address, credentials, timeout_s, tell) if on_this_host else None
    if channel is None:
        tls = credentials.tls if credentials.tls and credentials.tls.covers(address) else None
        if not on_this_host or tls:  # a name server that does not answer cannot be interrupted
            look = tls.checker(peer, address) if tls else None
            in_own_thread(partial(reach, peer, address, timeout_s, tell, look), "connecting")
        tell(silence(address, tls=tls is not None))
        channel = _by_grpc(peer, address, credentials, timeout_s, transport)
    tell(None)
    return channel


def _by_grpc(
    peer: str, address: str, credentials: Credentials, timeout_s: float, transport: Transport
) -> Channel:
    # 5 MB and 70 ms that a task does not take whose servers are met.
    from dtrain.wire.grpc_client import GrpcChannel

    channel = GrpcChannel(peer, address, credentials, timeout_s)
    if transport == Transport.GRPC:
        return channel
    try:
        name = channel.local_name(timeout_s)
        reason = shared_memory.shortage or ("" if name else f"{peer} offers no way for tasks on its host")
        if not reason:
            try:
                local = LocalChannel(peer, name, credentials)
            except (PeerLostError, PeerRefusedError) as error:
                reason = str(error)
            else:
                channel.close()
                return local
        if transport == Transport.LOCAL:
            raise PeerRefusedError(
                f"transport: local cannot lead to {peer} at {address}: {reason}; use auto or grpc"
            )
    except BaseException:
        channel.close()
        raise
    return channel


def heartbeat_transport(transport: Transport, address: str) -> Transport:
    return Transport.AUTO if transport != Transport.GRPC and is_loopback(address) else Transport.GRPC


def _met(peer: str, address: str, credentials: Credentials, timeout_s: float, tell: Tell) -> Channel | None:
    """Return a connection to a server on this host by its socket's name; None if it has no such socket."""
    name = socket_name(peer, credentials)
    deadline_s = time.monotonic() + timeout_s
    pause_s = _PAUSE_S
    while True:
        reason = obstacle(address)  # its own socket has been there for longer
        tell(reason or SILENT)
        try:
            return LocalChannel(peer, name, credentials, max(deadline_s - time.monotonic(), _PAUSE_S))
        except (PeerLostError, PeerRefusedError):
            left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise not_reached(peer, address, timeout_s, reason or SILENT)
        if reason is None:
            return None  # whatever the reason is, the answer comes over gRPC
        time.sleep(min(pause_s, left_s))
        pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)


def arrays_to_send(transport: Transport, described: Sequence[tuple[str, int]]) -> list[Array]:
    """Return new arrays of zeros, one of each (dtype, elements), for data that is sent again and again,
    in shared memory where a peer on this host may read them in place.
    """
    nbytes = sum(DTYPE_BYTES[dtype] * size for dtype, size in described)
    if transport != Transport.GRPC and nbytes > SMALL_BYTES:
        with contextlib.suppress(SharedMemoryError):  # the way over gRPC is left
            return shared_arrays(described)
    return [np.zeros(size, dtype) for dtype, size in described]


ConnectTask = Callable[[TaskId, float], Channel]
"""Opens a connection to a task, waiting at most the given seconds."""
Unreached = Callable[[str, str, str | None], None]
"""Told the name and the address of a task, and why it is not reached; None once it is."""


class Connector:
    """Opens connections of one task."""

    def __init__(
        self,
        assignment: TaskAssignment,
        credentials: Credentials,
        unreached: Unreached,
        transport: Transport,
        book: AddressBook,
    ) -> None:
        self.book = book
        self._assignment = assignment
        self._credentials = credentials
        self._unreached = unreached
        self._transport = transport

    def connect(self, task: TaskId, timeout_s: float) -> Channel:
        return self._open(task, timeout_s, self._transport)

    def connect_heart(self, task: TaskId, timeout_s: float) -> Channel:
        return self._open(task, timeout_s, heartbeat_transport(self._transport, self.book.address(task)))

    def _open(self, task: TaskId, timeout_s: float, transport: Transport) -> Channel:
        name = str(task)
        address = self.book.address(task)
        tell = partial(self._unreached, name, address)
        own = self._assignment
        channel = connect(name, address, self._credentials, timeout_s, transport, tell)
        return through_link(channel, own.spec.simulate, str(own.task))


ATTEMPT_S = 1.0
"""The longest attempt to reach a task that may be gone; one on this host says so at once."""
ATTEMPT_S_A_TASK = 0.02
"""Of hundreds that begin together, each waits until the leader has taken the others in."""
COMES_S = 2.0
"""The first leader may take so long to appear before others are asked."""


class LeaderFinder:
    """Asks the task that led last, and then the others by rank, until one leads.

    `task` is asked next; `reached` is the one to which the last connection was opened.
    """

    def __init__(self, candidates: Sequence[TaskId], connect: ConnectTask, clock: Clock = SYSTEM) -> None:
        self._candidates = candidates
        self._connect = connect
        self._clock = clock
        self._others_from_s = clock.now() + COMES_S
        self._attempt_s = max(ATTEMPT_S, ATTEMPT_S_A_TASK * len(candidates))
        self.task = self.reached = candidates[0]

    def connect(self, timeout_s: float) -> Channel:
        try:
            channel = self._connect(self.task, min(timeout_s, self._attempt_s))
        except PeerError:
            if self._clock.now() >= self._others_from_s:
                self.go_on()
            raise
        self._others_from_s, self.reached = 0.0, self.task
        return channel

    def go_on(self, leads: str | None = None) -> None:
        """Turn to the task that leads, as another one says; else to the next one."""
        names = list(map(str, self._candidates))
        place = names.index(leads) if leads in names else names.index(str(self.task)) + 1
        self.task = self._candidates[place % len(names)]

    def led_by_rank(self, rank: int) -> None:
        self.led_by(self._candidates[min(rank, len(self._candidates) - 1)])

    def led_by(self, task: TaskId) -> None:
        self.task = task if task in self._candidates else self._candidates[0]
        self._others_from_s = 0.0
