"""Archives of examples: the members of a .tar file that share a name up to its first dot are one example.

Source: the format of WebDataset. A member is taken as bytes and never written to the disk.
"""

import io
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import BinaryIO, Literal, Self

import numpy as np

from dtrain.data.readers.rows import RowFormat
from dtrain.data.record_index.index_files import Offsets
from dtrain.data.stores.opening import RowReader, open_stream
from dtrain.data.stores.remote import shown
from dtrain.data.structure import Element, TensorSpec
from dtrain.errors import InputError
from dtrain.formats.bounded_reading import decompressed

MEMBER_BYTES_MAX = (1 << 31) - 1
KEY = "__key__"
DAMAGE = (tarfile.TarError, EOFError, ValueError, IndexError, OverflowError, RecursionError, zlib.error)
"""Errors of `tarfile` at what is no archive, or a damaged one."""


class TarExamples(RowFormat):
    """The examples of .tar files: a dict of the bytes of each suffix, and of the key under ``__key__``."""

    kind = "tar"

    def __init__(self, suffixes: tuple[str, ...], *, compressed: bool) -> None:
        """Begin; every example has members of these suffixes, and files may be compressed as a whole."""
        super().__init__("GZIP" if compressed else "")
        self._suffixes = suffixes
        self.obstacle = "archives that are compressed as a whole (.tar.gz)" if compressed else ""
        self.spec = {name: TensorSpec((), "string") for name in (KEY, *suffixes)}

    def read(self, path: str) -> Iterator[Element]:
        key: str | None = None
        held: dict[str, bytes] = {}
        start = 0
        where = shown(path)
        with _archive_at(path, self._compression) as archive:
            for member in _files(archive, where):
                found, suffix = _key_of(member.name)
                if key is not None and found != key:
                    yield self._example(key, held, where, start)
                    held = {}
                if not held:
                    key, start = found, member.offset
                held[suffix] = _content(archive, member, where)
            if key is not None:
                yield self._example(key, held, where, start)

    def scan(self, file: RowReader, nbytes: int) -> Offsets:
        offsets: list[int] = []
        key: str | None = None
        end = 0
        with file.stream() as opened, _archive(opened, "r:", file.path) as archive:
            for member in _files(archive, file.path):
                if member.offset_data + member.size > nbytes:
                    raise _ends_inside(file.path, member)
                if (found := _key_of(member.name)[0]) != key:
                    key = found
                    offsets.append(member.offset)
                end = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        return np.array([*offsets, min(end, nbytes)], np.uint64)

    def row(self, data: bytes, path: str, offset: int) -> Element:
        key, held = "", {}
        with _archive(io.BytesIO(data), "r:", f"{path}: the example at byte {offset}") as archive:
            for member in _files(archive, path):
                name, suffix = _key_of(member.name)
                key = key or name
                held[suffix] = _content(archive, member, path)
        return self._example(key, held, path, offset)

    def _example(self, key: str, held: dict[str, bytes], path: str, offset: int) -> Element:
        missing = [suffix for suffix in self._suffixes if suffix.lower() not in held]
        if missing:
            raise InputError(
                f"{path}: the example {key!r} at byte {offset}: expected a member {missing[0]!r}, found "
                f"{', '.join(held)}"
            )
        return {KEY: key.encode(), **{suffix: held[suffix.lower()] for suffix in self._suffixes}}


def suffixes_of_first(path: str, *, compressed: bool) -> tuple[str, ...]:
    """Return the suffixes of the members of the first example of an archive."""
    found: list[tuple[str, str]] = []
    with _archive_at(path, "GZIP" if compressed else "") as archive:
        for member in _files(archive, shown(path)):
            found.append(_key_of(member.name))
            if found[-1][0] != found[0][0]:
                break
    return tuple(suffix for key, suffix in found if key == found[0][0])


@contextmanager
def _archive_at(path: str, compression: str) -> Iterator[tarfile.TarFile]:
    where = shown(path)
    with (
        open_stream(path) as file,
        _archive(decompressed(file, compression, where), "r|", where) as archive,
    ):
        yield archive


@contextmanager
def _archive(file: BinaryIO, mode: Literal["r|", "r:"], where: str) -> Iterator[tarfile.TarFile]:
    """Open an archive; whatever is found damaged while it is in use becomes an `InputError`."""
    archive: tarfile.TarFile | None = None
    try:
        with tarfile.open(fileobj=file, mode=mode, tarinfo=_TarHeader) as archive:
            yield archive
    except InputError:
        raise
    except DAMAGE as error:
        at = 0 if archive is None else archive.offset
        raise InputError(f"{where}: expected a .tar archive, found damage at byte {at}: {error}") from error


class _TarHeader(tarfile.TarInfo):
    """A header that ends the reading where it is damaged: `tarfile` would take it for the end of the archive.

    A long name, which `tarfile` reads at once, has at most 1 MiB.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            found = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:  # of no bytes, or of zeros, where the archive ends
            raise (tarfile.ReadError(str(error)) if any(buf) else error) from None
        if found.type in b"LKxgX" and found.size > 1 << 20:
            raise tarfile.ReadError(f"a name of {found.size} bytes")
        return found


def _files(archive: tarfile.TarFile, where: str) -> Iterator[tarfile.TarInfo]:
    """Yield the files of an archive; raise an `InputError` for a member that is no run of its bytes."""
    for member in archive:
        if member.issparse() or not 0 <= member.size <= MEMBER_BYTES_MAX:
            holes = " with holes" if member.issparse() else ""
            raise InputError(
                f"{where}: the member {member.name[:80]!r} at byte {member.offset} has {member.size} "
                f"bytes{holes}; expected at most 2 GiB, all of which stand in the archive"
            )
        if member.isfile():
            yield member
        archive.members = []  # type: ignore[attr-defined] # else all that were seen stay in memory


def _key_of(name: str) -> tuple[str, str]:
    """Return a member's name up to the first dot in its last part, and the rest in lower case."""
    path = PurePosixPath(name)
    stem, _, suffix = path.name.partition(".")
    return str(path.with_name(stem)) if stem else name, suffix.lower()


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> bytes:
    file = archive.extractfile(member)
    data = b"" if file is None else file.read()
    if len(data) < member.size:
        raise _ends_inside(path, member)
    return data


def _ends_inside(path: str, member: tarfile.TarInfo) -> InputError:
    return InputError(f"{path}: the file ends inside the member at byte {member.offset}")
