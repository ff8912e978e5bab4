"""The removal on this host of runs that are over, for `dtrain rm`: `python -P -m dtrain_cli.agent.leftovers`.

It reads one JSON object, `Leftovers`, from stdin, and prints the line `MAGIC` and one object, `Removed`.
"""

import fcntl
import os
import shutil
import sys
from pathlib import Path

import msgspec

from dtrain.runs.files import default_runs_dir
from dtrain_cli.agent.messages import MAGIC
from dtrain_cli.agent.run_folders import CODE, LAUNCHER, LOCK, open_lock, run_folder
from dtrain_cli.code import discard


class Leftovers(msgspec.Struct, frozen=True):
    """The runs whose files are to go, by id; `host` is the launcher's name for this host.

    Of a detached run whose launcher was here, its directory goes too.
    """

    host: str
    runs: list[str]


class Removed(msgspec.Struct, frozen=True):
    """The runs of which there were files here, and why those of some could not be removed, by run."""

    found: list[str]
    problems: dict[str, str]


def remove(leftovers: Leftovers) -> Removed:
    found, problems = [], {}
    for run in leftovers.runs:
        places = {run_folder(leftovers.host, run): LOCK}
        if (launcher := run_folder(LAUNCHER, run)).is_dir():
            places |= {default_runs_dir() / run: "lock", launcher: LOCK}
        there = {folder: lock for folder, lock in places.items() if folder.is_dir()}
        if not there:
            continue
        found.append(run)
        try:
            for folder, lock in there.items():
                _remove(folder, lock)
        except BlockingIOError:
            problems[run] = f"its {'agent' if lock == LOCK else 'launcher'} is still there"
        except OSError as error:
            problems[run] = f"{error.filename or folder} cannot be removed: {error.strerror or error}"
    return Removed(found, problems)


def _remove(folder: Path, lock: str) -> None:
    descriptor = open_lock(folder / lock)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        discard(folder / CODE)  # it is read-only
        shutil.rmtree(folder)
    finally:
        os.close(descriptor)


def main() -> None:
    done = remove(msgspec.json.decode(sys.stdin.buffer.read(), type=Leftovers))
    sys.stdout.buffer.write(MAGIC + b"\n" + msgspec.json.encode(done) + b"\n")


if __name__ == "__main__":
    main()
