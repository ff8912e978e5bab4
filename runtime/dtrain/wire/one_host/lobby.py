"""The connections to a server's Unix socket that have not proven yet that they belong to the run.

One thread hears them all. Each has a few seconds for its two packets, at most `PLACES` wait at a time, and
for one more the oldest has to go: a process that opens connections and says nothing keeps no task out.
"""

import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from dtrain.errors import PeerRefusedError
from dtrain.messages import PROTOCOL_VERSION, Hello, Refusal
from dtrain.wire.handshake import (
    GREETING_LIMIT_BYTES,
    Door,
    Greeting,
    encode_greeting,
    only_version,
    read_greeting,
)

PLACES = 256
STAY_S = 10.0
_RETRY_S = 0.05
_CREDENTIALS = struct.Struct("3i")
_PEER = "a process on this host"


@dataclass
class _Guest:
    """One that has not proven itself.

    Attributes:
        until_s: when it has to go.
        challenged: whether it has been answered once, so that its proof comes next.
    """

    connection: socket.socket
    until_s: float
    challenged: bool = False


class Lobby:
    """Lets tasks in, from its own thread, until the listener is shut down."""

    def __init__(
        self, listener: socket.socket, door: Door, admit: Callable[[socket.socket, Hello], None]
    ) -> None:
        """Begin.

        Args:
            listener: a listening SOCK_SEQPACKET socket; who shuts it down ends the thread.
            door: decides.
            admit: takes a connection over that has been let in; it does not block.
        """
        self._listener = listener
        self._door = door
        self._admit = admit
        self._guests: OrderedDict[int, _Guest] = OrderedDict()
        self._ready = select.epoll()
        self._stopped = threading.Event()
        listener.setblocking(False)
        self._ready.register(listener, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="local connections", daemon=True)
        self._thread.start()

    def stop(self, limit_s: float) -> None:
        """Close the connections that have not been let in."""
        self._stopped.set()
        with contextlib.suppress(OSError):  # it has been stopped before
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(limit_s)

    def _run(self) -> None:
        while not self._stopped.is_set():
            first = next(iter(self._guests.values()), None)
            wait_s = None if first is None else max(0.0, first.until_s - time.monotonic())
            for descriptor, _ in self._ready.poll(wait_s):
                if descriptor == self._listener.fileno():
                    self._accept()
                elif (guest := self._guests.get(descriptor)) is not None:
                    self._hear(guest)
            now_s = time.monotonic()
            while self._guests and next(iter(self._guests.values())).until_s <= now_s:
                self._drop_oldest()
        while self._guests:
            self._drop_oldest()
        self._ready.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            self._stopped.wait(_RETRY_S)  # one that has gone again, or no descriptor left for it
            return
        if user_of(connection) != os.getuid():
            connection.close()
            return
        if len(self._guests) >= PLACES:
            self._drop_oldest()
        connection.setblocking(False)
        self._guests[connection.fileno()] = _Guest(connection, time.monotonic() + STAY_S)
        self._ready.register(connection, select.EPOLLIN)

    def _hear(self, guest: _Guest) -> None:
        """Take the next packet of a guest, who stays, is let in, or has to go."""
        try:
            packet = guest.connection.recv(GREETING_LIMIT_BYTES)
            if packet and not guest.challenged:
                self._send(guest, self._door.challenge(packet, _PEER))
                guest.challenged = True
            elif packet:
                hello = self._door.admit(packet, _PEER)
                self._send(guest, hello)
                self._forget(guest)
                self._admit(guest.connection, hello)
            else:
                self._drop(guest)
        except PeerRefusedError as error:
            with contextlib.suppress(OSError):
                self._send(guest, _refused(packet, error))
            self._drop(guest)
        except OSError:  # it has gone
            self._drop(guest)

    @staticmethod
    def _send(guest: _Guest, message: Greeting) -> None:
        guest.connection.send(encode_greeting(message))

    def _drop_oldest(self) -> None:
        self._drop(next(iter(self._guests.values())))

    def _drop(self, guest: _Guest) -> None:
        self._forget(guest)
        guest.connection.close()

    def _forget(self, guest: _Guest) -> None:
        self._ready.unregister(guest.connection)
        self._guests.pop(guest.connection.fileno())


def _refused(packet: bytes, error: PeerRefusedError) -> Greeting:
    """Return the answer to a guest who has to go: to one of another version, this one's, in a form that all
    versions read.
    """
    with contextlib.suppress(PeerRefusedError):
        said = read_greeting(packet)
        if isinstance(said, Hello) and said.version != PROTOCOL_VERSION:
            return only_version()
    return Refusal(reason=str(error))


def user_of(connection: socket.socket) -> int:
    """Return the user id of the process at the other end of a Unix socket, as the kernel knows it."""
    _, user, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return int(user)
