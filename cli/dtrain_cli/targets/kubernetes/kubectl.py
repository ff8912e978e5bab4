"""The command `kubectl`, and the state of a run by its pods, Jobs and JobSet as that prints them."""

import json
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dtrain.cluster import Role, TaskId
from dtrain.config import RunSpec
from dtrain.errors import RunError, SpecError
from dtrain.runs.states import RunState, TaskState
from dtrain_cli.targets.engine_command import ANSWER_S, answer_of
from dtrain_cli.targets.kubernetes import manifests
from dtrain_cli.targets.kubernetes.manifests import CONTAINER, ROLE_LABEL, RUN_LABEL
from dtrain_cli.targets.kubernetes.run import RUNS, leader_of, stop_s

INDEX_NOTE = "batch.kubernetes.io/job-completion-index"
NOTICED = 143
OUT_OF_TIME = "DeadlineExceeded"
_PULL = "is kubernetes.image right, and may nodes pull it (kubernetes.pod: imagePullSecrets)?"
_REMEDIES = {
    "OOMKilled": "it had {memory}: give it more by kubernetes.resources.{role}.memory",
    "Evicted": "ask for what it needs by kubernetes.resources.{role}",
    "Unschedulable": "ask for less by kubernetes.resources.{role}, or for other nodes by kubernetes.pod",
    "ErrImagePull": _PULL,
    "ImagePullBackOff": _PULL,
    "FailedCreate": "the namespace refuses such pods: see its quota and policies, and kubernetes.pod",
    "DeletionByTaintManager": (
        "its node {node} does not answer, and the pod is made again when that is back or removed; if the "
        "machine is off: {kubectl} delete pod {pod} --force"
    ),
}
"""Remedies, by the reason for which a pod waits or was lost."""
_PHASES = ("Pending", "Running", "Succeeded", "Failed")
"""The phases of a pod that are also states of a task."""


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
    memory: str | None = None

    @property
    def has_output(self) -> bool:
        """Whether its container has been started."""
        return self.state != TaskState.PENDING

    def told(self, kubectl: str) -> str:
        """Return the message, or the exit code, and what a user can do; `kubectl` begins a command."""
        said = self.message or f"exit code {self.exit_code}"
        remedy = _REMEDIES.get(said.partition(":")[0], "")
        facts = {"role": self.task.role, "pod": self.name, "node": self.node, "memory": self.memory}
        return f"{said}; {remedy.format(**facts, kubectl=kubectl)}" if remedy else said


class RunView(msgspec.Struct, frozen=True):
    """A run at one moment.

    Attributes:
        pods: the oldest first.
        state: of the run; None: nothing of it is there.
        failed: the pod whose end was the run's, if it has failed.
        message: why the run waits or has ended.
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
    said = {
        (condition["type"], _role(owner)): condition
        for owner in owners
        for condition in owner.get("status", {}).get("conditions", ())
        if condition.get("status") == "True"
    }
    whole = None if any(owner["kind"] == "JobSet" for owner in owners) else leader.role
    late = [
        each for (kind, _), each in said.items() if kind == "Failed" and each.get("reason") == OUT_OF_TIME
    ]
    if late:
        return RunView(pods, RunState.STOPPED, message=_text(late[0]))
    for role in dict.fromkeys((whole, whole and Role.PS)):  # the end of a JobSet, the leader or a server
        if (condition := said.get(("Failed", role))) is not None:
            lost = (pod for pod in pods if pod.state == TaskState.FAILED and role in (None, pod.task.role))
            return RunView(pods, RunState.FAILED, next(lost, None), _text(condition))
    if said.keys() & {("Complete", whole), ("Completed", whole)}:
        return RunView(pods, RunState.SUCCEEDED)
    if any("deletionTimestamp" in owner["metadata"] for owner in owners):
        return RunView(pods, RunState.STOPPING)
    led = next((pod for pod in reversed(pods) if pod.task == leader), None)
    if led is not None and led.state == TaskState.RUNNING:
        return RunView(pods, RunState.RUNNING)
    waits = next((_text(each) for (kind, _), each in said.items() if kind == "Suspended"), None)
    return RunView(pods, RunState.STARTING if pods else RunState.PENDING, message=waits)


def _role(owner: Mapping[str, Any]) -> str | None:
    """Return the role of a Job; None for a JobSet."""
    labels = owner.get("spec", {}).get("template", {}).get("metadata", {}).get("labels", {})
    role = labels.get(ROLE_LABEL)
    return None if role is None else str(role)


def _text(said: Mapping[str, Any]) -> str:
    return ": ".join(str(said[key]) for key in ("reason", "message") if said.get(key))


def _pod(found: Mapping[str, Any]) -> PodView | None:
    """Return a pod as a task; None for other objects, and for pods of others with our label."""
    if found.get("kind") != "Pod":
        return None
    metadata, status, spec = found["metadata"], found.get("status", {}), found.get("spec", {})
    labels = metadata.get("labels", {})
    try:
        index = {**labels, **metadata.get("annotations", {})}.get(INDEX_NOTE)
        task = TaskId.parse(f"{labels.get(ROLE_LABEL)}:{index}")
    except SpecError:
        return None
    containers = status.get("containerStatuses", ())
    now: dict[str, Any] = next(
        (each.get("state", {}) for each in containers if each["name"] == CONTAINER), {}
    )
    exit_code = now.get("terminated", {}).get("exitCode")
    phase = status.get("phase")
    state = TaskState(phase.lower()) if phase in _PHASES else TaskState.PENDING
    if state == TaskState.FAILED and exit_code == NOTICED:
        state = TaskState.STOPPED
    elif state == TaskState.RUNNING and "deletionTimestamp" in metadata:
        state = TaskState.STOPPING
    conditions = {each.get("type"): each for each in status.get("conditions", ())}
    scheduled = conditions.get("PodScheduled", {})
    unscheduled = scheduled if scheduled.get("status") == "False" else {}
    reasons = (status, now.get("waiting", {}), unscheduled, conditions.get("DisruptionTarget", {}))
    why = [each for each in (*reasons, now.get("terminated", {})) if each.get("reason")]
    message = next((_text(each) for each in why if each["reason"] not in ("Completed", "Error")), None)
    limits = [each.get("resources", {}).get("limits", {}) for each in spec.get("containers", ())]
    facts = (spec.get("nodeName"), exit_code, message, limits[0].get("memory") if limits else None)
    created = metadata.get("creationTimestamp", "")
    pod = PodView(task, metadata["name"], metadata["uid"], created, state, *facts)
    return msgspec.convert(msgspec.to_builtins(pod), PodView)


_ODD = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Errors of reading an answer that is no JSON, or has another form."""


class Kubectl:
    """One run, as kubectl reaches it; a `RunError` says that kubectl is not there, or how it has failed.

    Attributes:
        owner: the object with which all others go, such as ``job/NAME``.
        command: the beginning of a command line that reaches the run.
    """

    def __init__(self, spec: RunSpec, owner: str) -> None:
        wishes = spec.kubernetes
        self.spec = spec
        self.owner = owner
        self.leader = leader_of(spec)
        kind, _, name = owner.partition("/")
        self.kind = "jobs.batch" if kind == "job" else "jobsets.jobset.x-k8s.io"
        self.name = name.removesuffix(f"-{self.leader.role}") if kind == "job" else name
        context = ["--context", wishes.context] if wishes.context else []
        self.command = ["kubectl", *context, *(["-n", wishes.namespace] if wishes.namespace else [])]
        self._label = f"{RUN_LABEL}={self.name}"

    @property
    def what_stays(self) -> str:
        """The end of a sentence: the disk that is left when the run's objects are gone, and its removal."""
        if self.spec.kubernetes.volume.claim is not None:  # the user's own
            return ""
        line = shlex.join([*self.command, "delete", "pvc", self.name])
        return f"; its disk stays with the checkpoints, until you give: {line}"

    def apply(self, objects: Sequence[dict[str, Any]]) -> None:
        """Create the objects of a run, or leave nothing but its disk; all others go with the `owner`.

        Their text goes through a pipe, for it holds secrets.
        """
        try:
            self._run(["apply", "-f", "-"], manifests.json_text(objects))
            uid = self._run(["get", self.owner, "-o", "jsonpath={.metadata.uid}"])
            owned = manifests.owned(objects, self.owner, uid)
            self._run(["apply", "-f", "-"], manifests.json_text(owned))
        except RunError as refused:
            left = "nothing of the run is left but its disk"
            try:
                self.delete()
            except RunError as error:
                left = f"what is there of it could not be removed: {error}"
            raise RunError(f"{refused}; {left}") from None

    def view(self) -> RunView:
        kinds = ",".join(dict.fromkeys(("pods", "jobs.batch", self.kind)))
        answer = self._run(["get", kinds, "-l", self._label, "-o", "json"])
        try:
            return view_of(json.loads(answer)["items"], self.leader)
        except _ODD:
            raise RunError("kubectl get: expected objects in JSON, found something else") from None

    def refusal(self) -> str | None:
        """Return why the cluster makes no pods for the run, if it says so to this user."""
        words = ["get", "events", "--field-selector", "type=Warning,reason=FailedCreate", "-o", "json"]
        try:
            events = json.loads(self._run(words))["items"]
            own = [each for each in events if each["involvedObject"]["name"].startswith(self.name)]
            return _text(own[-1]) if own else None
        except (RunError, *_ODD):
            return None

    def show(self, pod: str, *options: str) -> subprocess.Popen[bytes]:
        """Print the output of a pod as `kubectl logs` does, until the returned process ends or is killed."""
        command = [*self.command, "logs", pod, "-c", CONTAINER, *options]
        # It runs in another process group, so that Ctrl-C reaches the launcher alone.
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0)

    def last_lines(self, pod: str, count: int) -> list[str]:
        try:
            return self._run(["logs", pod, "-c", CONTAINER, f"--tail={count}"]).splitlines()
        except RunError:
            return []

    def report(self, pod: str) -> dict[str, Any]:
        """Return what `dtrain status --json` prints in the leader's pod; nothing where it prints nothing."""
        directory = f"{RUNS}/{self.name}" + ("" if self.leader.role is Role.CHIEF else "/worker-0")
        words = ["exec", pod, "-c", CONTAINER, "--", "dtrain", "status", "--json", directory]
        try:
            found = json.loads(self._run(words))
        except (RunError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def suspend(self) -> None:
        """End the pods that still run and keep those that have ended, with their output."""
        if self.kind == "jobs.batch":  # a JobSet has ended its pods itself
            for job in self._run(["get", "jobs.batch", "-l", self._label, "-o", "name"]).split():
                self._run(["patch", job, "--type=merge", "-p", '{"spec":{"suspend":true}}'])

    def delete(self) -> None:
        """Stop all tasks in order and remove every object of the run but its disk.

        The names of the pods stay known until the last of them has ended.
        """
        wait_s = stop_s(self.spec) + ANSWER_S
        which = ["-l", self._label, "--ignore-not-found"]  # what has an owner goes while others are deleted
        wait = ["--cascade=foreground", f"--timeout={wait_s:.0f}s"]
        self._run(["delete", self.kind, *which, *wait], within_s=wait_s + ANSWER_S)
        self._run(["delete", manifests.BESIDE, *which, "--wait=false"])

    def _run(self, words: Sequence[str], text: str = "", within_s: float = ANSWER_S) -> str:
        instead = "install it, or apply what `dtrain plan --on kubernetes` prints on a machine that has it"
        return answer_of([*self.command, *words], instead, text, within_s, words[0])
