"""A run in the cluster as it is seen from here: its run directory, and `dtrain status`, `logs` and `stop`."""

import contextlib
import os
import selectors
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from dtrain.cluster import TaskId
from dtrain.process.plain_text import plain_data
from dtrain.runs.files import RunFiles, RunRecord, write_record
from dtrain.runs.journal import now_text
from dtrain.runs.states import ENDED, LIVE_RUN_STATES, RunState
from dtrain_cli.console.run_console import RunConsole
from dtrain_cli.console.streams import PlainBytes
from dtrain_cli.runs.index import KnownRun, own_record
from dtrain_cli.runs.report import build_report, is_alive
from dtrain_cli.targets.kubernetes.kubectl import ANSWER_S, Kubectl, PodView, RunView
from dtrain_cli.targets.kubernetes.run import KubernetesPlace

_PIECE_BYTES = 1 << 16
_OF_RUN = ("global_step", "max_steps", "rolled_back_steps", "evaluation", "stalled")
_OF_TASK = (
    *("step", "loss", "examples_per_s", "staleness_mean", "stale_gradients", "bytes_sent", "bytes_received"),
    *("cpu_percent", "memory_bytes", "heartbeat_age_s", "waiting_for", "busy_with", "leads", "stalled_s"),
)
"""The fields that the leader's own report knows better than the cluster."""


def report_there(run: KnownRun, place: KubernetesPlace) -> dict[str, Any]:
    """Return the present report of a run, as `read_report` does; its record here is brought up to date.

    Raise a `RunError` if the cluster does not answer, as the functions below.
    """
    record = own_record(run.files.directory) or run.record
    leaders: dict[str, Any] = {}
    if record.state in LIVE_RUN_STATES:
        kubectl = Kubectl(place)
        view = kubectl.view()
        note_view(record, view)
        if view.state is None or record.state not in LIVE_RUN_STATES:
            _note_end(record, view)
        if not is_alive(run.files, record):  # else the command that follows it writes the record
            write_record(run.files.run, record)
        leader = view.newest.get(place.leading)
        if leader is not None and leader.has_output and leader.state not in ENDED:
            leaders = kubectl.report(leader.name) or {}
    report = {**build_report(run.files, record, {}, {}, True, 0.0), "damaged": []}
    _lay_over(report, plain_data(leaders))
    return report


def _note_end(record: RunRecord, view: RunView) -> None:
    """Record the end of a run that no command was following. A run that had not ended becomes stopped."""
    if record.state in LIVE_RUN_STATES:
        record.state = RunState.STOPPED
    failed = view.failed.exit_code if view.failed else None
    record.exit_code = {RunState.SUCCEEDED: 0, RunState.STOPPED: 143}.get(record.state, failed or 1)
    record.ended = now_text()


def _lay_over(report: dict[str, Any], leaders: Mapping[str, Any]) -> None:
    """Take over what the leader's report says of steps and speed; it is another machine's word."""
    report |= {name: leaders[name] for name in _OF_RUN if leaders.get(name) is not None}
    rows = leaders.get("tasks")
    sound = [each for each in rows if isinstance(each, dict)] if isinstance(rows, list) else []
    by_name = {str(each.get("task")): each for each in sound}
    for task in report["tasks"]:
        more = by_name.get(task["task"], {})
        task |= {name: more[name] for name in _OF_TASK if more.get(name) is not None}


def stop_there(run: KnownRun, place: KubernetesPlace) -> RunState:
    """Stop a run in order and remove its objects but the disk; return its state."""
    record = own_record(run.files.directory) or run.record
    kubectl = Kubectl(place)
    view = kubectl.view()
    kubectl.delete(place.stop_s + ANSWER_S)
    if not is_alive(run.files, record):
        note_view(record, view)
        if record.state in LIVE_RUN_STATES:
            _note_end(record, view)
        write_record(run.files.run, record)
    return record.state


def show_logs_there(place: KubernetesPlace, tasks: Sequence[TaskId], last: int | None, follow: bool) -> bool:
    """Print what the newest pods of tasks have printed; return whether there was any pod."""
    kubectl = Kubectl(place)
    pods = {task: pod for task, pod in kubectl.view().newest.items() if task in tasks and pod.has_output}
    width = max((len(str(task)) for task in pods), default=0)
    sources = [_Source(kubectl.output(pods[task].name, last, follow)) for task in sorted(pods)]
    labels = [f"{task!s:{width}} | ".encode() if len(pods) > 1 else b"" for task in sorted(pods)]
    try:
        with selectors.DefaultSelector() as readers:
            for source, label in zip(sources, labels, strict=True):
                readers.register(source, selectors.EVENT_READ, (source, label))
            while readers.get_map():
                for key, _ in readers.select():
                    source, label = key.data
                    for line in source.lines():
                        sys.stdout.buffer.write(label + line)
                    if source.ended:
                        readers.unregister(source)
                sys.stdout.buffer.flush()
    finally:
        for source in sources:
            source.close()
    return bool(pods)


class _Source:
    """The lines that a process prints, plainly for a terminal."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.ended = False
        self._process = process
        self._begun = b""
        self._plain = PlainBytes() if sys.stdout.isatty() else None

    def fileno(self) -> int:
        if self._process.stdout is None:
            raise AssertionError("its output was asked for")
        return self._process.stdout.fileno()

    def lines(self) -> list[bytes]:
        """Return the lines that are there; at the end, also one without its end."""
        piece = os.read(self.fileno(), _PIECE_BYTES)
        *whole, self._begun = (self._begun + piece).split(b"\n")
        if not piece:
            self.ended = True
            whole += [self._begun] if self._begun else []
        return [self._plain.text(line + b"\n") if self._plain else line + b"\n" for line in whole]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


FOLLOWED_MAX = 64
"""Pods whose output is followed at once: each is a process of kubectl and a connection to the cluster."""


def note_view(record: RunRecord, view: RunView) -> None:
    newest = {str(task): pod for task, pod in view.newest.items()}
    for task in record.tasks:
        if (pod := newest.get(task.task)) is not None:
            task.state, task.host, task.exit_code = pod.state, pod.node, pod.exit_code
            task.message = pod.message
            task.restarts = view.restarts(pod.task)
    if view.state is not None:
        record.state = view.state


class OutputMirror:
    """The output of all pods, one file for each, shown on a console."""

    def __init__(self, kubectl: Kubectl, files: RunFiles, console: RunConsole) -> None:
        self._kubectl = kubectl
        self._files = files
        self._console = console
        self._followers: dict[str, subprocess.Popen[bytes]] = {}
        self._reasons: dict[TaskId, str | None] = {}
        self._too_many = False

    def see(self, record: RunRecord, view: RunView) -> None:
        for pod in view.pods:
            if pod.uid not in self._followers and pod.has_output:
                self._follow(record, pod)
        for task, pod in view.newest.items():
            reason = None if pod.has_output else pod.message
            if reason and reason != self._reasons.get(task):
                self._console.say(f"{task} waits: {reason}")
            self._reasons[task] = reason

    def _follow(self, record: RunRecord, pod: PodView) -> None:
        living = sum(follower.poll() is None for follower in self._followers.values())
        if living >= FOLLOWED_MAX:
            if not self._too_many:
                self._console.say(
                    f"the output of {FOLLOWED_MAX} tasks is shown; see the others with `dtrain logs TASK`"
                )
            self._too_many = True
            return
        attempt = max(self._files.attempts(pod.task), default=-1) + 1
        self._files.attempt(pod.task, attempt).mkdir(parents=True, exist_ok=True)
        log = self._files.log(pod.task, attempt)
        self._followers[pod.uid] = self._kubectl.follow(pod.name, log)
        self._console.follow(pod.task, log)
        for task in record.tasks:
            if task.task == str(pod.task):
                task.attempt = attempt

    def drain(self, wait_s: float) -> None:
        for follower in self._followers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                follower.wait(wait_s)

    def close(self) -> None:
        for follower in self._followers.values():
            follower.kill()
            follower.wait()
