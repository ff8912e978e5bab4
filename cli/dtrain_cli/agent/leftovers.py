"""The removal on this host of runs that are over, for `dtrain rm`: `python -P -m dtrain_cli.agent.leftovers`.

It reads one JSON object, `Leftovers`, from stdin, and prints the line `MAGIC` and one object, `Removed`.
"""

import fcntl
import os
import shutil
import sys
from pathlib import Path

import msgspec

from dtrain_cli.agent.messages import MAGIC
from dtrain_cli.agent.run_folders import LOCK, code_store, open_lock, release, run_folder


class Leftovers(msgspec.Struct, frozen=True):
    """The runs whose files are to go, by id; `host` is the launcher's name for this host."""

    host: str
    runs: list[str]


class Removed(msgspec.Struct, frozen=True):
    """The runs of which there were files here, and why those of some could not be removed, by run."""

    found: list[str]
    problems: dict[str, str]


def remove(leftovers: Leftovers) -> Removed:
    found, problems = [], {}
    for run in leftovers.runs:
        folder = run_folder(leftovers.host, run)
        if not folder.is_dir():
            continue
        found.append(run)
        try:
            _remove(folder)
        except BlockingIOError:
            problems[run] = "its agent is still there"
        except OSError as error:
            problems[run] = f"{error.filename or folder} cannot be removed: {error.strerror or error}"
    return Removed(found, problems)


def _remove(folder: Path) -> None:
    descriptor = open_lock(folder / LOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        release(code_store(), folder)
        shutil.rmtree(folder)
    finally:
        os.close(descriptor)


def main() -> None:
    done = remove(msgspec.json.decode(sys.stdin.buffer.read(), type=Leftovers))
    sys.stdout.buffer.write(MAGIC + b"\n" + msgspec.json.encode(done) + b"\n")


if __name__ == "__main__":
    main()
