"""The way between two tasks of one host: a Unix socket, and shared memory for what is large. See `packets`.

The socket's name is abstract: it lies in no folder, and ends with the server. A task of the same run knows
it, and it travels over gRPC to whom the server knows; the hello is said on the socket, where the kernel
vouches besides that both ends are one user's.
"""

import os
import secrets
import select
import socket
import struct
import threading
import time
import traceback
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from dtrain.errors import PeerLostError, PeerRefusedError, SharedMemoryError
from dtrain.messages import AnyMessage, Hello, Refusal
from dtrain.process import acceptor
from dtrain.process.acceptor import Acceptor, Examination, when_ready
from dtrain.process.life_line import peer_process
from dtrain.types import Array
from dtrain.wire.channel import Handler, silent
from dtrain.wire.frames import UNKNOWN, Frame, Payload, written
from dtrain.wire.handshake import ServerHandshake, last_proof, read_greeting
from dtrain.wire.interruptible import LOOK_S
from dtrain.wire.one_host import shared_memory
from dtrain.wire.one_host.packets import SMALL_BYTES, PacketSocket
from dtrain.wire.security.credentials import Credentials

HELLO_LIMIT_S = 10.0
STOP_LIMIT_S = 0.5
_TIME = struct.Struct("2l")
_nbytes = attrgetter("nbytes")


class LocalChannel:
    """The client end. Blocks that lie in this process's shared memory are sent without a copy."""

    def __init__(
        self, peer: str, name: str, credentials: Credentials, timeout_s: float = HELLO_LIMIT_S
    ) -> None:
        """Connect and shake hands; raise a `PeerLostError` if no such server is here or answers, and a
        `PeerRefusedError` if it is another user's, or does not want this task.
        """
        self.peer = peer
        self._aborted: str | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._packets = PacketSocket(self._socket)
        try:
            self._socket.setblocking(False)  # a server that accepts nothing is not waited for
            self._socket.connect(_abstract(name))
            if peer_process(self._socket)[1] != os.getuid():
                raise PeerRefusedError(f"{peer}'s socket on this host belongs to another user")
            self._socket.settimeout(timeout_s)
            self._shake_hands(credentials)
            self._socket.settimeout(None)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIME.pack(0, int(LOOK_S * 1e6)))
        except OSError as error:
            self.close()
            raise PeerLostError(f"{peer} is not on this host ({error.strerror or error})") from None
        except BaseException:
            self.close()
            raise

    def _shake_hands(self, credentials: Credentials) -> None:
        proof = last_proof(self.peer, self.peer, credentials, self._exchange)
        answer = read_greeting(self._exchange(proof))
        if isinstance(answer, Refusal):
            raise PeerRefusedError(f"{self.peer}: {answer.reason}")

    def _exchange(self, said: bytes) -> bytes:
        self._socket.send(said)
        told = self._socket.recv(acceptor.ONE_HOST_LIMITS.message_bytes)
        if not told:
            raise self._lost(None)
        return told

    @property
    def bytes_sent(self) -> int:
        return self._packets.bytes_sent

    @property
    def bytes_received(self) -> int:
        return self._packets.bytes_received

    def send(self, message: AnyMessage, blocks: Sequence[Array] = ()) -> None:
        """Send as `Channel.send` says; whatever prevents it is raised by `receive`."""
        try:
            self._packets.send(message, blocks)
        except (OSError, SharedMemoryError) as error:
            self.abort(str(self._lost(error)))

    def pass_on(self, message: AnyMessage, descriptors: Sequence[int]) -> None:
        try:
            self._packets.pass_on(message, descriptors)
        except (OSError, SharedMemoryError) as error:
            self.abort(str(self._lost(error)))

    def receive(self, into: Sequence[Array] = (), deadline: float | None = None) -> Frame:
        while True:
            if deadline is not None:
                self._wait_until(deadline)
            try:
                frame = self._packets.receive(UNKNOWN)
                break
            except BlockingIOError:  # each `LOOK_S`, see there
                continue
            except OSError as error:
                raise self._lost(error) from None
        if frame is None:
            raise self._lost(None)
        if not frame.blocks or sum(map(_nbytes, frame.blocks)) > SMALL_BYTES:
            return frame
        return Frame(frame.message, written(frame.blocks, into), passed=frame.passed)

    def _wait_until(self, deadline: float) -> None:
        if self._socket.fileno() < 0:
            return  # it has been closed, which `receive` notices
        ready = select.poll()
        ready.register(self._socket, select.POLLIN)
        left_s = deadline - time.monotonic()
        while not ready.poll(1000 * max(0.0, min(LOOK_S, left_s))):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise silent(self.peer)

    def _lost(self, error: Exception | None) -> PeerLostError:
        why = (
            error.strerror or error if isinstance(error, OSError) else error or "it has ended the connection"
        )
        return PeerLostError(self._aborted or f"lost {self.peer} on this host ({why})")

    def abort(self, reason: str) -> None:
        self._aborted = self._aborted or reason
        self._packets.close()

    def close(self) -> None:
        self._packets.close()
        self._socket.close()


class LocalCaller:
    """The serving end of one connection."""

    def __init__(self, hello: Hello, packets: PacketSocket) -> None:
        self.hello = hello
        self._packets = packets

    @property
    def reading(self) -> Sequence[Array]:
        return self._packets.lent

    def has_read(self) -> None:
        self._packets.lent = ()

    def send(self, message: AnyMessage, blocks: Sequence[Array] = (), payload: Payload | None = None) -> None:
        """Answer; or close the connection of a peer that does not read its answers."""
        try:
            self._packets.send(message, blocks)
        except (OSError, SharedMemoryError):
            self._packets.close()

    def pass_on(self, message: AnyMessage, descriptors: Sequence[int]) -> None:
        try:
            self._packets.pass_on(message, descriptors)
        except (OSError, SharedMemoryError):
            self._packets.close()


class _Talk(NamedTuple):
    connection: socket.socket
    packets: PacketSocket
    caller: LocalCaller


class LocalService:
    """Serves one handler to the tasks of this host until `stop`; one thread serves all connections.

    A handler takes one message at a time: threads would wait for each other, and at small steps that is most
    of what they do.
    """

    def __init__(self, handler: Handler, credentials: Credentials, name: str = "") -> None:
        """Serve under a name that the run's tasks know, or a random one where it is in use or empty."""
        self._handler = handler
        self._open: set[PacketSocket] = set()
        self._talks: dict[int, _Talk] = {}
        self._ready = select.epoll()
        self._stopped = threading.Event()
        self._name = f"dtrain-{secrets.token_hex(16)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._listener.bind(_abstract(name or self._name))
            self._name = name or self._name
        except OSError:
            self._listener.bind(_abstract(self._name))
        self._listener.listen(1024)
        self._ready.register(self._listener, 0)  # its end is heard
        self._hearing = threading.Thread(target=self._serve, name="local messages", daemon=True)
        self._hearing.start()
        self._handshake = ServerHandshake(credentials, self._refuse)
        self._acceptor = Acceptor(self._listener, acceptor.ONE_HOST_LIMITS, self._examine, _own_process)

    def name(self) -> str:
        return "" if shared_memory.shortage else self._name

    def stop(self) -> None:
        self._stopped.set()
        self._acceptor.stop(STOP_LIMIT_S)
        for packets in list(self._open):
            packets.close()
        self._hearing.join(STOP_LIMIT_S)
        self._listener.close()

    def _refuse(self, hello: Hello) -> str | None:
        return shared_memory.shortage or self._handler.refuse(hello)

    def _examine(self, connection: socket.socket) -> Examination:
        receive = partial(when_ready, partial(_packet, connection))
        hello = yield from self._handshake.receive_hello(receive, connection.send, "a process on this host")
        return partial(self._admit, connection, hello)

    def _admit(self, connection: socket.socket, hello: Hello) -> None:
        packets = PacketSocket(connection)
        self._open.add(packets)
        self._talks[connection.fileno()] = _Talk(connection, packets, LocalCaller(hello, packets))
        self._ready.register(connection, select.EPOLLIN)

    def _serve(self) -> None:
        """Receive one message after the other; at the end close the connections that are still there."""
        while not self._stopped.is_set() or self._talks:
            for descriptor, _ in self._ready.poll():
                talk = self._talks.get(descriptor)
                if talk is not None and not self._goes_on(talk):
                    self._ready.unregister(descriptor)
                    self._talks.pop(descriptor)
                    self._open.discard(talk.packets)
                    self._handler.disconnected(talk.caller)
                    talk.connection.close()

    def _goes_on(self, talk: _Talk) -> bool:
        try:
            frame = talk.packets.receive(self._handler.limits(talk.caller.hello))
            if frame is not None:
                self._handler.received(talk.caller, frame)
            return frame is not None
        except BlockingIOError:
            return True
        except PeerRefusedError as error:
            talk.caller.send(Refusal(reason=str(error)))
        except (OSError, SharedMemoryError):
            pass  # the client is gone, or comes again over gRPC
        except Exception:  # a thread of its own would end with it as well, and not the others
            traceback.print_exc()
        return False


def socket_name(server: str, credentials: Credentials) -> str:
    """Return the name of a server's socket, which all users of a machine can read: a keyed hash, unless a
    person's secret could be guessed from it.
    """
    hello = credentials.hello
    return f"dtrain-{credentials.keyring.named(server, hello.run_id, hello.cluster_hash)}"


def is_served(server: str, credentials: Credentials) -> bool:
    """Return whether a process of this host listens at a server's socket; one that is stopped does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        try:
            probe.connect(_abstract(socket_name(server, credentials)))
        except BlockingIOError:  # more connections wait there than it accepts
            return True
        except OSError:
            return False
    return True


def _own_process(connection: socket.socket) -> int:
    process, user = peer_process(connection)
    if user != os.getuid():
        raise PermissionError
    return process


def _packet(connection: socket.socket) -> bytes:
    packet = connection.recv(acceptor.ONE_HOST_LIMITS.message_bytes)
    if not packet:
        raise PeerLostError("the connection was ended within the handshake")
    return packet


def _abstract(name: str) -> bytes:
    return b"\0" + name.encode()
