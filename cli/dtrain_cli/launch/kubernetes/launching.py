"""`dtrain launch --on kubernetes`: apply what `plan` prints, follow it, and tell how it has ended."""

import contextlib
import os
import select
import signal
import socket
import time
from datetime import datetime

import msgspec

from dtrain.cluster import TaskId
from dtrain.errors import RunError, SpecError
from dtrain.process.life_line import started_s
from dtrain.runs.files import FailureRecord, RunFiles, RunRecord, TaskRecord, write_record
from dtrain.runs.journal import now_text
from dtrain.runs.states import ENDED, FailureKind, RunState
from dtrain_cli.console.run_console import RunConsole
from dtrain_cli.console.streams import Outlet
from dtrain_cli.launch.engines import asked_to_cancel
from dtrain_cli.launch.kubernetes.later import OutputMirror, note_view
from dtrain_cli.launch.kubernetes.planning import gather
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.request import chosen_directory, other_settings, runs_directory
from dtrain_cli.launch.tasks import last_lines
from dtrain_cli.runs.index import Journal, locked_run_directory, register_run
from dtrain_cli.runs.report import read_report
from dtrain_cli.targets.kubernetes.kubectl import ANSWER_S, Kubectl, PodView, RunView
from dtrain_cli.targets.kubernetes.manifests import FAREWELL_S, manifests
from dtrain_cli.targets.kubernetes.run import KubernetesRun, grace_s, place_of, read_place
from dtrain_cli.targets.signals import STOP_SIGNALS, SignalInbox

LOOK_EVERY_S = 2.0
TURN_S = 0.1
LAST_TASKS_S = 60.0
"""How long tasks may take to end by themselves after the leader has succeeded."""
DRAIN_S = 5.0
TIMEOUT_CODE = 124


class Ending(msgspec.Struct, frozen=True):
    """How the following of a run has ended; without a `state` the run goes on, and is not followed any more.

    `failed` is the pod whose end was the run's; `cancel` says that the run is to be stopped.
    """

    state: RunState | None
    exit_code: int
    failed: PodView | None = None
    message: str | None = None
    cancel: bool = False


class RunFollower:
    """One run that is followed."""

    def __init__(
        self,
        kubectl: Kubectl,
        signals: SignalInbox,
        journal: Journal,
        console: RunConsole,
        mirror: OutputMirror,
    ) -> None:
        self._kubectl = kubectl
        self._signals = signals
        self._journal = journal
        self._console = console
        self._mirror = mirror
        self._seen = False
        self._unreachable = False
        self._message: str | None = None
        self._succeeded_s: float | None = None

    def run(self, timeout_s: float | None) -> Ending:
        """Follow until the end; Ctrl-C asks whether to leave the run or to cancel it."""
        begun_s, look_s = time.monotonic(), 0.0
        while True:
            for number in self._signals.read():
                if number in STOP_SIGNALS:
                    say, pump = self._console.say, self._console.pump
                    asks = number == signal.SIGINT
                    cancel = asks and asked_to_cancel("the run", self._signals, say, pump)
                    return Ending(None, 128 + number, cancel=cancel)
            now_s = time.monotonic()
            if timeout_s is not None and now_s - begun_s > timeout_s:
                return Ending(None, TIMEOUT_CODE, message=f"--timeout of {timeout_s:g} s", cancel=True)
            if now_s >= look_s:
                look_s = now_s + LOOK_EVERY_S
                if (ending := self._poll(now_s)) is not None:
                    self._mirror.drain(DRAIN_S)
                    return ending
            self._console.pump()
            select.select([self._signals], [], [], TURN_S)

    def _poll(self, now_s: float) -> Ending | None:
        try:
            view = self._kubectl.view()
        except RunError as error:
            if not self._unreachable:
                self._console.say(f"{error}; the run goes on there, and this command tries again")
            self._unreachable = True
            return None
        if self._unreachable:
            self._console.say("the cluster answers again")
        self._unreachable = False
        record = self._journal.record
        self._mirror.see(record, view)
        if view.message and view.message != self._message:
            self._console.say(f"the run waits: {view.message}")
        self._message = view.message if view.state != RunState.FAILED else self._message
        before = record.state
        note_view(record, view)
        if record.state != before:
            self._journal.event("state", state=record.state)
        self._journal.save()
        return self._ending(view, now_s)

    def _ending(self, view: RunView, now_s: float) -> Ending | None:
        if view.state is None and self._seen:
            return Ending(RunState.STOPPED, 128 + signal.SIGTERM, message="its objects were deleted")
        self._seen = self._seen or view.state is not None
        if view.state == RunState.FAILED:
            code = view.failed.exit_code if view.failed else None
            return Ending(RunState.FAILED, code or 1, view.failed, view.message)
        if view.state == RunState.SUCCEEDED:
            self._succeeded_s = self._succeeded_s or now_s
            over = all(pod.state in ENDED for pod in view.newest.values())
            if over or now_s - self._succeeded_s > LAST_TASKS_S:
                return Ending(RunState.SUCCEEDED, 0)
        return None


def launch(options: LaunchOptions) -> int:
    """Carry out the launch; return the exit code.

    Raises:
        SpecError: the spec, the program or the options are wrong; nothing has been applied.
        RunError: kubectl is not there, or the cluster refuses the run; nothing of it is left there.
    """
    signals = SignalInbox()
    directory = chosen_directory(options, None)
    name: str | None = None
    if directory is not None and options.resume is not None:
        if (place := read_place(RunFiles(directory))) is None:
            raise SpecError(f"--resume: the run in {directory} was not on Kubernetes; leave away --on")
        name = place.name
    run = gather(options, os.environ, name)
    objects = manifests(run)
    kubectl = Kubectl(place_of(run, grace_s(run.spec.wait) + FAREWELL_S))
    runs_dir, run_id = runs_directory(options), f"{datetime.now():%Y%m%d-%H%M%S}-{run.name}"
    with locked_run_directory(directory or runs_dir / run_id, options.resume is not None) as files:
        if options.run_dir is not None:
            register_run(files, runs_dir, run_id)
        console = RunConsole(Outlet(1), Outlet(2))
        journal = Journal(files, _record(run, files), console.say)
        if options.resume is not None and kubectl.view().state is not None:
            raise SpecError(f"run {run.name} is still in the cluster; stop it with `dtrain stop {run.name}`")
        if options.resume is not None and (others := other_settings(files, run.spec, options.foreign)):
            console.say(f"goes on with other settings: {others}")
        write_record(files.where, kubectl.place)
        files.keep_spec()
        write_record(files.spec, run.spec)
        journal.save()
        try:
            _apply(kubectl, objects)
        except RunError:
            journal.end(RunState.FAILED, 1, None)
            journal.save()
            raise
        files.kept_spec.unlink(missing_ok=True)  # the cluster tells of no steps
        console.say(f"run {run.name} is in the cluster: {run.spec.cluster}; files in {files.directory}")
        if options.detach:
            console.finish(None, _ways(run.name), None)
            return 0
        with contextlib.closing(OutputMirror(kubectl, files, console)) as mirror:
            ending = RunFollower(kubectl, signals, journal, console, mirror).run(options.timeout)
            if ending.cancel:
                console.say("cancelling: the leader saves, and all tasks end in order; the disk stays")
                kubectl.delete(kubectl.place.stop_s + ANSWER_S)
                mirror.drain(FAREWELL_S)
            elif ending.state == RunState.FAILED:
                kubectl.suspend()
        _report(options, run, files, journal, console, ending)
        return ending.exit_code


def _record(run: KubernetesRun, files: RunFiles) -> RunRecord:
    addresses = run.addresses
    tasks = (TaskId(role, index) for role in run.roles for index in range(run.spec.cluster.count(role)))
    return RunRecord(
        files.directory.name,
        run.spec.name,
        started=now_text(),
        launcher_pid=os.getpid(),
        launcher_started=started_s(os.getpid()),
        host=socket.gethostname(),
        tasks=[TaskRecord(str(task), address=addresses.address(task)) for task in tasks],
    )


def _apply(kubectl: Kubectl, objects: list[dict[str, object]]) -> None:
    """Apply everything or leave nothing."""
    try:
        kubectl.apply(objects)
    except RunError as refused:
        try:
            kubectl.delete(ANSWER_S)
        except RunError as error:
            raise RunError(f"{refused}; what is there of it could not be removed: {error}") from None
        raise RunError(f"{refused}; nothing of the run is left but its disk") from None


def _report(
    options: LaunchOptions,
    run: KubernetesRun,
    files: RunFiles,
    journal: Journal,
    console: RunConsole,
    ending: Ending,
) -> None:
    state = RunState.STOPPED if ending.cancel else ending.state
    failure = _failure(files, ending) if state == RunState.FAILED else None
    if state is not None:
        journal.end(state, ending.exit_code, failure)
        journal.save()
    why = f": {ending.message}" if ending.message else ""
    last_word = _ways(run.name) if state is None else f"run {run.name} has {state}{why}"
    report = msgspec.json.encode(read_report(files.directory)).decode() if options.json else None
    way_on = options.line_to_resume(files.directory.name) if state == RunState.STOPPED else None
    console.finish(failure, last_word, report, way_on)


def _failure(files: RunFiles, ending: Ending) -> FailureRecord:
    pod = ending.failed
    if pod is None:
        return FailureRecord("", ending.message or "the run has failed", FailureKind.EXIT)
    attempt = max(files.attempts(pod.task), default=0)
    log = files.log(pod.task, attempt)
    how = f" ({pod.message})" if pod.message else ""
    return FailureRecord(
        str(pod.task),
        f"pod {pod.name} ended with exit code {pod.exit_code}{how}",
        FailureKind.EXIT,
        time=now_text(),
        attempt=attempt,
        exit_code=pod.exit_code,
        last_lines=last_lines(log),
        log=str(log),
    )


def _ways(name: str) -> str:
    return (
        f"run {name} goes on in the cluster; look at it with `dtrain status {name}` and `dtrain logs -f "
        f"{name}`, end it with `dtrain stop {name}`"
    )
