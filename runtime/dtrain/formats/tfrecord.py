"""TFRecord files: records of bytes, each with its length and checksums.

A record is its length (8 bytes, little endian), the masked CRC-32C of these 8 bytes, its bytes, and the
masked CRC-32C of those. A whole file may be compressed by gzip or zlib. As in TensorFlow a file that ends
inside the 12 bytes before a record's data ends silently; any other damage is an error.
"""

import gzip
import io
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

from dtrain.errors import InputError
from dtrain.formats.crc32c import masked_crc32c
from dtrain.formats.expansion import room_for
from dtrain.formats.regular_file import open_regular

HEADER = struct.Struct("<QI")
CHECKSUM = struct.Struct("<I")
CHUNK_BYTES = 256 * 1024
RECORD_BYTES_MAX = (1 << 31) - 1
"""Bytes of one record: protocol buffers, such as tf.train.Example, have no more."""
COMPRESSIONS = ("", "GZIP", "ZLIB")


def read_records(path: str | Path, compression: str = "") -> Iterator[bytes]:
    """Yield the records of a file.

    Args:
        path: of the file.
        compression: empty, GZIP or ZLIB.

    Raises:
        InputError: there is no such file, or it is damaged; the records before the damage have been yielded.
    """
    check_compression(compression)
    try:
        with open(open_regular(path), "rb") as file:
            nbytes = os.fstat(file.fileno()).st_size
            room = room_for(nbytes) if compression else nbytes
            yield from _records(_decompressed(file, compression), f"{path}", room)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except (EOFError, zlib.error) as error:
        raise InputError(f"{path}: expected {compression} data, found damage: {error}.") from error


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
        length = struct.pack("<Q", len(record))
        self._put(
            length + CHECKSUM.pack(masked_crc32c(length)) + record + CHECKSUM.pack(masked_crc32c(record))
        )

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _put(self, data: bytes) -> None:
        self._file.write(data if self._compressor is None else self._compressor.compress(data))


def check_compression(compression: str) -> None:
    """Raise an `InputError` for a compression that is not in COMPRESSIONS."""
    if compression not in COMPRESSIONS:
        raise InputError(f"compression_type: expected '', GZIP or ZLIB, found {compression!r}.")


class _ZlibReader(io.RawIOBase):
    """The decompressed bytes of a zlib file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decompressor = zlib.decompressobj()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        data = b""
        while not data and not self._decompressor.eof:
            compressed = self._decompressor.unconsumed_tail or self._file.read(CHUNK_BYTES)
            if not compressed:
                raise EOFError("the file ends in the middle of the stream")
            data = self._decompressor.decompress(compressed, len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _decompressed(file: BinaryIO, compression: str) -> BinaryIO:
    if compression == "GZIP":
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    if compression == "ZLIB":
        return cast(BinaryIO, io.BufferedReader(_ZlibReader(file), CHUNK_BYTES))
    return file


def _records(stream: BinaryIO, where: str, room: int) -> Iterator[bytes]:
    """Yield the records of a stream of at most `room` bytes; a larger one is refused before it is read."""
    offset = 0
    while len(header := stream.read(HEADER.size)) == HEADER.size:
        length, checksum = HEADER.unpack(header)
        if masked_crc32c(header[:8]) != checksum:
            raise InputError(
                f"{where}: the length of the record at byte {offset} is damaged: its checksum is wrong."
            )
        end = offset + HEADER.size + length + CHECKSUM.size
        if length > RECORD_BYTES_MAX or end > room:
            raise InputError(
                f"{where}: the file ends inside the record at byte {offset}, which claims {length} bytes, or "
                f"grows too much when it is decompressed; expected at most {RECORD_BYTES_MAX} bytes a record "
                f"and {room} in all."
            )
        data = stream.read(length)
        footer = stream.read(CHECKSUM.size)
        if len(data) < length or len(footer) < CHECKSUM.size:
            raise InputError(f"{where}: the file ends inside the record at byte {offset}.")
        if masked_crc32c(data) != CHECKSUM.unpack(footer)[0]:
            raise InputError(
                f"{where}: the data of the record at byte {offset} are damaged: their checksum is wrong."
            )
        yield data
        offset = end
