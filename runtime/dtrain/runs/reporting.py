"""A task's status: updated by the threads that train or serve, written to its file by one thread.

The same status rides in the heartbeats to ps:0, so a leader started by hand can show every task's. Writing
never delays training: fields are plain attributes, the file is replaced about twice a second, and a failing
disk costs a status. Equally often the thread looks for a `Slowdown` of `dtrain chaos` and prints on stderr,
in a task that no launcher watches, the tasks that this one waits for.
"""

import contextlib
import math
import mmap
import os
import socket
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from dtrain.cluster import Role
from dtrain.config import InOneTask, RunSpec, SynchronousSection
from dtrain.config.choices import On
from dtrain.errors import RunError
from dtrain.messages.membership import TaskPhase, TaskStatus
from dtrain.process.assignment import TaskAssignment
from dtrain.process.life_line import started_s
from dtrain.process.plain_text import plain
from dtrain.runs import notices
from dtrain.runs.files import RunFiles, Slowdown, read_record, write_record
from dtrain.runs.ledger import SHEET_BYTES, Activity, Cause, Timesheet
from dtrain.runs.self_report import (
    STALE_S,
    Announcements,
    CertificateLife,
    OwnUsage,
    Unreached,
    exposure,
    introduction,
    time_text,
)
from dtrain.runs.trace import VARIABLE, Header, Trace


class Account:
    """Receives the waits and the progress of a process, and records nothing. A `Reporter` records them."""

    def waiting(self, for_whom: object) -> None: ...

    def progress(self, step: int) -> None: ...


WINDOW_S = 1.0


class WaitedFor:
    """The seconds for which a task has waited, by whom. A server waits for others itself: who they were at
    samples, taken while this task waited, says how its waits for the server are shared out.
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._samples: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=1000))

    def add(self, whom: str, for_s: float) -> None:
        """Add a wait for whom its text names: ``worker:1, worker:2, gradient of step 7``."""
        names = [each for each in whom.split(", ") if each.partition(":")[2].isdigit()]
        for name in names:
            self._seconds[name] += for_s / len(names)

    def sample(self, server: str, others: Sequence[str]) -> None:
        names = [each for each in others if ":" in each]  # else "3 more"
        self._samples[server].extend(names or [server])

    def by_name(self) -> dict[str, float]:
        found: defaultdict[str, float] = defaultdict(float)
        for whom, for_s in list(self._seconds.items()):
            names = list(self._samples.get(whom) or [whom])
            for name in names:
                found[name] += for_s / len(names)
        return found


class OwnPace:
    """The account of one task, written by the threads that train.

    Attributes:
        computing_s: the mean CPU time of a computation in the last window; None: there was no window yet.
    """

    def __init__(self) -> None:
        self.computing_s: float | None = None
        self.step_s: float | None = None
        self._begin(None)

    def _begin(self, now_s: float | None) -> None:
        self._begun_s = now_s
        self._steps = self._computations = 0
        self._computed_s = self._rested_s = 0.0

    def computed(self, used_s: float, rested_s: float) -> None:
        self._computations += 1
        self._computed_s += used_s
        self._rested_s += rested_s

    def stepped(self, now_s: float) -> None:
        """Add a step that ends now. A window lasts from the end of a step to that of another."""
        self._steps += 1
        if self._begun_s is None:
            self._begin(now_s)
        elif now_s - self._begun_s >= WINDOW_S and self._computations:
            self.computing_s = self._computed_s / self._computations
            rest_s = self._rested_s / self._computations
            self.step_s = (now_s - self._begun_s) / self._steps - rest_s
            self._begin(now_s)


INTERVAL_S = 0.5
QUIET_S = 2.0
"""The age at which an account without news is written again: a cluster that waits burns no CPU."""
FAR_QUIET_S = 4.0
"""The same for a worker on another host, whose accounts are copied twice, and judged by nobody but people."""
WAIT_SHOWN_AFTER_S = 0.5
NAMED_S = 0.001
"""Shorter waits are counted without a name: to find it would take longer than some of them."""
INPUT = "its own input: the next batch is being read"


def mean_staleness(counts: Mapping[int, int]) -> float | None:
    """Return the mean of counted pushes, by their staleness; None before the first push."""
    return sum(map(math.prod, counts.items())) / sum(counts.values()) if counts else None


class Reporter(Account):
    """Owner of a `TaskStatus` and, where there is a run directory, of its file.

    Attributes:
        status: fields may be set by any thread at any time.
        certificate: the first and the last moment of the task's certificate, in seconds since 1970;
            None: it has none.
    """

    def __init__(self, assignment: TaskAssignment) -> None:
        self.status = TaskStatus(
            task=str(assignment.task),
            pid=os.getpid(),
            host=socket.gethostname(),
            attempt=assignment.attempt,
            hosts_control=assignment.task == assignment.cluster.control_host,
        )
        self.activity = Activity()
        self._path: Path | None = None
        self._order: Path | None = None
        self.trace = _trace_of(assignment, self.status)
        self._slow_by_spec = self._slow = assignment.spec.simulate.slowness(assignment.task)
        self._assignment = assignment
        if assignment.run_dir is not None:
            self.keep_in(assignment.run_dir)
        self.certificate: Callable[[], tuple[float, float] | None] = lambda: None
        self._certificate_life = CertificateLife()
        self.bytes_moved: Callable[[], tuple[int, int]] | None = None
        self._waiting: tuple[object, float] | None = None
        self._behind: dict[str, str | None] = {}
        self._waited_for = WaitedFor()
        self._announcements = None if assignment.watched else Announcements()
        measured = assignment.watched and assignment.spec.on is On.LOCAL  # by whoever reads the status
        self._usage = None if measured else OwnUsage(time.monotonic())
        self._quiet_s = FAR_QUIET_S if _is_far_worker(assignment) else QUIET_S
        self._unreached: dict[str, Unreached] = {}
        self._stopped = threading.Event()
        self._writing = threading.Lock()  # else an older account might replace a newer one
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)
        self._rate_from = (time.monotonic(), 0, 0.0, 0.0)
        self._examples = 0
        self._pace = OwnPace()
        self._refused = 0
        self._waited_s = 0.0
        self.write()
        self._thread.start()

    def keep_in(self, run_dir: Path | None) -> None:
        """Write the status into a run directory from now on; None: nowhere, as another task keeps it."""
        if run_dir is None:
            with self._writing:
                self._path = None
            return
        files, own = RunFiles(run_dir), self._assignment
        path = files.status(own.task)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._order = files.slow(own.task, own.attempt)
        self._path = path
        spec = own.spec
        if own.task.trains and (own.task.role is Role.WORKER or spec.training.chief_trains):
            count = max(1, spec.replicas) if isinstance(spec.training, InOneTask) else 1
            names = [files.seconds(own.task, own.attempt, replica) for replica in range(count)]
            self.activity.sheets = [
                Timesheet(lasting_memory(name, SHEET_BYTES), time.monotonic, stale_means(spec), begun_s())
                for name in names
            ]

    def running(self) -> None:
        self.status.phase = TaskPhase.RUNNING
        self.write()

    def leaving(self) -> None:
        self.status.phase = TaskPhase.LEAVING
        self.write()

    def leads(self) -> None:
        """Record at once that this task leads: the launcher judges success by it."""
        self.status.leads = self.status.hosts_control = True
        self.write()

    def fit_begins(self) -> None:
        self.status.fits_begun += 1
        self.status.in_loop = False
        self.activity.beat()

    def fit_ends(self) -> None:
        """Record that the call of `fit` has ended, and write at once: the process may end next."""
        self.status.fits_ended = self.status.fits_begun
        self.write()

    def waiting(self, for_whom: object) -> None:
        """Record the task that this one waits for from now on; None: none."""
        if self._waiting is not None and self._waiting[0] == for_whom:
            return
        now = time.monotonic()
        trains = self.activity.sheet.waits(on=for_whom is not None)
        if self._waiting is not None:
            whom, since_s = self._waiting
            self._waited_s += now - since_s
            if trains and now - since_s >= NAMED_S:
                self._waited_for.add(str(whom), now - since_s)
            if self.trace.on:
                self.trace.span("wait", since_s, now, str(whom))
        self._waiting = None if for_whom is None else (for_whom, now)

    def behind(self, server: str, others: str | None) -> None:
        """Record for whom a server itself waits: so does any task that waits for the server."""
        self._behind[server] = others
        if self._waiting is not None:
            self._waited_for.sample(server, self._others(server))

    def unreached(self, server: str, address: str, reason: str | None) -> None:
        """Record, at every failure, why a server cannot be reached; None: it has been."""
        now_s = time.monotonic()
        before = self._unreached.get(server)
        if reason is None:
            self._unreached.pop(server, None)
        else:
            self._unreached[server] = Unreached(address, reason, before.since_s if before else now_s, now_s)

    def introduce(self) -> None:
        self.announce(introduction(self._assignment, self.status.pid))
        if said := exposure(self._assignment, encrypted=self.certificate() is not None):
            self.announce(said)

    def announce(self, text: str) -> None:
        if self._announcements is not None:
            self.warn(text)

    def _announce_waits(self) -> None:
        waiting = self._waiting
        now_s = time.monotonic()
        if self._announcements is not None:
            reading_s = self.activity.reading_since_s
            named = (INPUT, reading_s) if reading_s else waiting and (self._whom(waiting[0]), waiting[1])
            for text in self._announcements.due(now_s, dict(self._unreached), named):
                self.warn(text)

    def warn(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a full disk under it
            print(plain(f"dtrain: {self.status.task}: {text}"), file=sys.stderr, flush=True)  # noqa: T201

    def refused(self, reason: str) -> None:
        """Warn of a gradient that was not applied: of the first, the tenth, the hundredth and so on."""
        self._refused += 1
        if str(self._refused).rstrip("0") == "1":
            so_far = f" ({self._refused} so far)" if self._refused > 1 else ""
            self.warn(f"{reason}; it was not applied{so_far}")

    def tried_to_save(self, step: int, failure: str | None) -> None:
        """Record why the checkpoint of a step could not be written (None: it was), for the launcher to print.

        A warning alone would be lost where the log is on the same full disk.
        """
        changed = failure != self.status.unsaved
        self.status.unsaved = failure
        if failure is None:
            self.status.saved_step = step
        if changed:
            self.write()

    def progress(self, step: int, loss: float | None = None, examples: int = 0) -> None:
        self.status.step = step
        self.status.progress_monotonic_s = time.monotonic()
        if examples:
            self._pace.stepped(self.status.progress_monotonic_s)
        if loss is not None:
            self.status.loss = loss
        self._examples += examples

    def in_loop(self, updates: int) -> None:
        if self.status.phase is TaskPhase.STARTING:
            self.running()
        self.loop_begins()
        self.progress(updates)
        for sheet in self.activity.sheets:
            sheet.goes_on(updates)

    def loop_begins(self) -> None:
        if not self.status.in_loop:
            self.status.in_loop = True
            self.write()

    def begins(self) -> float:
        return time.thread_time()

    def slow_down(self, begun_s: float) -> None:
        """Sleep in proportion to the CPU time since `begins`, by `simulate.slow` or `dtrain chaos slow`."""
        used_s = time.thread_time() - begun_s
        rest_s = (self._slow - 1.0) * used_s
        if rest_s > 0.0:
            time.sleep(rest_s)
        self._pace.computed(used_s, rest_s)
        self.activity.sheet.sends()

    def current(self) -> TaskStatus:
        now = time.monotonic()
        waiting = self._waiting
        self.status.monotonic_s = now
        self.status.notices = notices.heard()
        if self.bytes_moved is not None:
            self.status.bytes_sent, self.status.bytes_received = self.bytes_moved()
        self.activity.sheets[0].waited_for(self._waited_for.by_name())
        whom = self._whom(waiting[0]) if waiting and now - waiting[1] >= WAIT_SHOWN_AFTER_S else None
        self.status.waiting_for = whom or self._trying_to_reach(now)
        self.status.waiting_monotonic_s = waiting[1] if self.status.waiting_for and waiting else None
        self.status.staleness_mean = mean_staleness(self.status.staleness_counts)
        self.status.computing_s, self.status.step_s = self._pace.computing_s, self._pace.step_s
        self.status.active_monotonic_s = self.activity.at_s
        self.status.busy_with = self.activity.busy_with
        self.status.reading_monotonic_s = self.activity.reading_since_s
        since, examples, waited_s, input_s = self._rate_from
        if self._examples and now - since >= 2 * INTERVAL_S:
            self.status.examples_per_s = (self._examples - examples) / (now - since)
            in_all_s = self._waited_s + (now - waiting[1] if waiting else 0.0)
            read_s = self.activity.waited_s(now)
            self.status.waiting_share = _share(in_all_s - waited_s, now - since)
            self.status.input_share = _share(read_s - input_s, now - since)
            self._rate_from = (now, self._examples, in_all_s, read_s)
        return replace(self.status)

    def _trying_to_reach(self, now_s: float) -> str | None:
        """Return the servers that a task tries to reach; None below a launcher, which sees who is up."""
        if self._announcements is None:
            return None
        return (
            ", ".join(
                server
                for server, found in sorted(dict(self._unreached).items())
                if now_s - found.since_s >= WAIT_SHOWN_AFTER_S and now_s - found.seen_s < STALE_S
            )
            or None
        )

    def _others(self, server: str) -> list[str]:
        named = (self._behind.get(server) or "").split(", ")
        return [task for task in named if task not in ("", self.status.task, server)]

    def _whom(self, whom: object) -> str:
        waited_for = str(whom)
        others = self._others(waited_for)
        return f"{', '.join(others)} (at {waited_for})" if others else waited_for

    def write(self) -> None:
        if self._path is not None:
            # a full disk must not stop training; the heartbeat's age shows it
            with self._writing, contextlib.suppress(OSError):
                write_record(self._path, self.current())

    def close(self) -> None:
        """End the account; the last status stays, also if SIGTERM, which comes once, comes just now."""
        try:
            self._write_last()
        except BaseException:  # SystemExit from SIGTERM's handler interrupted the write
            self._write_last()
            raise

    def _write_last(self) -> None:
        self._stopped.set()
        self.status.phase = TaskPhase.FINISHED
        self.write()
        self.trace.flush()

    def _run(self) -> None:
        last: object = None
        last_s = -self._quiet_s
        while not self._stopped.wait(INTERVAL_S):
            self._read_order()
            self._announce_waits()
            self._look_at_certificate()
            self.trace.flush()
            now_s = time.monotonic()
            if self._usage is not None and self._usage.is_due(now_s):
                self.status.cpu_percent, self.status.memory_bytes = self._usage.measure(now_s)
            said = self.current()
            news = (said.step, said.phase, said.waiting_for, said.busy_with)
            if news != last or now_s - last_s >= self._quiet_s:
                self.write()
                last = news
                last_s = now_s

    def _look_at_certificate(self) -> None:
        if (valid := self.certificate()) is not None:
            begins_s, ends_s = valid
            self.status.certificate_ends = time_text(ends_s)
            if text := self._certificate_life.due(begins_s, ends_s, time.time()):
                self.warn(text)

    def _read_order(self) -> None:
        with contextlib.suppress(OSError, RunError):  # a file that cannot be read changes nothing
            order = read_record(self._order, Slowdown) if self._order is not None else None
            self._slow = self._slow_by_spec if order is None else order.factor


def _is_far_worker(assignment: TaskAssignment) -> bool:
    """Return whether a task is one of many on other hosts, whose heartbeats its servers hear themselves."""
    far = assignment.watched and assignment.spec.on is not On.LOCAL
    return far and assignment.task.role is Role.WORKER and bool(assignment.cluster.servers)


def stale_means(spec: RunSpec) -> Cause:
    """Return what became of a gradient that came too late: in the steps of all it was skipped, or, where a
    step needs every part, its replica was taken for dead and the part was computed by another.
    """
    if not isinstance(spec.training, SynchronousSection):
        return Cause.STALE
    return Cause.LATE if spec.training.has_backups(spec.replicas) else Cause.RECOMPUTED


def begun_s() -> float:
    """Return when this process began, by the monotonic clock."""
    since_s = started_s(os.getpid())
    lived_s = 0.0 if since_s is None else time.clock_gettime(time.CLOCK_BOOTTIME) - since_s
    return time.monotonic() - lived_s


def lasting_memory(path: Path, nbytes: int) -> mmap.mmap | bytearray:
    """Return zeros that lie in a new file, whatever ends this process; without room, in memory alone."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, nbytes)  # else a full disk would end the process at a write
            return mmap.mmap(file, nbytes)
        finally:
            os.close(file)
    return bytearray(nbytes)


def _share(part_s: float, whole_s: float) -> float:
    return min(1.0, max(0.0, part_s / whole_s))


def _trace_of(assignment: TaskAssignment, status: TaskStatus) -> Trace:
    wanted = assignment.spec.trace or os.environ.get(VARIABLE, "") not in ("", "0")
    if not wanted or assignment.run_dir is None:
        return Trace(None)
    files = RunFiles(assignment.run_dir)
    trace = Trace(files.trace(assignment.task, assignment.attempt))
    trace.write(
        Header(
            task=status.task,
            attempt=status.attempt,
            pid=status.pid,
            host=status.host,
            at_s=time.monotonic(),
            wall_s=time.time(),
        )
    )
    return trace
