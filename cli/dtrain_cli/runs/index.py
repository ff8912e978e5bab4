"""The runs that this machine knows: directories, records and places, and the one that a person means.

A run is known if its directory, or a link to it, lies below the runs directory. Newest means: started last.
A record is believed if its file and its folder are this user's alone: what others may write names no
process.
"""

import os
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from dtrain.cluster import TaskId
from dtrain.config.choices import On
from dtrain.errors import RunError, RunNotFoundError, SpecError
from dtrain.runs.files import (
    NOT_BELIEVED,
    RUNS_DIR,
    FailureRecord,
    RunFiles,
    RunRecord,
    open_own,
    read_record,
    why_not_own,
    write_record,
)
from dtrain.runs.journal import append_event, now_text
from dtrain.runs.json_file import give_room_back, keep_room
from dtrain.runs.json_file import read_record as read_json_record
from dtrain.runs.states import RunState

NAMED_MAX = 5
_BY_HAND = "the files of a run whose tasks were started by hand are on its leader's machine"


class KnownRun(msgspec.Struct, frozen=True):
    """One run with its record."""

    files: RunFiles
    record: RunRecord

    @property
    def started(self) -> str:
        """Return the ISO time of the start, or of the directory where the start was not recorded yet."""
        if self.record.started is not None:
            return self.record.started
        return datetime.fromtimestamp(self.files.directory.stat().st_ctime, UTC).isoformat()


class Survey(msgspec.Struct, frozen=True):
    """The runs below a runs directory, the newest first, and why each of the others cannot be read."""

    runs: list[KnownRun]
    unread: list[str]


def survey(runs_dir: Path) -> Survey:
    """Read every run below a directory. One that cannot be read hides no other."""
    runs: dict[Path, KnownRun] = {}
    unread = []
    others = []
    for entry in _entries(runs_dir):
        try:
            directory = entry.resolve()
            if directory.stat().st_uid != os.geteuid():
                others.append(entry.name)
            elif directory not in runs and (record := own_record(entry)) is not None:
                runs[directory] = KnownRun(RunFiles(directory), record)
        except FileNotFoundError:  # a link to a run that was removed, or a run that is being removed
            continue
        except PermissionError:
            others.append(entry.name)
        except RunError as error:
            unread.append(str(error))
        except OSError as error:
            unread.append(f"{entry} cannot be read: {error.strerror}")
    if others:
        unread.append(f"{shown_names(others, 1)} may not be read by this user, or belong to another one")
    return Survey(
        sorted(runs.values(), key=lambda run: (instant(run.started), run.record.run), reverse=True), unread
    )


def known_runs(runs_dir: Path) -> list[KnownRun]:
    return survey(runs_dir).runs


def own_record(directory: Path) -> RunRecord | None:
    """Return the record of the run in a folder; None if there is none.

    Raises a `RunError` if it is damaged or not this user's alone.
    """
    try:
        folder = open_own(directory)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        # The folder cannot be exchanged for another between its check and the reading.
        path = Path(f"/proc/self/fd/{folder}/run.json")
        try:
            facts = path.lstat()
        except FileNotFoundError:
            return None
        if why := why_not_own(facts):
            raise RunError(f"{directory / path.name} is not believed: {why}; {NOT_BELIEVED}")
        record = read_json_record(path, RunRecord)
        for task in record.tasks if record else ():
            TaskId.parse(task.task)
        return record
    except SpecError as error:
        raise RunError(f"{directory / 'run.json'} is damaged: {error}") from None
    except RunError as error:
        raise RunError(str(error).replace(f"/proc/self/fd/{folder}", str(directory), 1)) from None
    finally:
        os.close(folder)


def find_run(reference: str | None, runs_dir: Path) -> KnownRun:
    """Return the run of an id, a name (the newest), a unique prefix of an id, or a path; None: the newest.

    The end of an id is the name of a run at its engine. Raises a `RunNotFoundError` if there is none, or more
    than one begins so.
    """
    found = survey(runs_dir)
    runs = found.runs
    if reference is None:
        if not runs:
            raise RunNotFoundError(no_run_below(runs_dir, found.unread))
        return runs[0]
    for matches in (
        [run for run in runs if run.record.run == reference],
        [run for run in runs if run.record.name == reference][:1],
        [run for run in runs if run.record.run.startswith(reference)] if reference else [],
        [run for run in runs if run.record.run.endswith(f"-{reference}")],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise RunNotFoundError(
                f"{len(matches)} runs begin with {reference!r}: "
                f"{shown_names([run.record.run for run in matches])}; write more of the id"
            )
    try:
        record = own_record(Path(reference)) if reference else None
    except (OSError, ValueError):  # no path that exists, or one that may not be read
        record = None
    if record is not None:
        return KnownRun(RunFiles(Path(reference).resolve()), record)
    if "/" in reference:
        raise RunNotFoundError(f"no run in the folder {reference}")
    ids = [run.record.run for run in runs]
    newest = f"the newest are {shown_names(ids)}" if runs else "; ".join(found.unread[:1]) or "there are none"
    newest += f" ({_BY_HAND})"
    raise RunNotFoundError(f"no run with the id, name or path {reference!r} below {runs_dir}; {newest}")


def no_run_below(runs_dir: Path, unread: list[str]) -> str:
    if unread:
        return (
            f"no run below {runs_dir} can be read: {shown_names(unread, 1)}; say where your own are with "
            f"--runs-dir or {RUNS_DIR}"
        )
    return f"no run below {runs_dir} yet; start one with `dtrain launch PROGRAM.py` ({_BY_HAND})"


def _entries(runs_dir: Path) -> list[Path]:
    try:
        return sorted(runs_dir.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        text = (
            f"{runs_dir} cannot be read: {error.strerror}; say where your runs are with --runs-dir or "
            f"{RUNS_DIR}"
        )
        raise RunError(text) from None


def register_run(files: RunFiles, runs_dir: Path, run_id: str) -> None:
    """Make a run with a directory of its own (`--run-dir`) known, by a link below the runs directory.

    A link that cannot be made is no reason not to train: the run is then found by its path alone.
    """
    link = runs_dir / run_id
    try:
        runs_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(files.directory.resolve(), target_is_directory=True)
    except OSError:
        return


def instant(text: str) -> datetime:
    """Read an ISO time; a text that is none is long ago."""
    return moment(text) or datetime.fromtimestamp(0, UTC)


def moment(text: str | None) -> datetime | None:
    """Read an ISO time, in the local zone; None for a text that is none."""
    try:
        return datetime.fromisoformat(text).astimezone() if text else None
    except (ValueError, OverflowError):  # no time, or none of the clock's years
        return None


def shown_names(names: Sequence[str], most: int = NAMED_MAX) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def new_run_id(name: str, now: datetime) -> str:
    """Return for example ``20261121-094500-digits-ab12``, which sorts by time and names the run."""
    return f"{now:%Y%m%d-%H%M%S}-{name}-{secrets.token_hex(2)}"


def check_fit(files: RunFiles) -> None:
    """Raise a `SpecError` if an existing directory may not become a run's."""
    if strange := _strange(files):
        raise SpecError(
            f"{files.directory} cannot be a run's directory: {strange}; give a new or empty one with "
            "--run-dir"
        )


def _strange(files: RunFiles) -> str | None:
    try:
        if why := why_not_own(files.directory.stat()):
            return why
    except OSError:  # why it cannot be had is said when it is made
        return None
    try:
        names = sorted(path.name for path in files.directory.iterdir())
    except OSError as error:
        return error.strerror
    if files.run.name not in names and (alien := [name for name in names if not files.is_own(name)]):
        return f"it holds {shown_names(alien, 1)}, which no run has made"
    return None


@contextmanager
def locked_run_directory(directory: Path, resume: bool, job: str | None = None) -> Iterator[RunFiles]:
    """Make the directory if need be and hold its lock; `resume`: it must hold an earlier launch of the run,
    and else none but a run that waits for `job`.

    Raises:
        RunInUseError: another launch, or a chief started by hand, holds the lock.
        SpecError: it holds a run that is not to be resumed, or is not fit for a run.
        RunNotFoundError: it holds no run that could be resumed.
    """
    files = RunFiles(directory)
    check_fit(files)
    with files.held(f"{directory} is in use by another launch; give another --run-dir, or stop that run"):
        known = own_record(directory) if files.run.exists() and not resume else None
        waits = job is not None and where_of(files).job == job
        if known is not None and not (waits and known.launcher_pid is None):
            raise SpecError(
                f"{directory} already holds a run; resume it with --resume, or give another --run-dir"
            )
        if resume and not files.run.exists():
            raise RunNotFoundError(
                f"there is no run in {directory} to resume; leave out --resume to start one there"
            )
        try:
            keep_room(directory)
            yield files
        finally:
            give_room_back(directory)


class WhereRecord(msgspec.Struct, frozen=True):
    """The place of a run's tasks: `hosts` as the spec names them, empty where the engine decides.

    Attributes:
        job: by which the engine knows the run; None where it hangs on its launcher.
        earlier: hosts of earlier launches of the run, which may have left files there.
        launcher: the host on which the launcher runs; None: on the machine that has the record.
    """

    engine: On
    hosts: list[str] = msgspec.field(default_factory=list)
    job: str | None = None
    earlier: list[str] = msgspec.field(default_factory=list)
    launcher: str | None = None

    @property
    def all_hosts(self) -> list[str]:
        return [*self.hosts, *self.earlier]


ATTACHED = (On.SSH, On.SLURM)
"""The engines whose tasks a launcher reaches through agents."""


def make_known(files: RunFiles, runs_dir: Path, run_id: str, where: WhereRecord, record: RunRecord) -> None:
    """Write down a run whose launcher, or engine, is elsewhere; `runs_dir` has it, or a link to it."""
    write_record(files.where, where)
    write_record(files.run, record)
    if files.directory.parent != runs_dir:
        register_run(files, runs_dir, run_id)


def where_of(files: RunFiles) -> WhereRecord:
    """Return where the tasks of a run are: on this machine, if no record that can be read says more."""
    try:
        return read_record(files.where, WhereRecord) or WhereRecord(On.LOCAL)
    except (RunError, OSError):
        return WhereRecord(On.LOCAL)


def other_host(record: RunRecord) -> str | None:
    """Return the host of the process that writes a run's record, if it is not this one.

    The record's process ids and the monotonic times of the statuses beside it are that host's then.
    """
    return None if record.host == socket.gethostname() else record.host


def where_text(record: WhereRecord) -> str:
    """Return the place in words: ``local``, ``ssh h1``, ``ssh h1 +3``."""
    hosts = record.hosts
    return " ".join([record.engine, *hosts[:1], *([f"+{len(hosts) - 1}"] if hosts[1:] else [])])


class Journal:
    """The writer of a run's events and of `record`, its run.json. A full disk is reported once, no more."""

    def __init__(self, files: RunFiles, record: RunRecord, warn: Callable[[str], None]) -> None:
        self.record = record
        self.files = files
        self._warn = warn
        self._saved = ""
        self._warned = False

    def event(self, kind: str, **facts: Any) -> None:
        try:
            append_event(self.files, kind, **facts)
        except OSError as error:
            self._complain(error)

    def end(self, state: RunState, exit_code: int, failure: FailureRecord | None) -> None:
        record = self.record
        record.state = state
        record.exit_code = exit_code
        record.failure = failure
        record.ended = now_text()
        record.stalled = None
        self.event("ended", state=state, exit_code=exit_code)

    def save(self) -> None:
        if (text := repr(self.record)) == self._saved:
            return
        try:
            write = self.files.write_last_words if self.record.ended else write_record
            write(self.files.run, self.record)
            self._saved = text
        except OSError as error:
            self._complain(error)

    def _complain(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            self._warn(
                f"cannot write to {self.files.directory}: {error.strerror}; the run continues without its "
                "journal"
            )
