"""The folder with a program: listed, packed into an archive that its digest names, and unpacked elsewhere.

Listed are the files that git tracks or would track; without git, all of them. Patterns of `code.exclude`
mean what they mean in `.gitignore`. Secrets and private keys never leave this machine, and every engine
asks here: code lies on hosts and in ConfigMaps, which more people read than a user's own files.

The same files give the same bytes. Nothing in an archive is trusted: a name or a link that leads elsewhere,
a device, a name that stands there twice, and more bytes than are ever sent, refuse it before anything is
written. A folder is there whole or not at all, and read-only.
"""

import contextlib
import functools
import glob
import hashlib
import io
import os
import posixpath
import re
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dtrain.config import Problem, RunSpec, SecuritySection
from dtrain.config.sections import TLS_VARIABLES
from dtrain.errors import RunError, SpecError
from dtrain.formats.bounded_reading import open_regular, read_regular
from dtrain.formats.remote_files import has_password
from dtrain.process.secret import SHORTEST_CHARACTERS
from dtrain.runs.files import RunFiles

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

BYTES_MAX = 64 << 20
FILES_MAX = 100_000
DIGEST_BYTES = 16
_MOMENT_S = 315_532_800
"""1 January 1980, of every file: the earliest that zip files, and so wheels, can say."""
_NAMED = 5


@dataclass(frozen=True)
class CodeArchive:
    """The code of a folder: an uncompressed tar file, and its name, a digest in hexadecimal digits."""

    digest: str
    data: bytes = field(repr=False)


def digest_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def pack(folder: Path, names: Sequence[str]) -> CodeArchive:
    """Return the archive of the files `names` of a folder, as `code_files` lists them.

    Of a file it keeps the name, the bytes, and whether it can be executed; of a link its target.
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
    return CodeArchive(digest_of(data), data)


def files_of(archive: CodeArchive) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive.data)) as tar:
        found = {each.name: (each.offset_data, each.offset_data + each.size) for each in tar if each.isreg()}
    return {name: archive.data[begin:end] for name, (begin, end) in found.items()}


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
        named = ", ".join(f"{name} ({mib(sizes[name])})" for name in biggest)
        raise RunError(
            f"code: {folder} has {mib(total)} in {len(looks)} files, and at most {mib(BYTES_MAX)} are "
            f"sent; leave out data by code.exclude or .gitignore; the biggest: {named}"
        )


def _link(folder: Path, name: str, looks: dict[str, os.stat_result]) -> str:
    target = str((folder / name).readlink())
    if leads_out(name, target):
        raise RunError(
            f"code: the link {name} leads to {target}, out of the folder that is sent; "
            "leave it out by code.exclude"
        )
    return target


def leads_out(name: str, target: str) -> bool:
    whole = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    return target.startswith("/") or whole == ".." or whole.startswith("../") or "\0" in target


def mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.1f} MiB"


_NAMES = re.compile(r"(^|/)\.env[^/]*(/|$)|\.(key|pem)$|(^|/)id_[^./]*$", re.IGNORECASE)
_CONTENTS = re.compile(rb"-BEGIN [A-Z0-9 ]*PRIVATE KEY|dtrain1-[0-9a-f]{64}")
_LOOKED_BYTES = 1 << 20
_SHOWN = 5


def may_leave(
    folder: Path, names: Sequence[str], security: SecuritySection, say: Callable[[str], None]
) -> list[str]:
    """Return the files of the code that may be sent, and name the others in one line by `say`.

    Left out are the files that `security` names, those with the names of secrets and keys, and those that
    only their owner can read and that hold a private key or a secret of dtrain.
    """
    files = [getattr(security, name) for name in (*TLS_VARIABLES, "secret_file")]
    paths = (os.path.realpath(Path(file).expanduser()) for file in files if file)
    own = [re.sub(r"\{\w+\}", "*", glob.escape(path)) for path in paths]  # tasks may have own files
    held = [name for name in names if _is_secret(folder / name, name, own)]
    if held:
        say(f"left out of the code: {shown(held)}: secrets and private keys stay on this machine")
    return [name for name in names if name not in held]


def shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def check_texts(files: Mapping[str, bytes], secrets: Iterable[str]) -> None:
    """Raise a `SpecError` if a file that others will read holds the text of one of the run's secrets."""
    texts = [text.encode() for text in secrets if len(text) >= SHORTEST_CHARACTERS]
    for path, content in files.items():
        if any(text in content for text in texts):
            raise SpecError(
                f"code: {path} holds a secret of the run, and everybody who may read a ConfigMap would see "
                "it; take it out of the file, or leave the file out by code.exclude"
            )


def password_problems(spec: RunSpec, arguments: Sequence[str]) -> Iterator[Problem]:
    """Yield the sections of a spec, and the arguments of its program, that show a URL's password."""
    for name, value in {**msgspec.to_builtins(spec), "arguments": arguments}.items():
        if has_password(msgspec.json.encode(value).decode()):
            expected = "expected a URL without a password, which everybody who may read the job would see"
            yield (name,), f"{expected}; storage takes it from the account of the job, or from variables"


def keep_from_git(folder: Path, pattern: str) -> None:
    """Add a pattern to the `.gitignore` of a folder; a failure changes nothing."""
    path = folder / ".gitignore"
    with contextlib.suppress(OSError):
        before = read_regular(path, _LOOKED_BYTES, follow=False) if os.path.lexists(path) else b""
        if os.fsencode(pattern) not in before.splitlines():
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(path, flags, 0o644), "ab") as file:
                file.write((b"\n" if before and before[-1:] != b"\n" else b"") + os.fsencode(pattern) + b"\n")


def _is_secret(path: Path, name: str, own: Sequence[str]) -> bool:
    real = os.path.realpath(path)  # of a link, Kubernetes gets the file that it leads to
    if _NAMES.search(name) or _NAMES.search(Path(real).name) or any(fnmatchcase(real, each) for each in own):
        return True
    try:
        with open(open_regular(path), "rb") as file:
            private = not os.fstat(file.fileno()).st_mode & 0o077
            return private and _CONTENTS.search(file.read(_LOOKED_BYTES)) is not None
    except OSError:  # packing will report the same error
        return False


LEFT_OUT = (".git/", "__pycache__/")
"""Left out everywhere: histories, and caches of the interpreter that made them."""
_NO_REPOSITORY = b"not a git repository"
_GIT_S = 60.0


def left_out(exclude: Iterable[str]) -> "GitIgnoreSpec":
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines((*LEFT_OUT, *exclude))


def code_files(folder: Path, exclude: Sequence[str] = ()) -> list[str]:
    """Return the files and links below a folder that belong to its code, as sorted paths from it.

    `exclude` has patterns of what is left out besides what git ignores. Directories of runs, and the links
    that name them below `runs`, are no code.
    """
    if not folder.is_dir():
        raise RunError(f"code: {folder} is no folder")
    out, listed = left_out(exclude), _by_git(folder)
    names = _by_walking(folder, out) if listed is None else _existing(folder, listed)
    is_run = functools.cache(lambda path: RunFiles(folder / path).run.is_file())
    return sorted(
        {
            name
            for name in names
            if not out.match_file(name) and not any(map(is_run, (Path(name), *Path(name).parents[:-1])))
        },
        key=os.fsencode,
    )


def _by_git(folder: Path) -> list[str] | None:
    """Return what git tracks or would track; None where there is no git or no repository.

    Its watcher of files is switched off: the configuration of a stranger's repository may name any program.
    """
    words = "-c core.fsmonitor=false ls-files -z --cached --others --exclude-standard"
    command = ["git", "-C", str(folder), *words.split()]
    try:
        listing = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_S,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        return None
    except subprocess.TimeoutExpired:
        raise RunError(f"code: git did not list {folder} within {_GIT_S:g} s") from None
    if listing.returncode != 0:
        if _NO_REPOSITORY in listing.stderr:
            return None
        reason = " ".join(listing.stderr.decode(errors="replace").split())
        raise RunError(f"code: git cannot list {folder}: {reason[:300]}")
    return [os.fsdecode(name) for name in listing.stdout.split(b"\0") if name]


def _existing(folder: Path, listed: Sequence[str]) -> Iterator[str]:
    for name in listed:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            inner = name.rstrip("/")
            yield from (f"{inner}/{each}" for each in code_files(path))
        elif os.path.lexists(path):
            yield name


def _by_walking(folder: Path, out: "GitIgnoreSpec") -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        above = os.path.relpath(parent, folder)
        prefix = "" if above == "." else f"{above}/"
        links = [name for name in folders if Path(parent, name).is_symlink()]
        kept = (name for name in folders if name not in links)
        folders[:] = [name for name in kept if not out.match_file(f"{prefix}{name}/")]
        yield from (f"{prefix}{name}" for name in (*files, *links))


_PART_MAX = 255
_PATH_MAX = 4000


def unpack(data: bytes, digest: str, store: Path) -> Path:
    """Return the folder ``<store>/<digest>`` with the archive's files; make it if it is not there.

    Raises a `RunError` for other data than the digest's or no archive of code.
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
    finally:
        if begun.exists():
            discard(begun)
    return folder


def link_farm(code: Path, work: Path, store: Path | None = None) -> None:
    """Make a working directory with a link to every file of the code, which can be replaced.

    What already lies in `work` stays, except for links to other code in `store`, of an earlier launch.
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
    for parent, folders, files in os.walk(work):
        for link in (Path(parent, name) for name in (*folders, *files)):
            if link.is_symlink():
                target = link.readlink()
                if target.is_relative_to(store) and not target.is_relative_to(code):
                    yield link


def discard(folder: Path) -> None:
    for parent, _, _ in os.walk(folder):
        Path(parent).chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _checked(data: bytes) -> list[tarfile.TarInfo]:
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
