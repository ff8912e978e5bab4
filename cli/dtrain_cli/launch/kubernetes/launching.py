"""`dtrain launch --on kubernetes`: apply what `plan` prints, have kubectl show it, and say how it ends."""

import os
import select
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from dtrain.errors import RunError, SpecError
from dtrain.process.life_line import started_s
from dtrain.runs.files import FailureRecord, RunFiles, RunRecord, TaskRecord, write_record
from dtrain.runs.journal import now_text
from dtrain.runs.states import ENDED, LIVE_RUN_STATES, FailureKind, RunState, TaskState
from dtrain_cli.console.run_console import RunConsole
from dtrain_cli.console.streams import Outlet
from dtrain_cli.launch.engines import asked_to_cancel
from dtrain_cli.launch.kubernetes.later import note_view
from dtrain_cli.launch.kubernetes.planning import gather
from dtrain_cli.launch.options import LaunchOptions
from dtrain_cli.launch.request import chosen_directory, other_settings, runs_directory
from dtrain_cli.launch.tasks import LAST_LINES
from dtrain_cli.runs.index import Journal, locked_run_directory, register_run
from dtrain_cli.runs.report import read_report
from dtrain_cli.targets.kubernetes.kubectl import ANSWER_S, Kubectl, PodView, RunView
from dtrain_cli.targets.kubernetes.manifests import manifests, may_be_lost
from dtrain_cli.targets.kubernetes.run import KubernetesRun, place_of, read_place, wait_of
from dtrain_cli.targets.signals import STOP_SIGNALS, SignalInbox

LOOK_EVERY_S = 2.0
"""How often the cluster is asked while tasks begin; half as often later, as each takes 0.04 s of a core."""
TURN_S = 0.1
LAST_TASKS_S = 60.0
"""How long tasks may take to end by themselves after the leader has succeeded."""
DRAIN_S = 5.0
TIMEOUT_CODE = 124
FOLLOWED_MAX = 64
"""Pods whose output is shown at once: each is a process of kubectl and a connection to the cluster."""


class Ending(msgspec.Struct, frozen=True):
    """How the following of a run has ended; without a `state` the run goes on, and is not followed any more.

    `remove` says that its objects are to be removed; `failed` is the pod whose end was the run's.
    """

    state: RunState | None
    exit_code: int
    message: str | None = None
    remove: bool = False
    failed: PodView | None = None


@dataclass
class RunFollower:
    """One run that is followed: kubectl shows what its pods print, and here is said what becomes of them."""

    launched: KubernetesRun
    kubectl: Kubectl
    signals: SignalInbox
    journal: Journal
    console: RunConsole
    _shown: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)
    _began_s: float = field(default_factory=time.monotonic)
    _succeeded_s: float | None = None

    def __post_init__(self) -> None:
        self._awaited = {task for task in self.launched.tasks if not may_be_lost(self.launched, task.role)}

    def run(self) -> Ending:
        """Follow until the end; Ctrl-C asks whether to leave the run or to cancel it."""
        look_s = 0.0
        while True:
            for number in self.signals.read():
                if number in STOP_SIGNALS:
                    say, pump = self.console.say, self.console.pump
                    asks = number == signal.SIGINT
                    cancel = asks and asked_to_cancel("the run", self.signals, say, pump)
                    return Ending(RunState.STOPPED if cancel else None, 128 + number, remove=cancel)
            if time.monotonic() >= look_s:
                look_s = time.monotonic() + LOOK_EVERY_S * (1 if self._awaited else 2)
                try:
                    view = self.kubectl.view()
                except RunError as error:
                    self._tell(f"{error}; the run goes on there, and this command tries again")
                else:
                    if (ending := self._look(view, time.monotonic())) is not None:
                        return ending
            self.console.pump()
            select.select([self.signals], [], [], TURN_S)

    def _look(self, view: RunView, now_s: float) -> Ending | None:
        note_view(self.journal.record, view)
        self.journal.save()
        if view.message and view.state in LIVE_RUN_STATES:
            self._tell(f"the run waits: {view.message}")
            self._began_s = now_s
        for pod in view.pods:
            self._tell_of(pod, view)
            living = sum(each.poll() is None for each in self._shown.values())
            if pod.has_output and pod.uid not in self._shown and living < FOLLOWED_MAX:
                self._shown[pod.uid] = self.kubectl.show(pod.name, "-f", "--prefix")
        self._awaited -= {pod.task for pod in view.pods if pod.has_output}
        if self._awaited - view.newest.keys() and (refusal := self.kubectl.refusal()):
            no_pod = PodView(min(self._awaited - view.newest.keys()), "", "", "", TaskState.PENDING)
            self._tell_of(msgspec.structs.replace(no_pod, message=refusal), view)
        return self._ending(view, now_s)

    def _tell_of(self, pod: PodView, view: RunView) -> None:
        what = pod.told(" ".join(self.kubectl.place.kubectl))
        if pod.state == TaskState.PENDING:
            if view.restarts(pod.task):
                self._tell(f"{pod.task} is made again: {pod.name}")
            if pod.message:
                self._tell(f"{pod.task} waits: {what}")
        elif pod.state == TaskState.FAILED:
            self._tell(f"{pod.task} has failed ({pod.name}): {what}")
        elif pod.message and pod.state != TaskState.SUCCEEDED:
            self._tell(f"{pod.task} is lost ({pod.name}): {what}")

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.console.say(text)

    def _ending(self, view: RunView, now_s: float) -> Ending | None:
        if view.state is None:
            return Ending(RunState.STOPPED, 128 + signal.SIGTERM, "its objects were deleted")
        if view.state == RunState.STOPPED:
            return Ending(view.state, TIMEOUT_CODE, view.message, remove=True)
        if view.state == RunState.FAILED:
            code = view.failed.exit_code if view.failed else None
            return Ending(view.state, code or 1, view.message, failed=view.failed)
        if view.state == RunState.SUCCEEDED:
            self._succeeded_s = self._succeeded_s or now_s
            over = all(pod.state in ENDED for pod in view.newest.values())
            if over or now_s - self._succeeded_s > LAST_TASKS_S:
                return Ending(view.state, 0)
        elif self._awaited and now_s - self._began_s > (start_s := wait_of(self.launched.spec)["start_s"]):
            why = f"{min(self._awaited)} has not started within {start_s:g} s (wait.start_s)"
            return Ending(RunState.FAILED, 1, why, remove=True)
        return None

    def close(self, wait_s: float) -> None:
        """Let kubectl show the last lines."""
        deadline_s = time.monotonic() + wait_s
        for shown in self._shown.values():
            try:
                shown.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                shown.kill()
                shown.wait()


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
    kubectl = Kubectl(place_of(run))
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
            kubectl.apply(objects)
        except RunError:
            journal.end(RunState.FAILED, 1, None)
            journal.save()
            raise
        files.kept_spec.unlink(missing_ok=True)  # the cluster tells of no steps
        console.say(f"run {run.name} is in the cluster: {run.spec.cluster}; files in {files.directory}")
        if options.detach:
            ending = Ending(None, 0)
        else:
            follower = RunFollower(run, kubectl, signals, journal, console)
            ending = follower.run()
            if ending.remove:
                console.say("removing the run there: the leader saves, and all tasks end in order")
                kubectl.delete(kubectl.place.stop_s + ANSWER_S)
            follower.close(DRAIN_S if ending.state else 0.0)
            if ending.state == RunState.FAILED and not ending.remove:
                kubectl.suspend()
        _report(options, kubectl, journal, console, ending)
        return ending.exit_code


def _report(
    options: LaunchOptions, kubectl: Kubectl, journal: Journal, console: RunConsole, ending: Ending
) -> None:
    state, run_id = ending.state, journal.record.run
    last_word = f"run {run_id} goes on in the cluster; look at it with `dtrain status {run_id}` and "
    last_word += f"`dtrain logs -f {run_id}`, end it with `dtrain stop {run_id}`"
    failure = _failure(kubectl, ending) if state == RunState.FAILED else None
    if state is not None:
        why = f": {ending.message}" if ending.message else ""
        last_word = f"run {run_id} has {state}{why}{kubectl.place.what_stays}"
        journal.end(state, ending.exit_code, failure)
        journal.save()
    report = msgspec.json.encode(read_report(journal.files.directory)).decode() if options.json else None
    way_on = f"resume with  {options.line_to_resume(run_id)}" if state == RunState.STOPPED else None
    console.finish(failure, last_word, report, way_on)


def _record(run: KubernetesRun, files: RunFiles) -> RunRecord:
    addresses = run.addresses
    return RunRecord(
        files.directory.name,
        run.spec.name,
        started=now_text(),
        launcher_pid=os.getpid(),
        launcher_started=started_s(os.getpid()),
        host=socket.gethostname(),
        tasks=[TaskRecord(str(task), address=addresses.address(task)) for task in run.tasks],
    )


def _failure(kubectl: Kubectl, ending: Ending) -> FailureRecord:
    pod = ending.failed
    if pod is None:
        return FailureRecord("", ending.message or "the run has failed", FailureKind.EXIT)
    how = f" ({pod.message})" if pod.message else ""
    return FailureRecord(
        str(pod.task),
        f"pod {pod.name} ended with exit code {pod.exit_code}{how}",
        FailureKind.EXIT,
        time=now_text(),
        exit_code=pod.exit_code,
        last_lines=kubectl.last_lines(pod.name, LAST_LINES),
    )
