"""The files of a folder with code: those that git tracks or would track; without git, all of them."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from dtrain.errors import RunError
from dtrain_cli.code.patterns import excluded

LEFT_OUT = (".git/", "__pycache__/")
"""Left out everywhere: histories, and caches of the interpreter that made them."""
_NO_REPOSITORY = b"not a git repository"
_GIT_S = 60.0


def code_files(folder: Path, exclude: Sequence[str] = ()) -> list[str]:
    """Return the files and links below a folder that belong to its code, sorted, as paths from it.

    Args:
        folder: that is sent.
        exclude: patterns of what is left out besides what git ignores.

    Raises:
        RunError: it is no folder, or git refuses to list it.
    """
    if not folder.is_dir():
        raise RunError(f"code: {folder} is no folder")
    patterns = (*LEFT_OUT, *exclude)
    listed = _by_git(folder)
    names = _by_walking(folder, patterns) if listed is None else _existing(folder, listed)
    return sorted({name for name in names if not excluded(name, patterns)}, key=os.fsencode)


def _by_git(folder: Path) -> list[str] | None:
    """Return what git tracks and what it would track; None where there is no git or no repository.

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
    """Yield the files that are still there, and those of repositories within."""
    for name in listed:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            inner = name.rstrip("/")
            yield from (f"{inner}/{each}" for each in code_files(path))
        elif os.path.lexists(path):
            yield name


def _by_walking(folder: Path, patterns: Sequence[str]) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        above = os.path.relpath(parent, folder)
        prefix = "" if above == "." else f"{above}/"
        links = [name for name in folders if Path(parent, name).is_symlink()]
        kept = (name for name in folders if name not in links)
        folders[:] = [name for name in kept if not excluded(f"{prefix}{name}/x", patterns)]
        yield from (f"{prefix}{name}" for name in (*files, *links))
