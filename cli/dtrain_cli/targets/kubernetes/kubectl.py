"""The command `kubectl`, and the state of a run by its pods, Jobs and JobSet as that prints them."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dtrain.cluster import Role, TaskId
from dtrain.errors import RunError, SpecError
from dtrain.process.plain_text import plain
from dtrain.runs.states import RunState, TaskState
from dtrain_cli.targets.kubernetes.manifests import CONTAINER, ROLE_LABEL, RUN_LABEL, json_text
from dtrain_cli.targets.kubernetes.run import KubernetesPlace

INDEX_NOTE = "batch.kubernetes.io/job-completion-index"
NOTICED = 143
_PHASES = {
    "Pending": TaskState.PENDING,
    "Running": TaskState.RUNNING,
    "Succeeded": TaskState.SUCCEEDED,
    "Failed": TaskState.FAILED,
}


class PodView(msgspec.Struct, frozen=True):
    """One pod, created at an ISO time; `message` says why it waits or was lost."""

    task: TaskId
    name: str
    uid: str
    created: str
    state: TaskState
    node: str | None = None
    exit_code: int | None = None
    message: str | None = None

    @property
    def has_output(self) -> bool:
        """Whether its container has been started."""
        return self.state != TaskState.PENDING


class RunView(msgspec.Struct, frozen=True):
    """A run at one moment.

    Attributes:
        pods: the oldest first.
        state: of the run; None: nothing of it is there.
        failed: the pod whose end was the run's, if it has failed.
        message: why the run waits or has failed.
    """

    pods: list[PodView] = msgspec.field(default_factory=list)
    state: RunState | None = None
    failed: PodView | None = None
    message: str | None = None

    @property
    def newest(self) -> dict[TaskId, PodView]:
        return {pod.task: pod for pod in self.pods}

    def restarts(self, task: TaskId) -> int:
        return max(0, sum(pod.task == task for pod in self.pods) - 1)


def view_of(objects: Iterable[Mapping[str, Any]], leader: TaskId) -> RunView:
    objects = list(objects)
    pods = sorted(filter(None, map(_pod, objects)), key=lambda pod: (pod.created, pod.uid))
    owners = [each for each in objects if each.get("kind") in ("Job", "JobSet")]
    if not owners and not pods:
        return RunView()
    newest = {pod.task: pod for pod in pods}
    failed_of = [owner for owner in owners if _decides(owner, leader) and _condition(owner, "Failed")]
    if failed_of:
        # The first pod that failed: of the roles whose Jobs have, or of any where a JobSet has.
        roles = {_role(owner) for owner in failed_of}
        lost = [pod for pod in pods if pod.state == TaskState.FAILED]
        lost = [pod for pod in lost if None in roles or pod.task.role in roles]
        failed = min(lost, key=lambda pod: pod.created, default=None)
        return RunView(pods, RunState.FAILED, failed, _condition(failed_of[0], "Failed"))
    for owner in owners:
        if _decides(owner, leader, alone=True) and (
            _condition(owner, "Complete") is not None or _condition(owner, "Completed") is not None
        ):
            return RunView(pods, RunState.SUCCEEDED)
    if any("deletionTimestamp" in owner["metadata"] for owner in owners):
        return RunView(pods, RunState.STOPPING)
    waits = next((said for owner in owners if (said := _condition(owner, "Suspended"))), None)
    led = newest.get(leader)
    if led is not None and led.state == TaskState.RUNNING:
        return RunView(pods, RunState.RUNNING)
    return RunView(pods, RunState.STARTING if pods else RunState.PENDING, message=waits)


def _pod(found: Mapping[str, Any]) -> PodView | None:
    """Return a pod as a task; None for other objects, and for pods of others with our label."""
    if found.get("kind") != "Pod":
        return None
    metadata, status = found["metadata"], found.get("status", {})
    index = {**metadata.get("labels", {}), **metadata.get("annotations", {})}.get(INDEX_NOTE)
    try:
        task = TaskId.parse(f"{metadata.get('labels', {}).get(ROLE_LABEL)}:{index}")
    except SpecError:
        return None
    container: Mapping[str, Any] = next(
        (each for each in status.get("containerStatuses", ()) if each["name"] == CONTAINER), {}
    )
    ended = container.get("state", {}).get("terminated")
    exit_code = None if ended is None else ended.get("exitCode")
    state = _PHASES.get(status.get("phase", ""), TaskState.PENDING)
    if state == TaskState.FAILED and exit_code == NOTICED:
        state = TaskState.STOPPED
    elif state == TaskState.RUNNING and "deletionTimestamp" in metadata:
        state = TaskState.STOPPING
    pod = PodView(
        task,
        metadata["name"],
        metadata["uid"],
        metadata.get("creationTimestamp", ""),
        state,
        found.get("spec", {}).get("nodeName"),
        exit_code,
        _why(status, container, ended),
    )
    return msgspec.convert(msgspec.to_builtins(pod), PodView)


def _why(
    status: Mapping[str, Any], container: Mapping[str, Any], ended: Mapping[str, Any] | None
) -> str | None:
    if ended is not None:
        reason = ended.get("reason")
        return None if reason in (None, "Completed", "Error") else str(reason)
    if waiting := container.get("state", {}).get("waiting"):
        return ": ".join(str(waiting[key]) for key in ("reason", "message") if waiting.get(key))
    for condition in status.get("conditions", ()):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return ": ".join(str(condition[key]) for key in ("reason", "message") if condition.get(key))
    return str(status["reason"]) if status.get("reason") else None


def _condition(owner: Mapping[str, Any], kind: str) -> str | None:
    """Return the message of a condition that holds; None: it does not hold."""
    for condition in owner.get("status", {}).get("conditions", ()):
        if condition.get("type") == kind and condition.get("status") == "True":
            return str(condition.get("message") or condition.get("reason") or kind)
    return None


def _role(owner: Mapping[str, Any]) -> str | None:
    labels = owner.get("spec", {}).get("template", {}).get("metadata", {}).get("labels", {})
    role = labels.get(ROLE_LABEL)
    return None if role is None else str(role)


def _decides(owner: Mapping[str, Any], leader: TaskId, alone: bool = False) -> bool:
    """Return whether the end of an owner is the run's: a JobSet, the leader's Job, a failed server's.

    `alone`: whether its success alone decides.
    """
    if owner.get("kind") == "JobSet":
        return True
    if owner["metadata"].get("ownerReferences"):  # a Job of a JobSet
        return False
    return _role(owner) == leader.role or (not alone and _role(owner) == Role.PS)


ANSWER_S = 60.0
"""The longest wait for an answer of the cluster."""
_SHOWN = 500
_LOG_LINE = re.compile(r"[EWIF][0-9]{4} ")
"""A log line of a library, ``E1123 01:06:42.5 ...``: the cause of a failure is in kubectl's own last line."""


class Kubectl:
    """One run, as kubectl reaches it; a `RunError` says that kubectl is not there, or how it has failed."""

    def __init__(self, place: KubernetesPlace) -> None:
        if shutil.which("kubectl") is None:
            raise RunError(
                "kubectl: no such command; install it, or apply what `dtrain plan --on kubernetes` prints "
                "on a machine that has it"
            )
        self.place = place
        self._base = ["kubectl"]
        self._base += ["--context", place.context] if place.context else []
        self._base += ["--namespace", place.namespace] if place.namespace else []
        self._label = f"{RUN_LABEL}={place.name}"

    def apply(self, objects: Sequence[dict[str, Any]]) -> None:
        """Create or change objects; their text goes through a pipe, for it holds secrets."""
        self._run(["apply", "-f", "-"], json_text(objects))

    def view(self) -> RunView:
        kinds = "pods,jobs.batch" + (",jobsets.jobset.x-k8s.io" if self.place.jobset else "")
        answer = self._run(["get", kinds, "-l", self._label, "-o", "json"])
        try:
            return view_of(json.loads(answer)["items"], self.place.leading)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise RunError("kubectl get: expected objects in JSON, found something else") from None

    def follow(self, pod: str, log: Path) -> subprocess.Popen[bytes]:
        """Append the output of a pod to a file until the pod or the returned process ends."""
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "wb") as file:
            return self._logs(["-f", pod], stdout=file, stderr=subprocess.DEVNULL)

    def output(self, pod: str, last: int | None, follow: bool) -> subprocess.Popen[bytes]:
        words = [pod, *([f"--tail={last}"] if last is not None else []), *(["-f"] if follow else [])]
        return self._logs(words, stdout=subprocess.PIPE)

    def _logs(self, words: Sequence[str], **streams: Any) -> subprocess.Popen[bytes]:
        command = [*self._base, "logs", *words, "-c", CONTAINER]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is the launcher's
            **streams,
        )

    def report(self, pod: str) -> dict[str, Any] | None:
        """Return what `dtrain status --json` prints in the leader's pod; None where it prints nothing."""
        if self.place.directory is None:
            return None
        words = ["dtrain", "status", "--json", self.place.directory]
        try:
            found = json.loads(self._run(["exec", pod, "-c", CONTAINER, "--", *words]))
        except (RunError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def suspend(self) -> None:
        """End the pods that still run and keep those that have ended, with their output."""
        if not self.place.jobset:  # a JobSet has ended its pods itself
            patch = json.dumps({"spec": {"suspend": True}})
            jobs = self._run(["get", "jobs.batch", "-l", self._label, "-o", "name"]).split()
            for job in jobs:
                self._run(["patch", job, "--type=merge", "-p", patch])

    def delete(self, wait_s: float) -> None:
        """Stop all tasks in order and remove every object of the run but its disk.

        The names of the pods stay known until the last of them has ended.
        """
        kind = "jobsets.jobset.x-k8s.io" if self.place.jobset else "jobs.batch"
        self._run(
            ["delete", kind, "-l", self._label, "--cascade=foreground", f"--timeout={wait_s:.0f}s"],
            within_s=wait_s + ANSWER_S,
        )
        self._run(["delete", "services,configmaps,secrets", "-l", self._label, "--wait=false"])

    def _run(self, words: Sequence[str], text: str | None = None, within_s: float = ANSWER_S) -> str:
        command = [*self._base, *words]
        try:
            done = subprocess.run(
                command,
                input=None if text is None else text.encode(),
                stdin=subprocess.DEVNULL if text is None else None,
                capture_output=True,
                timeout=within_s,
                process_group=0,
            )
        except subprocess.TimeoutExpired:
            raise RunError(f"kubectl {words[0]}: no answer of the cluster within {within_s:g} s") from None
        if done.returncode != 0:
            lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines()]
            last = next((line for line in reversed(lines) if line and not _LOG_LINE.match(line)), "")
            raise RunError(f"kubectl {words[0]}: {plain(last)[:_SHOWN] or f'exit code {done.returncode}'}")
        return done.stdout.decode(errors="replace")
