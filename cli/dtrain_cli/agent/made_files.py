"""The files that tasks have made in the working directory of their run, for the launcher that fetches them.

The links to the code that was sent are not among them, nor are hidden files, compiled modules of Python, and
links that a program has made.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from dtrain_cli.agent.messages import AllMade, MadePart

PART_BYTES = 1 << 18
"""The largest part of a file in one message."""
_COMPILED = "__pycache__"


def made_parts(work: Path) -> Iterator[MadePart | AllMade]:
    """Yield each file below a working directory part by part, in the order of their names, and the end."""
    problems = []
    for path, name in _made(work):
        try:
            yield from _parts(path, name)
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror}")
        except UnicodeEncodeError:
            problems.append(f"{os.fsencode(name)!r} is no name in UTF-8")
    yield AllMade(problems)


def is_fetched(name: str) -> bool:
    """Return whether a name, relative to a working directory, is one of a file that is fetched."""
    parts = name.split("/")
    return "\0" not in name and all(part and not part.startswith(".") for part in parts)


def _made(work: Path) -> Iterator[tuple[Path, str]]:
    for parent, folders, files in os.walk(work):
        folders[:] = sorted(name for name in folders if name != _COMPILED)
        for file in sorted(files):
            path = Path(parent, file)
            name = str(path.relative_to(work))
            if is_fetched(name):
                yield path, name


def _parts(path: Path, name: str) -> Iterator[MadePart]:
    name.encode()
    if not stat.S_ISREG(path.lstat().st_mode):
        return
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        data = file.read(PART_BYTES)
        while following := file.read(PART_BYTES):
            yield MadePart(name, data, last=False)
            data = following
        yield MadePart(name, data, last=True)
