"""Messages and their blocks as bytes, in chunks; and back.

    first chunk:  header length (u32, little endian) | header | the whole payload, if it is small; a header
                  that is longer than `CHUNK_BYTES` goes on in the next chunks, with no payload behind it
    next chunks:  the payload's next bytes, at most `CHUNK_BYTES` each
    header:       msgpack of [message, [[dtype, elements], ...]]
    payload:      the blocks' bytes, each padded to a multiple of 8

One copy on each side: an encoder cuts chunks out of the arrays' own memory (gRPC in Python sends `bytes`
only), a decoder writes chunks straight into the arrays that the receiver offers. Tensors never pass through
protobuf. What arrives is checked before any memory is taken: an unknown dtype, a negative size, too many
blocks or a payload above the limit is a `PeerRefusedError`. Some payloads are read and dropped; see `Limits`.
"""

import contextlib
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from dtrain.errors import PeerRefusedError
from dtrain.messages import AnyMessage
from dtrain.types import Array
from dtrain.variables import DTYPE_BYTES

CHUNK_BYTES = 2 * 1024 * 1024
SMALL_BYTES = 512 * 1024
"""Up to this size header and payload are one chunk: what a copy costs, waking the peer once more would cost
as well.
"""
_RECENT_CHUNKS = 4
"""The chunks by which receivers of one message may be apart: those kept for the slower ones take memory."""
_LENGTH = struct.Struct("<I")
_HEADER_PIECE_BYTES = CHUNK_BYTES
HEADER_LIMIT_BYTES = 64 * 1024 * 1024
"""The longest header that any message has: that of `Initialise`, with a plan and a history."""
MEMORY_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
"""The memory of this machine: no message can be longer."""
_BLOCKS_LIMIT = 4096
_QUOTED_CHARACTERS = 200

_NAMES = {np.dtype(name): name for name in DTYPE_BYTES}  # numpy makes the name anew each time

Offer = Callable[[AnyMessage], Sequence[Array]]
"""What a receiver gives to `FrameDecoder`: for a message, the arrays that its blocks may be written into."""

_encode = msgspec.msgpack.Encoder().encode


class _Header(msgspec.Struct, frozen=True, array_like=True, gc=False):
    message: AnyMessage
    blocks: list[tuple[str, int]]


_decode = msgspec.msgpack.Decoder(_Header).decode


class PassedDescriptor:
    """A file descriptor that another process has passed on. It is closed with this object, unless taken."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def detach(self) -> int:
        descriptor, self._descriptor = self._descriptor, -1
        return descriptor

    def __del__(self) -> None:
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)


class Frame(msgspec.Struct, frozen=True):
    """One message with its blocks: contiguous one-dimensional arrays, possibly read-only.

    `passed` has the file descriptors that came with it, between tasks of one host.
    """

    message: AnyMessage
    blocks: Sequence[Array] = ()
    passed: Sequence[PassedDescriptor] = ()


def padded(nbytes: int) -> int:
    return (nbytes + 7) & ~7


def encode(
    message: AnyMessage, blocks: Sequence[Array] = (), payload: "Payload | None" = None
) -> Iterator[bytes]:
    """Cut a message into chunks; the blocks, of which several receivers may share the `payload`, must not
    change.
    """
    chunks = payload.chunks() if payload is not None else (_chunk(*place) for place in _places(blocks))
    header = _encode((message, described(blocks)))
    start = _LENGTH.pack(len(header)) + header
    if len(start) > _HEADER_PIECE_BYTES:
        places = range(0, len(start), _HEADER_PIECE_BYTES)
        yield from (start[place : place + _HEADER_PIECE_BYTES] for place in places)
        yield from chunks
    elif sum(block.nbytes for block in blocks) <= SMALL_BYTES:
        yield start + b"".join(chunks)
    else:
        yield start
        yield from chunks


def _places(blocks: Sequence[Array]) -> Iterator[tuple[Array, int]]:
    """Of each chunk: in which block, and from which byte on."""
    return ((block, start) for block in blocks for start in range(0, block.nbytes, CHUNK_BYTES))


class Payload(msgspec.Struct, eq=False):
    """Blocks that may be sent to many at about the same time; they must not change until all have them."""

    blocks: Sequence[Array]
    _recent: dict[int, bytes] = msgspec.field(default_factory=dict)

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes, copied chunk by chunk as they are taken, but not again what another just took."""
        for number, place in enumerate(_places(self.blocks)):
            chunk = self._recent.get(number)
            if chunk is None:
                chunk = self._recent[number] = _chunk(*place)
                self._recent.pop(number - _RECENT_CHUNKS, None)
            yield chunk


def described(blocks: Sequence[Array]) -> list[tuple[str, int]]:
    return [(_NAMES.get(block.dtype) or block.dtype.name, block.size) for block in blocks]


def _chunk(block: Array, start: int) -> bytes:
    """Return at most `CHUNK_BYTES` of a block, padded at its end."""
    data = bytes(_bytes_of(block)[start : start + CHUNK_BYTES])
    return (
        data if start + CHUNK_BYTES < block.nbytes else data + bytes(padded(block.nbytes) - start - len(data))
    )


def _bytes_of(block: Array) -> memoryview:
    return block.view(np.uint8).data if block.size else memoryview(b"")


class Limits(NamedTuple):
    """The longest header and the longest payload that make sense from a sender now, in bytes.

    A longer payload of at most `dropped` bytes is read in pieces and dropped: its message has no blocks.
    """

    header: int
    payload: int
    dropped: int = 0


def check(announced: Sequence[tuple[str, int]], limits: Limits) -> bool:
    """Check what a header says of its blocks, (dtype, elements) each; return whether they are to be kept.
    Raises a `PeerRefusedError` for an unknown dtype, a negative size, too many blocks, or more bytes than
    `limits`.
    """
    if len(announced) > _BLOCKS_LIMIT:
        raise PeerRefusedError(f"a message with {len(announced)} blocks; at most {_BLOCKS_LIMIT} make sense")
    unknown = [dtype for dtype, size in announced if dtype not in DTYPE_BYTES or size < 0]
    if unknown:
        raise PeerRefusedError(
            f"blocks of {quoted(unknown)}; expected dtypes among {', '.join(DTYPE_BYTES)} and sizes >= 0"
        )
    total = sum(DTYPE_BYTES[dtype] * size for dtype, size in announced)
    limit = max(limits.payload, limits.dropped)
    if total > limit:
        raise PeerRefusedError(f"a message of {total} bytes; at most {limit} are expected here")
    return total <= limits.payload


def quoted(found: object) -> str:
    """Return as much of what a peer has sent, or of the error about it, as a message should show."""
    return str(found)[:_QUOTED_CHARACTERS]


def written(blocks: Sequence[Array], into: Sequence[Array]) -> Sequence[Array]:
    if len(into) != len(blocks):
        return blocks
    for array, block in zip(into, blocks, strict=True):
        if array.dtype != block.dtype or array.size != block.size:
            return blocks
    for array, block in zip(into, blocks, strict=True):
        if array is not block:
            array[...] = block
    return into


def _new(kinds: Sequence[tuple[str, int]]) -> list[Array]:
    try:
        return [np.empty(size, dtype) for dtype, size in kinds]
    except MemoryError:
        total = sum(DTYPE_BYTES[dtype] * size for dtype, size in kinds)
        raise PeerRefusedError(f"there is no memory for a message of {total} bytes") from None


def _end(head: bytes | bytearray) -> int:
    (header_bytes,) = _LENGTH.unpack_from(head)
    return _LENGTH.size + int(header_bytes)


UNKNOWN = Limits(HEADER_LIMIT_BYTES, MEMORY_BYTES)
"""Of messages from a sender of which nothing more is known than that it belongs to the run."""


class FrameDecoder:
    """Joins chunks to frames; one decoder a connection and direction. `limits` may change between chunks."""

    def __init__(self, limits: Limits, offer: Offer | None = None) -> None:
        self.limits = limits
        self.offer = offer
        self._frame: Frame | None = None
        self._targets: list[tuple[int, memoryview]] = []
        self._received = 0
        self._expected = 0
        self._head = bytearray()

    @property
    def pending_bytes(self) -> int:
        return self._expected if self._frame is not None else 0

    def feed(self, chunk: bytes) -> Frame | None:
        """Add the next chunk; return the frame that it completes. Refuse what `encode` does not write."""
        if self._frame is not None:
            frame, part = self._frame, memoryview(chunk)
        elif (whole_head := self._with_head(chunk)) is not None:
            frame, part = self._start(whole_head)
        else:
            return None
        self._write(part)
        whole = self._received == self._expected
        self._frame = None if whole else frame
        if not whole:
            return None
        self._targets.clear()  # the blocks belong to the receiver now, who may want to let them go
        return frame

    def _with_head(self, chunk: bytes) -> bytes | None:
        """Return the first chunk of a message, once its whole header is there: long ones come in pieces."""
        head = self._head
        if not head:
            if len(chunk) < _LENGTH.size:
                raise PeerRefusedError(
                    f"a message cannot start with {len(chunk)} bytes; the peer does not speak dtrain's "
                    "protocol"
                )
            if (end := _end(chunk)) <= len(chunk):
                return chunk
            if len(chunk) != _HEADER_PIECE_BYTES or end > self.limits.header:
                raise PeerRefusedError(
                    f"a header of {end} bytes in a chunk of {len(chunk)}, where at most "
                    f"{self.limits.header} make sense; the peer is not dtrain"
                )
        head += chunk
        if len(head) < _end(head):
            return None
        self._head = bytearray()
        return bytes(head)

    def _start(self, chunk: bytes) -> tuple[Frame, memoryview]:
        end = _end(chunk)
        try:
            header = _decode(memoryview(chunk)[_LENGTH.size : end])
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise PeerRefusedError(
                f"a message that dtrain does not know ({quoted(error)}); do both ends run the same version?"
            ) from None
        blocks = self._blocks(header)
        self._received = 0
        self._targets = []
        self._expected = 0
        for block in blocks:
            self._targets.append((self._expected, _bytes_of(block)))
            self._expected += padded(block.nbytes)
        if not blocks:  # what comes is dropped
            self._expected = sum(padded(DTYPE_BYTES[dtype] * size) for dtype, size in header.blocks)
        return Frame(header.message, blocks), memoryview(chunk)[end:]

    def _blocks(self, header: _Header) -> list[Array]:
        announced = header.blocks
        if not check(announced, self.limits):
            return []
        offered = self.offer(header.message) if self.offer else ()
        return list(offered) if described(offered) == announced else _new(announced)

    def _write(self, chunk: memoryview) -> None:
        start = self._received
        stop = self._received + len(chunk)
        if stop > self._expected:
            raise PeerRefusedError(f"{stop - self._expected} bytes more than the header announced")
        self._received = stop
        for offset, target in self._targets:
            low = max(start, offset)
            high = min(stop, offset + len(target))
            if low < high:
                target[low - offset : high - offset] = chunk[low - start : high - start]
