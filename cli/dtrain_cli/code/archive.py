"""A folder's code as one archive: the same files give the same bytes, and their digest is its name."""

import hashlib
import io
import os
import posixpath
import stat
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dtrain.errors import RunError
from dtrain.formats.regular_file import read_regular

BYTES_MAX = 64 << 20
FILES_MAX = 100_000
DIGEST_BYTES = 16
_MOMENT_S = 315_532_800
"""1 January 1980, of every file: the earliest that zip files, and so wheels, can say."""
_NAMED = 5


@dataclass(frozen=True)
class Archive:
    """The code of a folder.

    Attributes:
        digest: of the data, in hexadecimal digits.
        data: a tar file, not compressed.
    """

    digest: str
    data: bytes = field(repr=False)


def digest_of(data: bytes) -> str:
    """Return the name of an archive."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def pack(folder: Path, names: Sequence[str]) -> Archive:
    """Return the archive of some files of a folder.

    Of a file it keeps the name, the bytes, and whether it can be executed; of a link where it leads.

    Args:
        folder: below which they lie.
        names: paths from there, as `code_files` lists them.

    Raises:
        RunError: there are none or too many, they are too big, a link leads out of the folder, or one cannot
            be read.
    """
    try:
        looks = {name: os.lstat(folder / name) for name in names}
        _check_sizes(folder, looks)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name, look in looks.items():
                member = tarfile.TarInfo(name)
                member.mtime = _MOMENT_S
                if stat.S_ISLNK(look.st_mode):
                    member.type, member.linkname = tarfile.SYMTYPE, _link(folder, name, looks)
                    tar.addfile(member)
                    continue
                data = read_regular(folder / name, BYTES_MAX, follow=False)
                member.size = len(data)
                member.mode = 0o555 if look.st_mode & stat.S_IXUSR else 0o444
                tar.addfile(member, io.BytesIO(data))
    except OSError as error:
        raise RunError(
            f"code: {error.filename or folder} cannot be read: {error.strerror or error}"
        ) from None
    data = buffer.getvalue()
    return Archive(digest_of(data), data)


def _check_sizes(folder: Path, looks: dict[str, os.stat_result]) -> None:
    sizes = {name: look.st_size for name, look in looks.items() if stat.S_ISREG(look.st_mode)}
    if not looks:
        raise RunError(f"code: {folder} has no files to send; does git ignore all of them?")
    if len(looks) > FILES_MAX:
        raise RunError(
            f"code: {folder} has {len(looks)} files, expected at most {FILES_MAX}; see code.exclude"
        )
    if (total := sum(sizes.values())) > BYTES_MAX:
        biggest = sorted(sizes, key=lambda name: (-sizes[name], name))[:_NAMED]
        named = ", ".join(f"{name} ({_mib(sizes[name])})" for name in biggest)
        raise RunError(
            f"code: {folder} has {_mib(total)} in {len(looks)} files, and at most {_mib(BYTES_MAX)} are "
            f"sent; leave out data by code.exclude or .gitignore; the biggest: {named}"
        )


def _link(folder: Path, name: str, looks: dict[str, os.stat_result]) -> str:
    """Return where a link leads; raise a `RunError` if that is not below the folder and sent, too."""
    target = str((folder / name).readlink())
    if leads_out(name, target):
        raise RunError(
            f"code: the link {name} leads to {target}, out of the folder that is sent; "
            "leave it out by code.exclude"
        )
    return target


def leads_out(name: str, target: str) -> bool:
    """Return whether a link of this name leads out of the folder that its name begins at."""
    whole = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    return target.startswith("/") or whole == ".." or whole.startswith("../") or "\0" in target


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.1f} MiB"
