"""An archive of code laid out as a folder that its digest names: whole or not at all, and read-only.

Nothing in an archive is trusted: a name or a link that leads elsewhere, a device, a name that stands there
twice, and more bytes than are ever sent, refuse it before anything is written.
"""

import errno
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from dtrain.errors import RunError
from dtrain_cli.code.archive import BYTES_MAX, FILES_MAX, digest_of, leads_out

_PART_MAX = 255
_PATH_MAX = 4000


def unpack(data: bytes, digest: str, store: Path) -> Path:
    """Return the folder ``<store>/<digest>`` with the archive's files; it is made if it is not there.

    Args:
        data: an archive, as `pack` makes them.
        digest: its name.
        store: the folder of all archives' folders, which is made.

    Raises:
        RunError: the data are not those of the digest, or no archive of code.
        OSError: it cannot be written; nothing is left of it then.
    """
    folder = store / digest
    if folder.is_dir():
        return folder
    if digest_of(data) != digest:
        raise RunError(f"code: the archive that came is not {digest}")
    members = _checked(data)
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    begun = Path(tempfile.mkdtemp(prefix=f".{digest}-", dir=store))
    try:
        _lay_out(begun, data, members)
        begun.rename(folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and folder.is_dir():
            return folder  # another launcher was faster
        raise
    finally:
        if begun.exists():
            discard(begun)
    return folder


def link_farm(code: Path, work: Path, store: Path | None = None) -> None:
    """Make a working directory in which every file of the code is there as a link, and can be replaced.

    Args:
        code: a folder of `unpack`.
        work: the folder to make; what already lies in it stays.
        store: the folder of all archives' folders: links to other code than this, of an earlier launch, go.

    Raises:
        OSError: it cannot be written.
    """
    for link in _links_to_others(work, code, store) if store is not None else ():
        link.unlink()
    for parent, folders, files in os.walk(code):
        here = work / os.path.relpath(parent, code)
        here.mkdir(parents=True, exist_ok=True)
        links = [name for name in folders if Path(parent, name).is_symlink()]
        for name in (*files, *links):
            if not os.path.lexists(here / name):
                (here / name).symlink_to(Path(parent, name))


def _links_to_others(work: Path, code: Path, store: Path) -> Iterator[Path]:
    """Yield the links of a working directory that lead into other folders of a store."""
    for parent, folders, files in os.walk(work):
        for link in (Path(parent, name) for name in (*folders, *files)):
            if link.is_symlink():
                target = link.readlink()
                if target.is_relative_to(store) and not target.is_relative_to(code):
                    yield link


def discard(folder: Path) -> None:
    """Remove a folder of `unpack`, which is read-only; what cannot be removed stays."""
    for parent, _, _ in os.walk(folder):
        Path(parent).chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _checked(data: bytes) -> list[tarfile.TarInfo]:
    """Return the members of an archive in which every name and link stays below its folder."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            members = tar.getmembers()
    except (tarfile.TarError, ValueError, IndexError, OverflowError, RecursionError) as error:
        raise RunError(f"code: no archive of code: {error}") from None
    problem = next(_problems(members), None)
    if problem is not None:
        raise RunError(f"code: no archive of code: {problem}")
    return members


def _problems(members: Sequence[tarfile.TarInfo]) -> Iterator[str]:
    names = {member.name for member in members}
    if len(members) > FILES_MAX or len(names) != len(members):
        yield f"expected at most {FILES_MAX} files of different names"
    if sum(max(0, member.size) for member in members) > BYTES_MAX:
        yield f"expected at most {BYTES_MAX} bytes"
    for member in members:
        parts = member.name.split("/")
        if not _is_path(member.name):
            yield f"{member.name[:80]!r} is no path below a folder"
        elif any("/".join(parts[:depth]) in names for depth in range(1, len(parts))):
            yield f"{member.name[:80]!r} lies below a file or a link"
        elif not (member.isreg() or member.issym()) or member.issparse():
            yield f"{member.name[:80]!r} is neither a file nor a link"
        elif member.issym() and (not member.linkname or leads_out(member.name, member.linkname)):
            yield f"the link {member.name[:80]!r} leads out of the folder"


def _is_path(name: str) -> bool:
    parts = os.fsencode(name).split(b"/")
    sound = all(part not in (b"", b".", b"..") and len(part) <= _PART_MAX for part in parts)
    return sound and "\0" not in name and len(os.fsencode(name)) <= _PATH_MAX


def _lay_out(folder: Path, data: bytes, members: Sequence[tarfile.TarInfo]) -> None:
    """Write the files into an empty folder of our own, and take away the right to write."""
    for member in members:
        path = folder / member.name
        path.parent.mkdir(parents=True, exist_ok=True)
        if member.issym():
            path.symlink_to(member.linkname)
            continue
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write(memoryview(data)[member.offset_data : member.offset_data + member.size])
        path.chmod(0o555 if member.mode & 0o100 else 0o444)
    for parent, _, _ in os.walk(folder, topdown=False):
        Path(parent).chmod(0o555)
