"""The traffic on a Unix socket between two tasks of one host: packets of at most 64 KiB, and file
descriptors of memory.

    packet:        header length (u32) | header | padding to 8 | the small blocks, each padded to 8
    header:        msgpack of [message, [[dtype, elements], ...], [memory's number, [offset, ...]] or null]
    announcement:  0xFFFFFFFF | number (u32); one byte with a file descriptor follows
    passing on:    0xFFFFFFFF | 0x80000000 + count (u32); one byte with so many follows, for the next message

Where blocks travel:

- Small blocks travel in the packet.
- Blocks in this process's shared memory (`shared_memory`) stay there: the packet says in which memory and
  where. A memory is announced before it is first spoken of, and the other end maps it once.
- Large blocks elsewhere, or a header that is too long: the whole packet stands in memory of its own, which is
  announced under the number 0 and mapped once.

So blocks that lie in shared memory are read where they were written, and nothing but a notification
moves. The socket keeps the limits of packets (SOCK_SEQPACKET), so nothing is put together again.
"""

import contextlib
import socket
import struct
import weakref
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np

from dtrain.errors import PeerRefusedError
from dtrain.messages import AnyMessage, Rows
from dtrain.types import Array
from dtrain.variables import DTYPE_BYTES
from dtrain.wire.frames import Frame, Limits, PassedDescriptor, check, described, padded, quoted
from dtrain.wire.one_host.shared_memory import SharedMemory, address, memory_of

PACKET_BYTES = 64 * 1024
SMALL_BYTES = 32 * 1024
"""Up to this size blocks are copied into a packet: finding their place in shared memory costs as much."""
_MEMORIES = 64
"""The most memories of a peer that are mapped at a time."""
_LENGTH, _ANNOUNCED = struct.Struct("<I"), struct.Struct("<II")
_ANNOUNCEMENT = 0xFFFF_FFFF
_PASSED = 0x8000_0000
PASSED_MAX = 250
"""The most file descriptors that travel with one message: Linux takes 253."""

_NO_LIMITS = Limits(1 << 62, 1 << 62)
_nbytes = attrgetter("nbytes")
_PADDING = bytes(8)

Kinds = tuple[tuple[str, int], ...]
Place = tuple[int, list[int]]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[AnyMessage, Kinds, Place | None]).decode


class PacketSocket:
    """Messages over a connected SOCK_SEQPACKET socket; one thread sends at a time, and one receives.

    If the socket does not block, neither do the methods: what cannot be now is a `BlockingIOError`. `lent`
    are the blocks of the last message that had some (but for `Rows`), if the peer reads them in place.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._announced: list[weakref.ref[SharedMemory]] = []
        self._received: dict[int, SharedMemory] = {}
        self._awaited: int | None = None
        self._passed: Sequence[PassedDescriptor] = ()
        self.lent: Sequence[Array] = ()
        self.bytes_sent = 0
        self.bytes_received = 0

    def send(self, message: AnyMessage, blocks: Sequence[Array] = ()) -> None:
        kinds = described(blocks)
        nbytes = sum(map(_nbytes, blocks))
        place = self._locate(blocks) if nbytes > SMALL_BYTES else None
        head = _head(message, kinds, place)
        in_memory = len(head) > PACKET_BYTES - SMALL_BYTES or (nbytes > SMALL_BYTES and place is None)
        # Before the peer can have them, and say that it has read them. Rows stand beside the values that it
        # goes on reading.
        if blocks and not isinstance(message, Rows):
            self.lent = blocks if place and not in_memory else ()
        if in_memory:
            head = _head(message, kinds, None)
            self._send_in_memory(head, blocks)
        elif place is None:
            self._socket.send(
                b"".join([head, *(each.tobytes() + _PADDING[: -each.nbytes % 8] for each in blocks)])
            )
        else:
            self._socket.send(head)
        self.bytes_sent += len(head) + nbytes

    def pass_on(self, message: AnyMessage, descriptors: Sequence[int]) -> None:
        if descriptors:
            self._socket.send(_ANNOUNCED.pack(_ANNOUNCEMENT, _PASSED + len(descriptors)))
            socket.send_fds(self._socket, [b"\0"], list(descriptors))
        self.send(message)

    def _locate(self, blocks: Sequence[Array]) -> Place | None:
        """Return the place of blocks in a memory that the peer can map; None if they do not lie in one."""
        memory = memory_of(blocks[0])
        if memory is None or any(memory_of(block) is not memory for block in blocks):
            return None
        start = memory.address
        return self._announced_number(memory), [address(block) - start for block in blocks]

    def _announced_number(self, memory: SharedMemory) -> int:
        known = [reference() for reference in self._announced]
        if memory in known:
            return 1 + known.index(memory)
        index = known.index(None) if None in known else len(known)
        self._announced[index : index + 1] = [weakref.ref(memory)]
        self._pass(1 + index, memory)
        return 1 + index

    def _pass(self, number: int, memory: SharedMemory) -> None:
        self._socket.send(_ANNOUNCED.pack(_ANNOUNCEMENT, number))
        socket.send_fds(self._socket, [b"\0"], [memory.fd])

    def _send_in_memory(self, head: bytes, blocks: Sequence[Array]) -> None:
        memory = SharedMemory.make(len(head) + sum(padded(block.nbytes) for block in blocks))
        memory[: len(head)] = head
        offset = len(head)
        for block in blocks:
            np.frombuffer(memory, block.dtype, block.size, offset)[...] = block
            offset += padded(block.nbytes)
        self._pass(0, memory)

    def receive(self, limits: Limits) -> Frame | None:
        """Wait for the next message, with read-only blocks; None if the peer has closed the connection.
        Raises a `BlockingIOError` where a socket that does not block has no more, a `PeerRefusedError` for
        what `send` does not send or `limits` exclude, and a `SharedMemoryError` without room to map the
        peer's memory.
        """
        while self._awaited is not None or (packet := self._socket.recv(PACKET_BYTES)):
            if self._awaited is None:
                if len(packet) != _ANNOUNCED.size or not packet.startswith(b"\xff\xff\xff\xff"):
                    return self._frame(packet, limits)
                self._awaited = _ANNOUNCED.unpack(packet)[1]
            if self._awaited >= _PASSED:
                self._receive_passed(self._awaited - _PASSED)
                continue
            number, memory = self._awaited, self._receive_memory()
            self._awaited = None
            if number == 0:
                return self._frame(memory, limits)
            self._received[number] = memory
            if len(self._received) > _MEMORIES:
                raise PeerRefusedError(
                    f"more than {_MEMORIES} memories to be mapped at a time; the peer is not dtrain"
                )
        return None

    def _receive_passed(self, count: int) -> None:
        if count > PASSED_MAX:
            raise PeerRefusedError(f"{count} file descriptors with one message; the peer is not dtrain")
        found = self._descriptors(count)
        self._passed = [PassedDescriptor(each) for each in found]
        self._awaited = None
        if len(found) != count:
            raise PeerRefusedError(
                f"{count} file descriptors were announced and {len(found)} came: the limit of open files may "
                "be reached (ulimit -n)"
            )

    def _receive_memory(self) -> SharedMemory:
        descriptors = self._descriptors(1)
        if not descriptors:
            raise PeerRefusedError("a memory was announced and did not come; the peer is not dtrain")
        return SharedMemory.received(descriptors[0])

    def _descriptors(self, count: int) -> list[int]:
        packet, found, _, _ = socket.recv_fds(self._socket, 1, count, socket.MSG_CMSG_CLOEXEC)
        if not packet:
            raise ConnectionResetError("the peer has ended within a message")
        return found

    def _frame(self, packet: bytes | SharedMemory, limits: Limits) -> Frame:
        try:
            end = _LENGTH.size + _LENGTH.unpack_from(packet)[0]
            if min(end, len(packet)) > limits.header:
                raise PeerRefusedError(f"a header of {end} bytes; at most {limits.header} are expected here")
            # A copy: its sender may go on writing to memory while the decoder reads.
            message, kinds, place = _decode(packet[_LENGTH.size : end])
            layout = _layout(kinds)
            if layout.nbytes > limits.payload and not check(kinds, limits):
                return Frame(message)
            start = padded(end)
            if place is None:
                blocks = [
                    np.frombuffer(packet, dtype, size, start + offset)
                    for dtype, size, offset in layout.blocks
                ]
            else:
                memory, offsets = self._received[place[0]], place[1]
                known = zip(layout.blocks, offsets, strict=True)
                blocks = [np.frombuffer(memory, dtype, size, offset) for (dtype, size, _), offset in known]
        except (struct.error, ValueError, RecursionError, KeyError, OverflowError) as error:
            raise PeerRefusedError(
                f"a message that dtrain does not know ({quoted(error)}); do both ends run the same version?"
            ) from None
        self.bytes_received += start + layout.nbytes
        passed, self._passed = self._passed, ()
        return Frame(message, blocks, passed=passed)

    def close(self) -> None:
        """End the connection, also for a thread that waits in `receive`. Never raises."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


def _head(message: AnyMessage, kinds: Sequence[tuple[str, int]], place: Place | None) -> bytes:
    header = _encode((message, kinds, place))
    nbytes = _LENGTH.size + len(header)
    return _LENGTH.pack(len(header)) + header + _PADDING[: -nbytes % 8]


class _Layout(NamedTuple):
    """Blocks one after another: each one's dtype, elements and offset; bytes in all, without padding."""

    blocks: list[tuple[np.dtype[Any], int, int]]
    nbytes: int


@lru_cache(maxsize=64)
def _layout(kinds: Kinds) -> _Layout:
    check(kinds, _NO_LIMITS)
    sizes = [DTYPE_BYTES[dtype] * size for dtype, size in kinds]
    offsets = accumulate(map(padded, sizes), initial=0)
    return _Layout(
        [(np.dtype(dtype), size, offset) for (dtype, size), offset in zip(kinds, offsets, strict=False)],
        sum(sizes),
    )
