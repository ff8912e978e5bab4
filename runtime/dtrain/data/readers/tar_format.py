"""Archives of examples: the members of a .tar file that share a name up to its first dot are one example.

Source: the format of WebDataset. A member is taken as bytes and never written to the disk.
"""

import io
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from dtrain.data.record_index.building import Scanner
from dtrain.data.record_index.offsets import Offsets
from dtrain.data.stores.local import unreadable
from dtrain.data.stores.opening import RowReader, open_stream
from dtrain.data.stores.remote import shown
from dtrain.data.structure import Element, TensorSpec
from dtrain.errors import InputError

MEMBER_BYTES_MAX = (1 << 31) - 1
KEY = "__key__"


class TarExamples:
    """The examples of .tar files: a dict of the bytes of each suffix, and of the key under ``__key__``."""

    kind = "tar"

    def __init__(self, suffixes: tuple[str, ...], *, compressed: bool) -> None:
        """Begin.

        Args:
            suffixes: the members that every example has.
            compressed: whether files are, as a whole.
        """
        self._suffixes = suffixes
        self._compressed = compressed
        self.scanner: Scanner | None = None if compressed else self
        self.obstacle = "archives that are compressed as a whole (.tar.gz)" if compressed else ""

    @property
    def spec(self) -> Any:
        """Return bytes for each name."""
        return {name: TensorSpec((), "string") for name in (KEY, *self._suffixes)}

    def read(self, path: str) -> Iterator[Element]:
        """Yield the examples from front to back."""
        key: str | None = None
        held: dict[str, bytes] = {}
        start = 0
        where = shown(path)
        try:
            with (
                open_stream(path) as file,
                tarfile.open(fileobj=file, mode="r|gz" if self._compressed else "r|") as archive,
            ):
                for member in archive:
                    if not member.isfile():
                        continue
                    found, suffix = _key_of(member.name)
                    if key is not None and found != key:
                        yield self._example(key, held, where, start)
                        held = {}
                    if not held:
                        key, start = found, member.offset
                    held[suffix] = _content(archive, member, where)
                    archive.members = []  # type: ignore[attr-defined] # else all that were seen stay in memory
                if key is not None:
                    yield self._example(key, held, where, start)
        except OSError as error:
            raise unreadable(path, error) from error
        except (tarfile.TarError, EOFError) as error:
            raise InputError(f"{where}: expected a .tar archive, found damage: {error}") from error

    def scan(self, file: RowReader, nbytes: int) -> Offsets:
        """Hop from member to member."""
        offsets: list[int] = []
        key: str | None = None
        end = 0
        try:
            with (
                file.stream() as opened,
                tarfile.open(fileobj=opened, mode="r:") as archive,
            ):
                for member in archive:
                    if not member.isfile():
                        continue
                    if member.offset_data + member.size > nbytes:
                        raise InputError(
                            f"{file.path}: the file ends inside the member at byte {member.offset}"
                        )
                    found, _ = _key_of(member.name)
                    if found != key:
                        key = found
                        offsets.append(member.offset)
                    end = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                    archive.members = []  # type: ignore[attr-defined] # else all that were seen stay in memory
        except tarfile.TarError as error:
            raise InputError(f"{file.path}: expected a .tar archive, found damage: {error}") from error
        return np.array([*offsets, min(end, nbytes)], np.uint64)

    def rows(self, parts: Sequence[bytes], path: str, offsets: Sequence[int]) -> list[Element]:
        """Return what each part of a file is; raises as `row`."""
        return [self.row(part, path, offset) for part, offset in zip(parts, offsets, strict=True)]

    def row(self, data: bytes, path: str, offset: int) -> Element:
        """Return the example that stands in a part of an archive."""
        try:
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
                members = [member for member in archive if member.isfile()]
                held = {_key_of(member.name)[1]: _content(archive, member, path) for member in members}
        except (tarfile.TarError, EOFError, OSError) as error:
            raise InputError(f"{path}: the example at byte {offset} is damaged: {error}") from error
        return self._example(_key_of(members[0].name)[0], held, path, offset)

    def _example(self, key: str, held: dict[str, bytes], path: str, offset: int) -> Element:
        missing = [suffix for suffix in self._suffixes if suffix not in held]
        if missing:
            raise InputError(
                f"{path}: the example {key!r} at byte {offset}: expected a member {missing[0]!r}, found "
                f"{', '.join(held)}"
            )
        return {KEY: key.encode(), **{suffix: held[suffix] for suffix in self._suffixes}}


def suffixes_of_first(path: str, *, compressed: bool) -> tuple[str, ...]:
    """Return the suffixes of the members of the first example of an archive.

    Raises:
        InputError: it cannot be read, or is no archive.
    """
    found: list[tuple[str, str]] = []
    try:
        with (
            open_stream(path) as file,
            tarfile.open(fileobj=file, mode="r|gz" if compressed else "r|") as archive,
        ):
            for member in archive:
                if member.isfile():
                    found.append(_key_of(member.name))
                    if found[-1][0] != found[0][0]:
                        break
    except OSError as error:
        raise unreadable(path, error) from error
    except (tarfile.TarError, EOFError) as error:
        raise InputError(f"{shown(path)}: expected a .tar archive, found damage: {error}") from error
    return tuple(suffix for key, suffix in found if key == found[0][0])


def _key_of(name: str) -> tuple[str, str]:
    """Return a member's name up to the first dot in its last part, and what follows that."""
    path = PurePosixPath(name)
    stem, _, suffix = path.name.partition(".")
    return str(path.with_name(stem)) if stem else name, suffix


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> bytes:
    if member.size > MEMBER_BYTES_MAX:
        raise InputError(
            f"{path}: the member {member.name!r} has {member.size} bytes, expected at most 2 GiB"
        )
    file = archive.extractfile(member)
    data = b"" if file is None else file.read()
    if len(data) < member.size:
        raise InputError(f"{path}: the file ends inside the member at byte {member.offset}")
    return data
