"""A launch without processes: scripted tasks, a clock that jumps from event to event, and what the launcher
says and does meanwhile.
"""

import signal
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config import ClusterSection, RunSpec
from dtrain.messages.membership import TaskPhase, TaskStatus
from dtrain.process.start_protocol import Exited, Refused, Started
from dtrain.runs.files import FailureRecord, RunFiles, RunRecord, SavedRecord, read_record, write_record
from dtrain.runs.states import FailureKind
from dtrain_cli.fleet.mirror import LOST_STATUS, keep_failure
from dtrain_cli.launch.policies.patience import LaunchLimits
from dtrain_cli.launch.supervisor import Supervisor
from dtrain_cli.plan.run_plan import HostShare, Machine, RunIdentity, TaskLaunch, Workload, build_plan
from dtrain_cli.runs.index import Journal
from dtrain_cli.runs.report import lost_on_the_way
from dtrain_cli.targets.target import HostLost

SPEC = RunSpec(cluster=ClusterSection(chief=1, worker=2, ps=1, evaluator=1))
NAMES = ["chief:0", "worker:0", "worker:1", "ps:0", "evaluator:0"]
FOR_EVER = float("inf")
REPORT_EVERY_S = 4.0


class TaskScript(msgspec.Struct):
    """What a task does in every attempt: it ends by itself after some seconds, and so long after SIGTERM.

    Attributes:
        fits: how many calls of `fit` it says to have begun and ended.
        unsaved: why its last checkpoint could not be written, as it says.
        saved_step: of the last one that it has written.
        leads: whether it says that it leads.
        loops: whether it says that it is in a loop of the program's own.
        finished: whether it says that its program has ended with exit code 0.
        waits: whether it never says that it has begun to train.
        record: why it failed, as it has written down itself, so many seconds after its start.
        error_type: the class of the exception of that record.
        silent: whether it is stopped after its start, and reports nothing more.
        measures: what else its status says, by field.
    """

    lasts_s: float = FOR_EVER
    status: int = 0
    leaves_s: float = 0.1
    fits: tuple[int, int] = (0, 0)
    unsaved: str | None = None
    saved_step: int | None = None
    leads: bool = False
    loops: bool = False
    finished: bool = False
    waits: bool = False
    record: tuple[float, str, str] | None = None
    error_type: str | None = None
    silent: bool = False
    measures: dict[str, float] = msgspec.field(default_factory=dict)


@dataclass
class FakeHandle:
    target: "FakeTarget"
    name: str
    writes_stacks: bool = True

    def signal(self, number: int) -> None:
        self.target.signal(self.name, number)


@dataclass
class FakeInbox:
    """The signals to the launcher that it has not read yet."""

    arrived: list[int] = field(default_factory=list)

    def fileno(self) -> int:
        raise AssertionError("no selector waits in a test")

    def read(self) -> list[int]:
        arrived, self.arrived = self.arrived, []
        return arrived


@dataclass
class FakeTarget:
    """A launch target without processes, on a clock that jumps from event to event.

    Attributes:
        scripts: by task; those that are absent run until they are told to stop.
        later: by task, of attempts after the first, where these differ.
        lost: when the host of which tasks is lost, and which host replaces it.
        back_s: when a lost host without another in its place is back.
    """

    scripts: dict[str, TaskScript]
    later: dict[str, TaskScript] = field(default_factory=dict)
    signals_to_launcher: list[tuple[float, int]] = field(default_factory=list)
    refused: tuple[str, ...] = ()
    lost: tuple[tuple[float, tuple[str, ...], dict[str, str]], ...] = ()
    back_s: float = FOR_EVER
    now_s: float = 1000.0
    record: RunRecord = field(default_factory=lambda: RunRecord("id", "name"))
    alive: dict[str, int] = field(default_factory=dict)
    sent: list[tuple[float, str, int]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    reported: set[str] = field(default_factory=set)
    inbox: FakeInbox = field(default_factory=FakeInbox)
    _coming: list[tuple[float, object]] = field(default_factory=list)
    _reports: dict[str, Path] = field(default_factory=dict)
    _next_report_s: float = 0.0

    def __post_init__(self) -> None:
        self.begun_s = self.now_s
        self._coming = [(self.now_s + at_s, number) for at_s, number in self.signals_to_launcher]
        for at_s, names, replaced in self.lost:
            why = HostLost("h2 is lost", [TaskId.parse(name) for name in names], replaced)
            self._coming += [(self.now_s + at_s, why)]
            self._coming += [(self.now_s + at_s, Exited(name, 0, LOST_STATUS, 0)) for name in names]
        self.back_s += self.now_s

    def _script(self, name: str, attempt: int) -> TaskScript:
        script = self.scripts.get(name, TaskScript())
        return self.later.get(name, script) if attempt else script

    def host_of(self, launch: TaskLaunch) -> str:
        return "here"

    def shares(self) -> dict[TaskId, HostShare]:
        return {}

    def master(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    def left_there(self, task: TaskId) -> str | None:
        return None

    def newest(self, files: RunFiles) -> SavedRecord | None:
        raise AssertionError("no run is resumed")

    def hold_addresses(self, cluster: ClusterSection) -> ClusterSpec:
        raise AssertionError("the plan has its addresses")

    def release_addresses(self) -> None:
        raise AssertionError("no ports are held")

    def wake_on(self, source) -> None:
        assert source is self.inbox

    def heard_s(self, task: TaskId) -> float:
        return self.now_s

    def can_start(self, task: TaskId) -> bool:
        away = {name for at_s, names, _ in self.lost for name in names if self.now_s >= self.begun_s + at_s}
        return str(task) not in away or self.now_s >= self.back_s

    def start(self, launch: TaskLaunch) -> FakeHandle:
        name = str(launch.task)
        script = self._script(name, launch.attempt)
        if name in self.refused:
            self._coming.append((self.now_s + 0.01, Refused(name, launch.attempt, "no process today")))
            return FakeHandle(self, name)
        assert name not in self.alive, "an attempt is started while the one before it runs"
        self.alive[name] = launch.attempt
        if launch.attempt == 0 and any(name in names for _, names, _ in self.lost):
            keep_failure(RunFiles(launch.run_dir), launch.task, 0, "was lost with its host h2")
        status = TaskStatus(name, 1, "here", launch.attempt, "running", self.now_s, self.now_s)
        status.step, (status.fits_begun, status.fits_ended) = 9, script.fits
        status.unsaved, status.saved_step = script.unsaved, script.saved_step
        status.leads, status.in_loop = script.leads, script.loops
        for name_of_field, value in script.measures.items():
            setattr(status, name_of_field, value)
        if script.waits:
            status.phase = TaskPhase.STARTING
        if script.finished:
            status.phase, status.exit_code = TaskPhase.FINISHED, 0
        if script.record is not None:
            at_s, message, kind = script.record
            why = FailureRecord(
                name,
                message,
                FailureKind(kind),
                monotonic_s=self.now_s + at_s,
                exit_code=script.status,
                log="/where/the/task/runs.log",
                error_type=script.error_type,
            )
            failure = RunFiles(launch.run_dir).failure(launch.task, launch.attempt)
            failure.parent.mkdir(parents=True, exist_ok=True)
            write_record(failure, why)
        path = RunFiles(launch.run_dir).status(launch.task)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_record(path, status)
        self._reports[name] = path
        self._coming.append((self.now_s + 0.01, Started(name, launch.attempt, 42)))
        if script.lasts_s != FOR_EVER:
            self._coming.append(
                (self.now_s + 0.02 + script.lasts_s, Exited(name, launch.attempt, script.status, 0))
            )
        return FakeHandle(self, name)

    def signal(self, name: str, number: int) -> None:
        if name not in self.alive or number in (signal.SIGCONT, signal.SIGUSR2):
            return
        self.sent.append((self.now_s, name, number))
        if number == signal.SIGUSR1:  # a notice to tasks of dtrain, which live on
            return
        delay_s = 0.0 if number == signal.SIGKILL else self._script(name, self.alive[name]).leaves_s
        if delay_s != FOR_EVER:
            self._coming.append((self.now_s + delay_s, Exited(name, self.alive[name], -number, 0)))

    def events(self, until_s: float) -> list[object]:
        self._coming.sort(key=lambda entry: entry[0])
        self.now_s = min([until_s, *(at_s for at_s, _ in self._coming[:1])])
        assert self.now_s < 3000, "the run never ends"
        self._report()
        due = [event for at_s, event in self._coming if at_s <= self.now_s]
        self._coming = [entry for entry in self._coming if entry[0] > self.now_s]
        heard = []
        for event in due:
            if isinstance(event, int):
                self.inbox.arrived.append(event)
                continue
            if isinstance(event, Exited):
                if self.alive.get(event.task) != event.attempt:
                    continue
                del self.alive[event.task]
            if isinstance(event, Started):
                self.reported.add(event.task)
            heard.append(event)
        return heard

    def _report(self) -> None:
        """Let every task that is not stopped say that it is there, about as often as real ones do."""
        if self.now_s < self._next_report_s:
            return
        self._next_report_s = self.now_s + REPORT_EVERY_S
        for name, attempt in self.alive.items():
            if not self._script(name, attempt).silent:
                said = read_record(self._reports[name], TaskStatus)
                said.monotonic_s = self.now_s
                write_record(self._reports[name], said)

    def finish(self, say) -> None:
        self.close()

    def close(self) -> None:
        """Allow no task to be left, except those whose start was requested and not yet reported."""
        assert not self.alive.keys() & self.reported
        self.alive.clear()


@dataclass
class FakeConsole:
    said: list[str]

    def say(self, text: str) -> None:
        self.said.append(text)

    follow = pump = leave_out_stacks = lambda self, *_: None


@dataclass
class FakeJournal(Journal):
    record: RunRecord

    def event(self, kind: str, **facts) -> None:
        pass

    def save(self) -> None:
        pass


class Unheard(FakeTarget):
    """A target under which a task is asked to be killed, repeatedly, from the third second on."""

    def events(self, until_s):
        task, request, files = self.request
        if self.now_s >= 1003:
            write_record(files.kill(task), request)
        return super().events(until_s)


def perform(
    folder: Path,
    target: FakeTarget,
    spec: RunSpec = SPEC,
    limits: LaunchLimits | None = None,
    program: bool = True,
):
    cluster = ClusterSpec.from_lists(chief=["a:1"], worker=["a:2", "a:3"], ps=["a:4"])
    workload = Workload(Path("x.py") if program else None, () if program else ("x",), folder)
    plan = build_plan(spec, cluster, RunIdentity("id", folder), workload, Machine("python", 2, {}))
    supervisor = Supervisor(
        plan,
        target,
        target.inbox,
        FakeJournal(target.record),
        FakeConsole(target.said),
        limits or LaunchLimits(None, 60, 300, 10),
        clock=lambda: target.now_s,
    )
    outcome = supervisor.run()
    return supervisor, outcome


def lost(supervisor) -> str:
    """What is said of lost tasks; ``its.log`` stands for the launcher's copy of a task's log."""
    lives = supervisor.lives.values()
    text = lost_on_the_way((life.state, life.lost) for life in lives if life.lost)
    for life in lives:
        text = text.replace(str(life.launch.log), "its.log")
    return text


def state(supervisor, task: str) -> str:
    return supervisor.lives[TaskId.parse(task)].state
