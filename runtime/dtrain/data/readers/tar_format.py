"""Archives of examples: the members of a .tar file that share a name up to its first dot are one example.

Source: the format of WebDataset. A member is taken as bytes and never written to the disk.
"""

import io
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, groupby
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
        super().__init__("GZIP" if compressed else "")
        self._suffixes = suffixes
        self.obstacle = "archives that are compressed as a whole (.tar.gz)" if compressed else ""
        self.spec = {name: TensorSpec((), "string") for name in (KEY, *suffixes)}

    def read(self, path: str) -> Iterator[Element]:
        where = shown(path)
        with _archive_at(path, self._compression) as archive:
            for key, start, held in _examples(archive, where):
                yield self._example(key, held, where, start)

    def scan(self, file: RowReader, nbytes: int) -> Offsets:
        offsets: list[int] = []
        end = 0
        with file.stream() as opened, _archive(opened, "r:", file.path) as archive:
            for _, members in groupby(_files(archive, file.path), _key):
                for number, member in enumerate(members):
                    if number == 0:
                        offsets.append(member.offset)
                    end = member.offset_data + member.size
                    if end > nbytes:
                        raise _ends_inside(file.path, member)
        padded = -(-end // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        return np.array([*offsets, min(padded, nbytes)], np.uint64)

    def row(self, data: bytes, path: str, offset: int) -> Element:
        with _archive(io.BytesIO(data), "r:", f"{path}: the example at byte {offset}") as archive:
            key, _, held = next(_examples(archive, path), ("", 0, {}))
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
    with _archive_at(path, "GZIP" if compressed else "") as archive:
        for _, members in groupby(_files(archive, shown(path)), _key):
            return tuple(_suffix(member) for member in members)
    return ()


def _examples(archive: tarfile.TarFile, where: str) -> Iterator[tuple[str, int, dict[str, bytes]]]:
    """Yield the key of each example, the byte at which it begins, and the content of each suffix."""
    for key, members in groupby(_files(archive, where), _key):
        first = next(members)
        held = {_suffix(member): _content(archive, member, where) for member in chain([first], members)}
        yield key, first.offset, held


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


def _key(member: tarfile.TarInfo) -> str:
    """Return a member's name up to the first dot in its last part."""
    path = PurePosixPath(member.name)
    stem = path.name.partition(".")[0]
    return str(path.with_name(stem)) if stem else member.name


def _suffix(member: tarfile.TarInfo) -> str:
    return PurePosixPath(member.name).name.partition(".")[2].lower()


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> bytes:
    file = archive.extractfile(member)
    data = b"" if file is None else file.read()
    if len(data) < member.size:
        raise _ends_inside(path, member)
    return data


def _ends_inside(path: str, member: tarfile.TarInfo) -> InputError:
    return InputError(f"{path}: the file ends inside the member at byte {member.offset}")
