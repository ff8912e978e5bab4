"""Calls on a host without an agent of a run: `python -P -m dtrain_cli.agent.host_call`.

It reads one JSON object from stdin, and prints the line `MAGIC` and one object. `Leftovers` has what runs
have left here removed, for `dtrain rm`; `Removed` answers. `DetachedLaunch` starts a launcher here, in
a new session and with the code that was sent; `Detached` answers once the run has started or has ended.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from dtrain.formats.bounded_reading import Text
from dtrain.runs.files import RunFiles, RunRecord, default_runs_dir, read_record
from dtrain.runs.states import RunState
from dtrain_cli.agent.messages import MAGIC
from dtrain_cli.agent.run_folders import CODE, LAUNCHER, LOCK, open_lock, run_folder
from dtrain_cli.code import discard, unpack
from dtrain_cli.targets.ssh import HERE

_LOOK_S = 0.1
_SAID_BYTES = 4000


class Leftovers(msgspec.Struct, frozen=True, tag="leftovers"):
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


class DetachedLaunch(msgspec.Struct, frozen=True, tag="launch"):
    """A launch: its options, what is behind them, more variables, and the code as an archive of this digest.

    `host` is the caller's name for this host, to which the launcher needs no login.
    """

    run: str
    host: str
    digest: str
    code: bytes
    options: list[str]
    behind: list[str]
    environment: dict[str, str]
    wait_s: float


class Detached(msgspec.Struct, frozen=True):
    """The state of the run, if it has begun, and the last that its launcher has said."""

    state: RunState | None
    said: Text


def start(order: DetachedLaunch) -> Detached:
    """Start a launcher, and wait until its run is up or has ended."""
    folder, files = run_folder(LAUNCHER, order.run), RunFiles(default_runs_dir() / order.run)
    RunFiles(folder).create()
    code = unpack(order.code, order.digest, folder)
    for parent, _, _ in os.walk(code):
        Path(parent).chmod(0o700)  # what comes back from the leader is written there
    places = ["--runs-dir", str(default_runs_dir()), "--run-dir", str(files.directory)]  # the last ones win
    words = ["-P", "-m", "dtrain_cli.main", "launch", *order.options, *places, *order.behind]
    log = folder / "launcher.log"
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600), "ab") as output:
        launcher = subprocess.Popen(
            [sys.executable, *words],
            cwd=code,
            env={**os.environ, **order.environment, HERE: order.host},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        begun = output.tell()
    deadline_s, state = time.monotonic() + order.wait_s, None
    while state in (None, RunState.PENDING, RunState.STARTING) and time.monotonic() < deadline_s:
        ended = launcher.poll() is not None
        record = read_record(files.run, RunRecord)
        state = record.state if record and record.launcher_pid == launcher.pid else None
        if ended:
            break
        time.sleep(_LOOK_S)
    with log.open("rb") as said:
        said.seek(begun)
        return Detached(state, said.read()[-_SAID_BYTES:].decode(errors="replace"))


def main() -> None:
    call = msgspec.json.decode(sys.stdin.buffer.read(), type=Leftovers | DetachedLaunch)
    done = remove(call) if isinstance(call, Leftovers) else start(call)
    sys.stdout.buffer.write(MAGIC + b"\n" + msgspec.json.encode(done) + b"\n")


if __name__ == "__main__":
    main()
