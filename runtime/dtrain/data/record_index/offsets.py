"""The offsets of a file's records, and the file that holds them."""

import os
import re
import secrets
import struct
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dtrain.data.stores.local import FileFacts
from dtrain.formats.regular_file import is_trusted, open_regular

SUFFIX = ".dtidx"
MAGIC = b"DTIDX001"
_LENGTH = struct.Struct("<I")
HEADER_BYTES_MAX = 4096
OFFSET_BYTES = 8
CHECKED_OFFSETS = 64
"""Offsets, spread over an index, that have to ascend; each is checked when it is used."""
ASIDE_BYTES = 6
"""Bytes of chance in the name of an index that is being written."""

Offsets = np.ndarray[Any, np.dtype[np.uint64]]


class IndexHeader(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first part of an index.

    Attributes:
        kind: of the records, as their format names it.
        nbytes, mtime_ns, first_crc32, last_crc32, version, samples_crc32: of the file, see `FileFacts`.
        records: how many there are.
    """

    kind: str
    nbytes: int
    mtime_ns: int
    first_crc32: int
    last_crc32: int
    records: int
    version: str = ""
    samples_crc32: int = 0

    @classmethod
    def of(cls, kind: str, facts: FileFacts, records: int) -> "IndexHeader":
        return cls(kind=kind, records=records, **asdict(facts))


def read_index(path: Path, kind: str, facts: FileFacts, data: int | None = None) -> Offsets | None:
    """Return the offsets in an index, mapped from the file; None if it is not the index of that file.

    Args:
        path: of the index; another user's is none, unless the data or the folder are that user's, too.
        kind: of the records.
        facts: of the file with them.
        data: the descriptor of that file, if it is open on this host.
    """
    try:
        descriptor = open_regular(path)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        head = file.read(len(MAGIC) + _LENGTH.size + HEADER_BYTES_MAX)
        found = os.fstat(file.fileno())
        beside = [] if data is None else [os.fstat(data)]
        if not is_trusted(found, path.parent.stat(), *beside):
            return None
        nbytes = found.st_size
        begin = len(MAGIC) + _LENGTH.size
        if len(head) < begin or not head.startswith(MAGIC):
            return None
        length = _LENGTH.unpack_from(head, len(MAGIC))[0]
        try:
            header = msgspec.json.decode(head[begin : begin + length], type=IndexHeader)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        start = _aligned(begin + length)
        if header != IndexHeader.of(kind, facts, header.records) or header.records < 0:
            return None
        if nbytes != start + (header.records + 1) * OFFSET_BYTES:
            return None
        offsets = np.memmap(file, "<u8", "r", start, (header.records + 1,))
        some = offsets[np.linspace(0, header.records, CHECKED_OFFSETS).astype(np.int64)]
        return offsets if (some[1:] >= some[:-1]).all() and some[-1] <= facts.nbytes else None


def write_index(path: Path, kind: str, facts: FileFacts, offsets: Offsets) -> None:
    """Write an index whole, in the place of one that is there.

    Raises:
        OSError: there is no room, or no right to write there; nothing is left behind.
    """
    header = msgspec.json.encode(IndexHeader.of(kind, facts, len(offsets) - 1))
    head = MAGIC + _LENGTH.pack(len(header)) + header
    head = head.ljust(_aligned(len(head)))
    aside = path.with_name(_aside(path) + secrets.token_hex(ASIDE_BYTES))
    try:
        with open(aside, "xb") as file:
            file.write(head)
            file.write(offsets.astype("<u8", copy=False).tobytes())
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path)
    except BaseException:  # Ctrl-C too leaves nothing behind
        aside.unlink(missing_ok=True)
        raise


def remove_remnants(path: Path) -> None:
    """Remove what killed writers of an index have left; the caller sees to it that none is alive."""
    remnant = re.compile(re.escape(_aside(path)) + f"[0-9a-f]{{{2 * ASIDE_BYTES}}}")
    with suppress(OSError), os.scandir(path.parent) as entries:
        for name in [entry.name for entry in entries if remnant.fullmatch(entry.name)]:
            path.with_name(name).unlink(missing_ok=True)


def _aside(path: Path) -> str:
    """Return the first part of the name under which an index is written, before it gets its own."""
    return f".{path.name[-100:]}."


def _aligned(nbytes: int) -> int:
    return -(-nbytes // OFFSET_BYTES) * OFFSET_BYTES
