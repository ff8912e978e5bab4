"""The packets of the handshake on a stream of bytes: a length (u16, little endian), then so many bytes."""

import socket
import struct
import time

from dtrain.errors import PeerLostError, PeerRefusedError
from dtrain.process.pending_limits import GREETING_LIMIT_BYTES

_LENGTH = struct.Struct("<H")
_SHORTEST_S = 0.001


def packed(packet: bytes) -> bytes:
    """Return a packet as it is sent."""
    return _LENGTH.pack(len(packet)) + packet


class Packets:
    """The packets that come on one connection; never more bytes are read than belong to the next one."""

    def __init__(self, connection: socket.socket, deadline: float | None = None) -> None:
        """Read nothing yet; `deadline` is that of all packets, in seconds of `time.monotonic`."""
        self._connection = connection
        self._deadline = deadline
        self._parts = bytearray()

    def next(self) -> bytes:
        """Return the next packet; what has come of it is kept where the connection has no more at the moment.

        Raises:
            OSError: the connection is broken, the deadline has come (`TimeoutError`), or there is no more at
                the moment on a connection that does not block.
            PeerLostError: it has ended.
            PeerRefusedError: the packet is longer than any of dtrain's.
        """
        while True:
            needed = _LENGTH.size
            if len(self._parts) >= needed:
                needed += _LENGTH.unpack_from(self._parts)[0]
                if needed - _LENGTH.size > GREETING_LIMIT_BYTES:
                    raise PeerRefusedError("the connection did not open with a dtrain hello")
                if len(self._parts) == needed:
                    packet = bytes(self._parts[_LENGTH.size :])
                    self._parts.clear()
                    return packet
            if self._deadline is not None:
                self._connection.settimeout(max(_SHORTEST_S, self._deadline - time.monotonic()))
            come = self._connection.recv(needed - len(self._parts))
            if not come:
                raise PeerLostError("the connection was ended within the handshake")
            self._parts += come
