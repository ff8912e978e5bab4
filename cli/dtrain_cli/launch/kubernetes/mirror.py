"""A run in the cluster as it is seen from here, in a run directory: its states, and its tasks' output."""

import contextlib
import subprocess

from dtrain.cluster import TaskId
from dtrain.runs.files import RunFiles, RunRecord, TaskRecord
from dtrain_cli.console.run_console import RunConsole
from dtrain_cli.targets.kubernetes.kubectl import Kubectl
from dtrain_cli.targets.kubernetes.view import PodView, RunView

FOLLOWED_MAX = 64
"""Pods whose output is followed at once: each is a process of kubectl and a connection to the cluster."""


def note_view(record: RunRecord, view: RunView) -> None:
    """Write what is known of the pods into the records of the tasks."""
    newest = {str(task): pod for task, pod in view.newest.items()}
    for task in record.tasks:
        if (pod := newest.get(task.task)) is not None:
            task.state, task.host, task.exit_code = pod.state, pod.node, pod.exit_code
            task.message = pod.message
            task.restarts = view.restarts(pod.task)
    if view.state is not None:
        record.state = view.state


def task_records(tasks: list[TaskId], addresses: dict[TaskId, str | None]) -> list[TaskRecord]:
    """Return the records of tasks that are not there yet."""
    return [TaskRecord(str(task), address=addresses.get(task)) for task in tasks]


class OutputMirror:
    """The output of all pods, one file for each, shown on a console."""

    def __init__(self, kubectl: Kubectl, files: RunFiles, console: RunConsole) -> None:
        self._kubectl = kubectl
        self._files = files
        self._console = console
        self._followers: dict[str, subprocess.Popen[bytes]] = {}
        self._said: dict[TaskId, str | None] = {}
        self._too_many = False

    def see(self, record: RunRecord, view: RunView) -> None:
        """Follow pods that are new, and say for what others wait."""
        for pod in view.pods:
            if pod.uid not in self._followers and pod.has_output:
                self._follow(record, pod)
        for task, pod in view.newest.items():
            reason = None if pod.has_output else pod.message
            if reason and reason != self._said.get(task):
                self._console.say(f"{task} waits: {reason}")
            self._said[task] = reason

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
        """Let the followers of pods that have ended read to their end."""
        for follower in self._followers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                follower.wait(wait_s)

    def close(self) -> None:
        """End all followers; the pods know nothing of it."""
        for follower in self._followers.values():
            follower.kill()
            follower.wait()
