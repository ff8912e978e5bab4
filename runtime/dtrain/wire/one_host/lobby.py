"""The connections to a server's Unix socket that have not proven yet that they belong to the run; see
`wire.security.waiting_room`. Each has two packets to send, and those of other users go at once.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from dtrain.errors import PeerRefusedError
from dtrain.messages import Hello
from dtrain.process.living import peer_process
from dtrain.wire.handshake import (
    GREETING_LIMIT_BYTES,
    Door,
    Greeting,
    encode_greeting,
    refused,
)
from dtrain.wire.security.waiting_room import Guest, WaitingRoom

PLACES = 256
STAY_S = 10.0
_PEER = "a process on this host"


class Lobby(WaitingRoom[Guest]):
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
        self._door = door
        self._admit = admit
        super().__init__(listener, "local connections")

    @property
    def places(self) -> int:
        """See `WaitingRoom.places`."""
        return PLACES

    def _receive(self, connection: socket.socket, place: Any) -> Guest | None:
        if peer_process(connection)[1] != os.getuid():
            return None
        return Guest(connection, time.monotonic() + STAY_S)

    def _hear(self, guest: Guest) -> None:
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
                self._send(guest, refused(packet, error))
            self._drop(guest)
        except OSError:  # it has gone
            self._drop(guest)

    @staticmethod
    def _send(guest: Guest, message: Greeting) -> None:
        guest.connection.send(encode_greeting(message))
