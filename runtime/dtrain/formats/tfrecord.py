"""TFRecord files: records of bytes, each with its length and checksums (CRC-32C, masked).

A record is its length (8 bytes, little endian), the masked CRC-32C of these 8 bytes, its bytes, and the
masked CRC-32C of those. A whole file may be compressed by gzip or zlib. As in TensorFlow a file that ends
inside the 12 bytes before a record's data ends silently; any other damage is an error.
"""

import gzip
import os
import struct
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

import google_crc32c
import numpy as np

from dtrain.errors import InputError
from dtrain.formats.bounded_reading import decompressed, room_for

HEADER = struct.Struct("<QI")
CHECKSUM = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")
_HEADER_FIELDS = np.dtype([("length", "<u8"), ("checksum", "<u4")])
_FRAMING = np.dtype([("length", "<u8"), ("checksum", "<u4"), ("of_data", "<u4")])
"""The bytes before and behind a record's data."""
FRAME_BYTES = HEADER.size + CHECKSUM.size
"""Bytes of a record beside its data."""
CHUNK_BYTES = 256 * 1024
HOP_BYTES = 64 * 1024
"""Bytes of a record that is large: what follows it is read when it is needed."""
RECORD_BYTES_MAX = (1 << 31) - 1
"""Bytes of one record: protocol buffers, such as tf.train.Example, have no more."""
HEADERS_BYTES = 12 << 20
"""Bytes of headers that are checked at once."""
Offsets = np.ndarray[Any, np.dtype[np.uint64]]
COMPRESSIONS = ("", "GZIP", "ZLIB")
_OTHERS = {
    b"\x1f\x8b": "a file compressed by gzip, which compression_type='GZIP' reads",
    b"version http": "a pointer of Git LFS in its place; `git lfs pull` fetches it",
}
"""What stands in the place of records most often, by the first of its bytes."""


def records_from(file: BinaryIO, where: str, compression: str = "") -> Iterator[bytes]:
    """Yield the records of an open file, at its beginning; an `InputError` follows those before damage."""
    nbytes = file.seek(0, os.SEEK_END)
    file.seek(0)
    room = room_for(nbytes) if compression else nbytes
    try:
        yield from _records(decompressed(file, compression, where), where, room, grows=bool(compression))
    except (EOFError, zlib.error) as error:
        raise InputError(f"{where}: expected {compression} data, found damage: {error}.") from error


class TFRecordWriter:
    """Writes a TFRecord file; to be used in a `with`, or closed.

    Args:
        path: of the file, which is overwritten.
        options: the compression: empty, GZIP or ZLIB.
    """

    def __init__(self, path: str | Path, options: str | None = None) -> None:
        compression = options or ""
        check_compression(compression)
        self._compressor: zlib._Compress | None = zlib.compressobj() if compression == "ZLIB" else None
        open_file = gzip.GzipFile if compression == "GZIP" else open
        self._file = cast(BinaryIO, open_file(path, "wb"))

    def write(self, record: bytes) -> None:
        """Append a record."""
        length = _LENGTH.pack(len(record))
        data = length + CHECKSUM.pack(masked_crc32c(length)) + record + CHECKSUM.pack(masked_crc32c(record))
        self._file.write(data if self._compressor is None else self._compressor.compress(data))

    def flush(self) -> None:
        """Let readers see every record of a file that is not compressed."""
        self._file.flush()

    def close(self) -> None:
        """Write the rest and close the file."""
        if self._compressor is not None:
            self._file.write(self._compressor.flush())
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def check_compression(compression: str) -> None:
    if compression not in COMPRESSIONS:
        raise InputError(f"compression_type: expected '', GZIP or ZLIB, found {compression!r}.")


def _records(stream: BinaryIO, where: str, room: int, *, grows: bool) -> Iterator[bytes]:
    """Yield the records of a stream of at most `room` bytes; a larger one is refused before it is read.

    The stream `grows` where it is decompressed; else `room` is what the file has.
    """
    begin = 0
    rest = b""
    wanted = CHUNK_BYTES
    while block := stream.read(wanted):
        rest += block
        ends, missing = _frames(rest, begin, room)
        starts = [0, *ends[:-1]] if ends else []
        data = [rest[a + HEADER.size : b - CHECKSUM.size] for a, b in zip(starts, ends, strict=True)]
        yield from _sound(data, _framing(rest, starts, ends), starts, begin, where)
        used = ends[-1] if ends else 0
        if missing < 0:
            header = rest[used : used + HEADER.size]
            raise InputError(_wrong_length(header, begin + used, room if grows else None, where))
        begin += used
        rest = rest[used:]
        wanted = max(CHUNK_BYTES, missing)
    if len(rest) >= HEADER.size:
        raise InputError(f"{where}: the file ends inside the record at byte {begin}.")


def _frames(data: bytes, begin: int, room: int) -> tuple[list[int], int]:
    """Return where whole records end, and how many bytes the next one lacks: -1 if its length cannot be."""
    ends: list[int] = []
    position = 0
    unpack = _LENGTH.unpack_from
    while position + HEADER.size <= len(data):
        length = unpack(data, position)[0]
        end = position + FRAME_BYTES + length
        if length > RECORD_BYTES_MAX or begin + end > room:
            return ends, -1
        if end > len(data):
            if masked_crc32c(data[position : position + 8]) != CHECKSUM.unpack_from(data, position + 8)[0]:
                return ends, -1
            return ends, end - len(data)
        ends.append(end)
        position = end
    return ends, 0


def _framing(data: bytes, starts: Sequence[int], ends: Sequence[int]) -> Any:
    """Return the bytes before and behind the data of records."""
    octets = np.frombuffer(data, np.uint8)
    begins = np.array(starts, np.int64)[:, None] + np.arange(HEADER.size)
    behind = np.array(ends, np.int64)[:, None] - CHECKSUM.size + np.arange(CHECKSUM.size)
    return octets[np.concatenate([begins, behind], axis=1)].view(_FRAMING)[:, 0]


def _wrong_length(header: bytes, offset: int, room: int | None, where: str) -> str:
    length, checksum = HEADER.unpack(header)
    if masked_crc32c(header[:8]) != checksum:
        return _damaged_length(where, offset, header)
    if length > RECORD_BYTES_MAX:
        return (
            f"{where}: the record at byte {offset} claims {length} bytes; "
            f"expected at most {RECORD_BYTES_MAX}."
        )
    if room is None:
        return f"{where}: the file ends inside the record at byte {offset}, which claims {length} bytes."
    return (
        f"{where}: the file grows too much when it is decompressed: its record at byte {offset} claims "
        f"{length} bytes; expected at most {room} in all."
    )


def records_in(frames: Sequence[bytes], offsets: Sequence[int], where: str) -> list[bytes]:
    """Return the data of whole records; raise an `InputError` if one is damaged."""
    for frame, offset in zip(frames, offsets, strict=True):
        if len(frame) < FRAME_BYTES:
            raise InputError(_damaged_length(where, offset, frame))
    data = [frame[HEADER.size : -CHECKSUM.size] for frame in frames]
    framing = b"".join([frame[: HEADER.size] + frame[-CHECKSUM.size :] for frame in frames])
    return list(_sound(data, np.frombuffer(framing, _FRAMING), offsets, 0, where))


def _sound(
    data: Sequence[bytes], framing: Any, offsets: Sequence[int], begin: int, where: str
) -> Iterator[bytes]:
    """Yield the data of records up to the first that is damaged, which raises an `InputError`."""
    lengths = np.fromiter(map(len, data), np.uint64, len(data))
    wrong = framing["length"] != lengths
    wrong |= masked_crc32c_of_words(framing["length"]) != framing["checksum"]
    damaged = wrong | (masked_crc32c_of_each(data) != framing["of_data"])
    if not damaged.any():
        yield from data
        return
    first = int(damaged.argmax())
    yield from data[:first]
    offset = begin + offsets[first]
    if wrong[first]:
        raise InputError(_damaged_length(where, offset, framing[first].tobytes()))
    raise InputError(
        f"{where}: the data of the record at byte {offset} are damaged: their checksum is wrong."
    )


def record_offsets(read: Callable[[int, int], bytes], nbytes: int, where: str) -> Offsets:
    """Return the offset of each record of a file, and that of the end of the last one.

    `read` returns so many bytes at an offset. The lengths are checked, not the data; of large records nothing
    else is read. Raises an `InputError` for a damaged length, or a file that ends inside a record.
    """
    offsets = array("Q", [0])
    headers = bytearray()
    block, begin = b"", 0
    offset = length = 0
    unpack = _LENGTH.unpack_from
    while offset + HEADER.size <= nbytes and length <= RECORD_BYTES_MAX:
        place = offset - begin
        if place + HEADER.size > len(block):
            # After a large record a header alone is read, after a small one those of many.
            begin, place = offset, 0
            block = read(offset, min(HEADER.size if length > HOP_BYTES else CHUNK_BYTES, nbytes - offset))
        headers += block[place : place + HEADER.size]
        length = unpack(block, place)[0]
        offset += FRAME_BYTES + length
        offsets.append(min(offset, nbytes + 1))
        if len(headers) >= HEADERS_BYTES:
            _check_headers(headers, offsets, where)
            headers.clear()
    _check_headers(headers, offsets, where)
    if offset > nbytes:
        raise InputError(f"{where}: the file ends inside the record at byte {offsets[-2]}.")
    return np.frombuffer(offsets, np.uint64)


def _check_headers(headers: bytearray, offsets: "array[int]", where: str) -> None:
    found = np.frombuffer(bytes(headers), _HEADER_FIELDS)
    damaged = np.flatnonzero(masked_crc32c_of_words(found["length"]) != found["checksum"])
    if len(damaged):
        offset = offsets[len(offsets) - 1 - len(found) + int(damaged[0])]
        raise InputError(_damaged_length(where, offset, found[damaged[0]].tobytes()))


def _damaged_length(where: str, offset: int, header: bytes) -> str:
    damaged = f"{where}: the length of the record at byte {offset} is damaged: its checksum is wrong"
    if offset:
        return f"{damaged}."
    for begin, what in _OTHERS.items():
        if header.startswith(begin):
            return f"{where}: expected TFRecords, found {what}."
    return f"{damaged}; is it a TFRecord file?"


MASK_DELTA = 0xA282EAD8

Words = np.ndarray[Any, np.dtype[np.uint32]]


def masked_crc32c(data: bytes) -> int:
    """Return the checksum as TFRecord files store it: rotated and offset, so that it can be summed again."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


def masked_crc32c_of_each(parts: Sequence[bytes]) -> Words:
    crc = np.fromiter(map(google_crc32c.value, parts), np.uint32, len(parts))
    return (crc >> np.uint32(15) | crc << np.uint32(17)) + np.uint32(MASK_DELTA)


def masked_crc32c_of_words(words: np.ndarray[Any, np.dtype[np.uint64]]) -> Words:
    """Return `masked_crc32c` of the 8 bytes, little endian, of each number."""
    octets = np.ascontiguousarray(words, "<u8").view("V8")
    return masked_crc32c_of_each(octets.tolist())
