"""The connections to a listener for streams that have not proven yet that they belong to the run; see
`wire.security.waiting_room`. A packet of at most 4 KiB is kept for each.
"""

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dtrain.errors import PeerLostError, PeerRefusedError
from dtrain.messages import Hello
from dtrain.wire.by_tcp.greetings import Packets, packed
from dtrain.wire.handshake import Door, Greeting, encode_greeting, refused
from dtrain.wire.security.waiting_room import Guest, WaitingRoom

if TYPE_CHECKING:  # it loads ssl, which a task without TLS does not need
    import ssl

    from dtrain.wire.by_tcp.encryption import ServerEnd

PLACES = 64
STAY_S = 10.0
NAME_LIMIT_BYTES = 200

Admit = Callable[[socket.socket, Hello, str], None]
"""Takes a connection over that has been let in, with the name of its stream; it does not block."""


@dataclass(kw_only=True)
class _Guest(Guest):
    """One that has not proven itself.

    Attributes:
        encrypted: the connection, while TLS has not been agreed upon.
        proof: once it has come, so that the name of its stream comes next.
        names: in its certificate, once TLS has been agreed upon.
    """

    peer: str
    packets: Packets
    encrypted: "ssl.SSLSocket | None"
    proof: bytes | None = None
    names: list[str] | None = None


class Lobby(WaitingRoom[_Guest]):
    """Lets tasks in, from its own thread, until `stop`."""

    def __init__(
        self, listener: socket.socket, door: Door, encryption: "ServerEnd | None", admit: Admit
    ) -> None:
        """Begin.

        Args:
            listener: a listening TCP socket.
            door: decides.
            encryption: of connections to this address; None: they have no TLS.
            admit: see there.
        """
        self._door = door
        self._encryption = encryption
        self._admit = admit
        self._waits: tuple[type[OSError], ...] = (BlockingIOError,)
        if encryption is not None:
            from dtrain.wire.by_tcp.encryption import WAITS

            self._waits += WAITS
        super().__init__(listener, "streams that begin")

    @property
    def places(self) -> int:
        """See `WaitingRoom.places`."""
        return PLACES

    def _receive(self, connection: socket.socket, place: Any) -> _Guest:
        encrypted = None
        if self._encryption is not None:
            connection = encrypted = self._encryption.wrap(connection)
        return _Guest(
            connection,
            time.monotonic() + STAY_S,
            peer=f"{place[0]}:{place[1]}",
            packets=Packets(connection),
            encrypted=encrypted,
        )

    def _hear(self, guest: _Guest) -> None:
        """Take what has come of a guest, who stays, is let in, or has to go."""
        packet = b""
        try:
            if guest.encrypted is not None:
                guest.encrypted.do_handshake()
                from dtrain.wire.by_tcp.encryption import names_of

                guest.names = names_of(guest.encrypted)
                guest.encrypted = None
            while True:
                packet = guest.packets.next()
                if self._let_in(guest, packet):
                    return
        except self._waits:
            return
        except PeerRefusedError as error:
            with contextlib.suppress(OSError):
                self._send(guest, refused(guest.proof or packet, error))
            self._drop(guest)
        except (OSError, PeerLostError):
            self._drop(guest)

    def _let_in(self, guest: _Guest, packet: bytes) -> bool:
        """Take a packet; return whether it was the last one that was needed."""
        if not guest.challenged:
            self._send(guest, self._door.challenge(packet, guest.peer))
            guest.challenged = True
            return False
        if guest.proof is None:
            guest.proof = packet
            return False
        hello = self._door.admit(guest.proof, guest.peer, guest.names)
        if len(packet) > NAME_LIMIT_BYTES:
            raise PeerRefusedError(f"the name of a stream has {len(packet)} bytes")
        self._send(guest, hello)
        self._forget(guest)
        self._admit(guest.connection, hello, packet.decode(errors="replace"))
        return True

    @staticmethod
    def _send(guest: _Guest, message: Greeting) -> None:
        guest.connection.send(packed(encode_greeting(message)))
