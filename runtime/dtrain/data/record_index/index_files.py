"""Indexes of the records of a file: built once, by the task that comes first; the others wait for it.

An index is kept beside the data, that of a URL in a cache folder of the host; in the run directory where that
cannot be; in memory where there is none.
"""

import errno
import os
import re
import struct
import threading
import warnings
from collections import OrderedDict
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from msgspec.structs import asdict, replace

from dtrain.data.build_once import UnwritableError, Write, build_once
from dtrain.data.stores.local import BLOCK_BYTES, FileFacts
from dtrain.data.stores.opening import ReadableFile, RowReader, open_file
from dtrain.data.stores.remote import shown
from dtrain.errors import InputError
from dtrain.formats.bounded_reading import is_trusted, open_regular
from dtrain.formats.remote_files import is_url
from dtrain.process.assignment import RUN_DIR

SUFFIX = ".dtidx"
MAGIC = b"DTIDX001"
_LENGTH = struct.Struct("<I")
HEADER_BYTES_MAX = 4096
OFFSET_BYTES = 8
CHECKED_OFFSETS = 64
"""Offsets, spread over an index, that have to ascend; each is checked when it is used."""

Offsets = np.ndarray[Any, np.dtype[np.uint64]]


class IndexHeader(FileFacts, frozen=True, kw_only=True, omit_defaults=True):
    """The first part of an index: the kind and number of the records, and the facts of their file."""

    kind: str
    records: int

    @classmethod
    def of(cls, kind: str, facts: FileFacts, records: int) -> "IndexHeader":
        return cls(kind=kind, records=records, **asdict(facts))


def read_index(path: Path, kind: str, facts: FileFacts, data: int | None = None) -> Offsets | None:
    """Return the offsets in an index, mapped from the file; None if it is not the index of that file.

    An index of another user is none, unless the folder or the file of `data`, a descriptor, are that user's.
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


def write_index(write: Write, kind: str, facts: FileFacts, offsets: Offsets) -> None:
    header = msgspec.json.encode(IndexHeader.of(kind, facts, len(offsets) - 1))
    head = MAGIC + _LENGTH.pack(len(header)) + header
    write(head.ljust(_aligned(len(head))))
    write(offsets.astype("<u8", copy=False).tobytes())


def _aligned(nbytes: int) -> int:
    return -(-nbytes // OFFSET_BYTES) * OFFSET_BYTES


WAIT_S = 60.0
"""The longest wait for another task's index of a small file."""
BYTES_PER_S, REMOTE_BYTES_PER_S = 20e6, 2e6
"""The speed that is expected of a task that builds the index of a large one, here or at a URL."""
INDEXED_BYTES_MIN = 2 * BLOCK_BYTES
"""Bytes of the smallest file whose index is kept: to check that of a smaller one takes reading all of it."""
KEPT_IN_PROCESS = 4096
"""Files whose indexes a process does not read again."""
FOLDER = "data_index"
"""The folder of indexes in a run directory."""


class Scanner(Protocol):
    """A format whose records can be found without decoding them; `kind` is its name."""

    kind: str

    def scan(self, file: RowReader, nbytes: int) -> Offsets:
        """Return the offset of each record and of the end; raise an `InputError` for a damaged file."""


class RecordIndex(msgspec.Struct, frozen=True):
    """The offsets of a file's records and of their end, and the file that holds them; None: memory.

    `not_kept` says why no file could hold the index; it is empty where one does, or none is needed.
    """

    path: str
    facts: FileFacts
    offsets: Offsets
    kept_at: Path | None = None
    not_kept: str = ""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def check(self, file: ReadableFile) -> None:
        found = file.state()
        if found != self.facts.state:
            raise InputError(
                f"{file.path}: was changed while it was in use: it has {found[0]} bytes, and had "
                f"{self.facts.nbytes} when its records were counted; write new data into a new file, and "
                "start again"
            )


def index_of(path: str, scanner: Scanner, wait_s: float = WAIT_S) -> RecordIndex:
    """Return the index of a file: the one that is kept, or a new one, which is then kept.

    A `WaitTimeoutError` says that another task takes longer than `wait_s`, and more for a large file.
    """
    file = open_file(path)
    key = path, scanner.kind
    with _knowing:
        known = _known.get(key)
    if known is not None and known.facts.state == file.state():
        return known
    index = _kept_or_built(path, file, scanner, wait_s)
    with _knowing:
        _known[key] = index
        while len(_known) > KEPT_IN_PROCESS:
            _known.popitem(last=False)
    return index


_known: OrderedDict[tuple[str, str], RecordIndex] = OrderedDict()
_knowing = threading.Lock()


def _kept_or_built(path: str, file: ReadableFile, scanner: Scanner, wait_s: float) -> RecordIndex:
    nbytes = file.state()[0]
    if file.descriptor is not None and nbytes < INDEXED_BYTES_MIN:
        return _scanned(file, scanner)
    places = places_of(path)
    if (kept := _kept(file, scanner, places)) is not None:
        return kept
    wait_s += nbytes / (BYTES_PER_S if file.descriptor is not None else REMOTE_BYTES_PER_S)
    scanned = cache(lambda: _scanned(file, scanner))

    def make(write: Write) -> RecordIndex:
        index = scanned()
        write_index(write, scanner.kind, index.facts, index.offsets)
        return index

    failure: OSError | None = None
    for place in places:
        try:
            index = build_once(
                place,
                lambda place: _kept(file, scanner, [place]),
                make,
                wait_s,
                f"build the index of {file.path}",
                makes_folder=True,
            )
        except UnwritableError as error:
            failure = failure if failure is not None and failure.errno == errno.ENOSPC else error
            continue
        if index.kept_at is None and (offsets := read_index(place, scanner.kind, index.facts)) is not None:
            return replace(index, offsets=offsets, kept_at=place)
        return index
    folders = " or ".join(str(place.parent) for place in places)
    reason = f"its index cannot be kept in {folders}: {failure.strerror if failure is not None else ''}"
    index = scanned()
    warnings.warn(
        f"{file.path}: {reason}; it is held in memory, {index.offsets.nbytes} bytes, and each task builds "
        "its own",
        stacklevel=2,
    )
    return replace(index, not_kept=reason)


def kept_index(path: str, scanner: Scanner) -> RecordIndex | None:
    return _kept(open_file(path), scanner, places_of(path))


def scanned_index(path: str, scanner: Scanner) -> RecordIndex:
    return _scanned(open_file(path), scanner)


def places_of(path: str) -> list[Path]:
    """Return the files that may hold the index of a file; it is kept in the first that can be written."""
    if is_url(path):
        last = re.sub(r"[^\w.-]", "_", shown(path).partition("?")[0].rpartition("/")[2])
        name = f"{last[-60:]}-{_digest(path)}{SUFFIX}"
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        places = [Path(cache) / "dtrain" / FOLDER / name]
    else:
        whole = Path(os.path.realpath(path))
        name = f"{whole.name[-60:]}-{_digest(whole)}{SUFFIX}"
        places = [whole.with_name(whole.name + SUFFIX)]
    if run_dir := os.environ.get(RUN_DIR):
        places.append(Path(run_dir) / FOLDER / name)
    return places


def _digest(path: str | Path) -> str:
    return sha256(os.fsencode(path)).hexdigest()[:16]


def _scanned(file: ReadableFile, scanner: Scanner) -> RecordIndex:
    facts = file.facts()
    index = RecordIndex(file.path, facts, scanner.scan(file.in_blocks(), facts.nbytes))
    index.check(file)
    return index


def _kept(file: ReadableFile, scanner: Scanner, places: list[Path]) -> RecordIndex | None:
    facts: FileFacts | None = None
    for place in places:
        if place.exists():
            facts = facts or file.facts()
            if (offsets := read_index(place, scanner.kind, facts, file.descriptor)) is not None:
                return RecordIndex(file.path, facts, offsets, place)
    return None
