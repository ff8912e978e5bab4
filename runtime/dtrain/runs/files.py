"""The files of one run: the only place that knows their names and contents.

    <run directory>/                mode 0700
        lock                        held (flock) while the run lives, by the launcher or a chief by hand
        run.json                    `RunRecord`: the run's and the tasks' states, by the lock's holder
        join.json                   `JoinRecord`: for workers that join; while the run lives, mode 0600
        spec.json                   the resolved spec, with the wishes for `training` of the leader's program
        kept_spec.json              of a resumed run that has made no step yet: the spec.json before it
        target.json                 where the tasks run, if not on the launcher's machine
        plan.json                   the tasks that were started (`dtrain plan`), without the secret
        events.jsonl                the journal: one event a line
        reserve-run.json-0 ...      room on a full disk for the last record of that name; absent after the end
        metrics.jsonl               the chief's metrics: one line a report
        goodput.json                where the time of its replicas went; when the run has ended
        reports.jsonl               metrics of epochs and evaluations, by step (`runs.trial_reports`)
        prune.json                  of a trial: the order of `dtrain tune` to end it
        checkpoints/                ckpt-<step>/
        fetched/                    of a run on hosts: what may not replace files of the working directory
        data_index/                 indexes of data that cannot have them beside it, of filters, and what
                                    layers have learned by `adapt`
        tasks/worker-0/
            status.json             `TaskStatus`: written by the task itself about twice a second
            kill.json               `KillRequest`: it does not answer; by the chief, for the launcher
            joined.json             `JoinedRecord`: of a worker that has joined the run (`runs.joined`)
            attempt-0/output.log    stdout and stderr of one attempt, together and complete
            attempt-0/failure.json  `FailureRecord`: why the attempt died, by the task or its reaper
            attempt-0/trace.jsonl   where `trace` is on: the attempt's events and spans (`runs.trace`)
            attempt-0/seconds-0.bin where the time of a replica went (`runs.ledger.Timesheet`)
            attempt-0/slow.json     `Slowdown`: of the attempt from now on, by `dtrain chaos`
            attempt-0/signal.json   a number: a signal to the attempt on another host, by `dtrain chaos`

Small JSON files are replaced as a whole (written aside, then renamed), so a reader never sees half of one.
Where the disk has no room for the new one, the old one is overwritten; a reader that comes in the midst of
that looks again.

Another user who may write in a run directory, or make one where runs are looked for, could otherwise read the
run's secret, remove its records, or let `dtrain stop` end a process of his choice.
"""

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from dtrain.cluster import TaskId
from dtrain.errors import RunError, RunInUseError, SpecError
from dtrain.formats.bounded_reading import Moment
from dtrain.process.secret import state_home
from dtrain.process.tls_material import TlsMaterial
from dtrain.runs.json_file import FULL, overwrite_json, replace_json
from dtrain.runs.json_file import read_record as read_record
from dtrain.runs.json_file import read_sound as read_sound
from dtrain.runs.states import FailureKind, RunState, TaskState

RUNS_DIR = "DTRAIN_RUNS_DIR"

_OWN_NAME = re.compile(
    r"lock|(run|join|(kept_)?spec|plan|target|stop|prune|goodput)\.json|(events|metrics|reports)\.jsonl|checkpoints|tasks|data_index|fetched|reserve-.+"
    r"|left_behind\.txt|\.(run|join|spec|plan|target|stop)\.json\.\d+"
)


class TaskRecord(msgspec.Struct):
    """A task's process, as the launcher knows it; `message` says why it was lost, or is started again."""

    task: str
    state: TaskState = TaskState.PENDING
    pid: int | None = None
    host: str | None = None
    address: str | None = None
    attempt: int = 0
    restarts: int = 0
    exit_code: int | None = None
    message: str | None = None


class FailureRecord(msgspec.Struct):
    """The reason why an attempt of a task, or a run, failed.

    Attributes:
        likewise: the tasks that have failed with the same message; only in the record of a run.
        standing: each task's place in training, one line each; only in the record of a run that took too
            long.
    """

    task: str
    message: str
    kind: FailureKind = FailureKind.EXCEPTION
    time: str = ""
    monotonic_s: Moment = 0.0
    attempt: int = 0
    traceback: str | None = None
    exit_code: int | None = None
    peak_memory_bytes: int | None = None
    last_lines: list[str] = msgspec.field(default_factory=list)
    log: str | None = None
    likewise: list[str] = msgspec.field(default_factory=list)
    step: int | None = None
    standing: list[str] = msgspec.field(default_factory=list)
    error_type: str | None = None

    @property
    def order(self) -> tuple[bool, float]:
        """A lost peer is a consequence, and never precedes another failure."""
        return self.kind is FailureKind.PEER_LOST, self.monotonic_s


class SavedRecord(msgspec.Struct, frozen=True):
    """The newest checkpoint of a run: its step, and in words on which host and where it is."""

    step: int
    where: str


class RunRecord(msgspec.Struct):
    """The state of a run.

    `launcher_pid` and `launcher_started` (`started_s`) tell whether the process that wrote it is still alive;
    a run that its engine owns has none.

    Attributes:
        stalled: the place at which training stands still and the tasks it waits for, or why it has not begun
            at its engine; None: it goes on.
        keeps_logs: whether it keeps the output of the tasks; a task that was started by hand has its own.
    """

    run: str
    name: str
    state: RunState = RunState.PENDING
    started: str | None = None
    ended: str | None = None
    exit_code: int | None = None
    launcher_pid: int | None = None
    launcher_started: float | None = None
    failure: FailureRecord | None = None
    stalled: str | None = None
    host: str | None = None
    keeps_logs: bool = True
    saved: SavedRecord | None = None
    tasks: list[TaskRecord] = msgspec.field(default_factory=list)


class JoinRecord(msgspec.Struct, frozen=True):
    """The data with which a worker joins a run.

    Attributes:
        run_id: as every connection presents it; differs from the record's id for a cluster started by hand.
        cluster: as TF_CONFIG has it.
        tls: a certificate for workers that join, where the launcher makes certificates.
    """

    run_id: str
    launched: bool
    cluster: dict[str, list[str] | dict[str, str]]
    secret: str | None = None
    tls: TlsMaterial | None = None

    def __repr__(self) -> str:
        return f"JoinRecord({self.run_id!r})"  # without its secret


class Slowdown(msgspec.Struct, frozen=True):
    """An order to a task: its own computation takes `factor` times as long, whatever `simulate.slow` says."""

    factor: float


class KillRequest(msgspec.Struct, frozen=True):
    """A request to the launcher: kill a task past its lease, and start it again by its restart rule.

    The launcher kills the present attempt in two cases: it is the one that answered last (`attempt`), or its
    status was at least `silent_s` old when this was written. `attempt` is None if no attempt has answered
    before, or if the network may be cut.
    """

    reason: str
    attempt: int | None = None
    monotonic_s: Moment = 0.0
    silent_s: float = 0.0


class _Named:
    """A file or folder of a run, by its name in the run's directory."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, files: "RunFiles", kind: type["RunFiles"]) -> Path:
        return files.directory / self._name


class RunFiles(msgspec.Struct, frozen=True):
    """Paths and records of the run in `directory`."""

    directory: Path

    lock = _Named("lock")
    run = _Named("run.json")
    spec = _Named("spec.json")
    kept_spec = _Named("kept_spec.json")
    join = _Named("join.json")
    plan = _Named("plan.json")
    where = _Named("target.json")
    stop = _Named("stop.json")
    journal = _Named("events.jsonl")
    metrics = _Named("metrics.jsonl")
    goodput = _Named("goodput.json")
    reports = _Named("reports.jsonl")
    prune = _Named("prune.json")
    checkpoints = _Named("checkpoints")
    fetched = _Named("fetched")

    @property
    def newest_step(self) -> int | None:
        names = (path.name.removeprefix("ckpt-") for path in self.checkpoints.glob("ckpt-*"))
        return max((int(name) for name in names if name.isdecimal()), default=None)

    def tasks(self) -> list[TaskId]:
        return _named(self.directory.glob("tasks/*-*"))

    def task(self, task: TaskId) -> Path:
        return self.directory / "tasks" / f"{task.role}-{task.index}"

    def status(self, task: TaskId) -> Path:
        return self.task(task) / "status.json"

    def moments(self, task: TaskId) -> Path:
        """Return where a replica in local steps keeps the moments of its optimizer (`checkpoint.inner`)."""
        return self.task(task) / "inner"

    def joined(self, task: TaskId) -> Path:
        return self.task(task) / "joined.json"

    def joined_tasks(self, besides: Container[str] = ()) -> list[TaskId]:
        """Return every worker that has joined, also one that has left, without the folders `besides`."""
        root = self.directory / "tasks"
        with contextlib.suppress(OSError):
            others = (path for path in root.iterdir() if path.name not in besides)
            there = _named(path for path in others if path.name.startswith("worker-"))
            return [task for task in there if self.joined(task).exists()]
        return []

    def attempt(self, task: TaskId, attempt: int) -> Path:
        return self.task(task) / f"attempt-{attempt}"

    def log(self, task: TaskId, attempt: int) -> Path:
        return self.attempt(task, attempt) / "output.log"

    def failure(self, task: TaskId, attempt: int) -> Path:
        return self.attempt(task, attempt) / "failure.json"

    def trace(self, task: TaskId, attempt: int) -> Path:
        return self.attempt(task, attempt) / "trace.jsonl"

    def seconds(self, task: TaskId, attempt: int, replica: int | str) -> Path:
        return self.attempt(task, attempt) / f"seconds-{replica}.bin"

    def slow(self, task: TaskId, attempt: int) -> Path:
        return self.attempt(task, attempt) / "slow.json"

    def signal(self, task: TaskId, attempt: int) -> Path:
        return self.attempt(task, attempt) / "signal.json"

    def kill(self, task: TaskId) -> Path:
        return self.task(task) / "kill.json"

    def request_kill(self, task: TaskId, request: KillRequest) -> None:
        """Write a request down, also about a task of another host; a failure changes nothing."""
        with contextlib.suppress(RunError, OSError):
            self.task(task).mkdir(parents=True, exist_ok=True)
            write_record(self.kill(task), request)

    def attempts(self, task: TaskId) -> Iterator[int]:
        numbers = (path.name.removeprefix("attempt-") for path in self.task(task).glob("attempt-*"))
        yield from sorted(int(number) for number in numbers if number.isdecimal())

    def is_own(self, name: str) -> bool:
        return _OWN_NAME.fullmatch(name) is not None

    def create(self) -> None:
        """Make the directory, or take an existing one, for its owner only.

        Raises:
            RunError: it cannot be made, is not writable, or is not this user's alone.
        """
        str(self.directory).encode()  # else an UnicodeEncodeError: records name it
        try:
            self.directory.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            make_private(self.directory)
        except OSError as error:
            chosen = default_runs_dir().absolute() not in self.directory.absolute().parents
            way_out = "" if chosen else f"; say where runs are to be kept with --runs-dir or {RUNS_DIR}"
            raise RunError(
                f"cannot make the run directory {self.directory}: {error.strerror or error}{way_out}"
            ) from None
        if not os.access(self.directory, os.W_OK | os.X_OK):
            raise RunError(f"the run directory {self.directory} is not writable; give another with --run-dir")

    def keep_spec(self) -> None:
        """Keep the spec that is there, if any, for a resume after a launch that makes no step."""
        if self.spec.exists() and not self.kept_spec.exists():
            self.spec.replace(self.kept_spec)

    def open_lock(self) -> int:
        return os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    @contextlib.contextmanager
    def held(self, taken: str) -> Iterator[None]:
        """Make the directory if need be and hold its lock.

        Raises:
            RunInUseError: another process holds it, with the message `taken`.
        """
        self.create()
        lock = self.open_lock()
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunInUseError(taken) from None
            yield
        finally:
            os.close(lock)

    def write_last_words(self, path: Path, record: Any) -> None:
        """Write a last record as `write_record` does, on a full disk into reserved room."""
        try:
            write_record(path, record)
        except OSError as error:
            if error.errno not in FULL:
                raise
            for room in self.directory.glob(f"reserve-{path.name}-*"):
                with contextlib.suppress(FileNotFoundError):  # another task has taken it
                    replace_json(path, record, room)
                    return
            raise


def _named(folders: Iterable[Path]) -> list[TaskId]:
    """Return the tasks whose folders these are; a folder of another name is none of dtrain's."""
    tasks = []
    for folder in folders:
        with contextlib.suppress(SpecError):
            tasks.append(TaskId.parse(folder.name.replace("-", ":")))
    return sorted(tasks)


def write_record(path: Path, record: Any) -> None:
    """Replace one of the small JSON files as a whole, not fsynced: they are for people, not for recovery.
    On a full disk the file is overwritten: a record that fits into its blocks needs no room.
    """
    try:
        replace_json(path, record)
    except OSError as error:
        if error.errno not in FULL or not path.exists():
            raise
        overwrite_json(path, record)


def offer_to_join(files: RunFiles, record: JoinRecord) -> None:
    """Let workers join the run from now on; the file holds the secret and is its owner's alone."""
    replace_json(files.join, record, private=True)


def default_runs_dir() -> Path:
    """Return DTRAIN_RUNS_DIR, else XDG's directory of runs (``~/.local/state/dtrain/runs``)."""
    if chosen := os.environ.get(RUNS_DIR):
        return Path(chosen).expanduser()  # ~ stays where no shell has expanded it
    return state_home() / "dtrain" / "runs"


PRIVATE = 0o700
NOT_BELIEVED = "only this user's own runs are read"


def why_not_own(facts: os.stat_result) -> str | None:
    if facts.st_uid != os.geteuid():
        return f"it belongs to another user (uid {facts.st_uid})"
    if facts.st_mode & 0o022:
        return f"others may write to it (mode {stat.S_IMODE(facts.st_mode):04o}; `chmod go-w` corrects it)"
    return None


def open_own(directory: Path) -> int:
    """Open a folder that is this user's alone, else raise a `RunError`; the caller closes the descriptor."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if why := why_not_own(os.fstat(descriptor)):
        os.close(descriptor)
        raise RunError(f"{directory} is not used as a run's directory: {why}; {NOT_BELIEVED}")
    return descriptor


def make_private(directory: Path) -> None:
    """Give an existing run directory mode 0700; raise a `RunError` if it is not this user's alone."""
    descriptor = open_own(directory)
    try:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != PRIVATE:
            os.fchmod(descriptor, PRIVATE)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EROFS):  # a file system without modes
            raise
    finally:
        os.close(descriptor)
