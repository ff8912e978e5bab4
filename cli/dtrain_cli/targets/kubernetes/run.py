"""A run as Kubernetes gets it: its names, addresses, code, and the spec that its pods read.

The files of a program are in a ConfigMap, as one archive.
"""

import base64
import gzip
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.config import Problem, RunSpec, WaitSection
from dtrain.config.choices import On, TlsMode
from dtrain.errors import SpecError
from dtrain.process.tls_material import TlsMaterial
from dtrain_cli.code import CodeArchive, files_of
from dtrain_cli.plan.run_plan import START_ORDER, tasks_of


def problems(spec: RunSpec) -> Iterator[Problem]:
    kubernetes = spec.kubernetes
    if kubernetes.image is None:
        what = "the image of the pods, with Python, dtrain of this version and what the program imports"
        example = "image: registry/team/dtrain:1, or --set kubernetes.image=..."
        yield ("kubernetes", "image"), f"expected {what}: {example}"
    for name, given in (("code_in", kubernetes.code_in), ("secret", kubernetes.secret)):
        if spec.on is On.TRAINER and given is None:
            yield ("kubernetes", name), "expected it: a runtime is for many runs, and holds neither of theirs"
    if spec.on is On.TRAINER and kubernetes.volume.claim is None:
        yield ("kubernetes", "volume", "claim"), "expected the name of a disk that each namespace has"
    yield from address_problems(spec)
    for name in ("kill", "pause"):
        if getattr(spec.simulate, name):
            yield ("simulate", name), "only a launcher does this; `kubectl delete pod` is its like there"
    many = spec.cluster.count(Role.CHIEF) == 0 and spec.cluster.count(Role.WORKER) > 1
    if many and not kubernetes.volume.shared:
        text = "without a chief every worker has the disk: expected access: ReadWriteMany, or a chief"
        yield ("kubernetes", "volume", "access"), text
    if spec.secrets and kubernetes.secret is None and "secret" in spec.secrets:
        yield ("secrets",), "the name `secret` is taken in the run's Secret; expected another name"


def address_problems(spec: RunSpec) -> Iterator[Problem]:
    for role in Role:
        if not isinstance(getattr(spec.cluster, role), int):
            yield ("cluster", role.value), f"expected a count: `on: {spec.on}` gives the tasks addresses"


LIMIT_BYTES = 900_000
"""Of the code in a ConfigMap: Kubernetes takes 1 MiB, of which the rest of the object needs some."""
_SHOWN = 3


class Code(msgspec.Struct, frozen=True):
    """The code of the pods: a `folder` of the image, or an archive; neither, where the image needs none."""

    folder: str = ""
    archive: CodeArchive | None = None

    @property
    def files(self) -> dict[str, bytes]:
        return {} if self.archive is None else files_of(self.archive)

    def packed(self) -> bytes:
        """Return the archive in Base64; raise a `SpecError` unless a ConfigMap can hold it."""
        assert self.archive is not None
        packed = base64.b64encode(gzip.compress(self.archive.data, mtime=0))
        if len(packed) > LIMIT_BYTES:
            sizes = {path: len(content) for path, content in self.files.items()}
            biggest = sorted(sizes, key=lambda path: sizes[path], reverse=True)[:_SHOWN]
            shown = ", ".join(f"{path} ({sizes[path]} bytes)" for path in biggest)
            raise SpecError(
                f"the code has {len(packed)} bytes when it is packed, and a ConfigMap holds {LIMIT_BYTES}; "
                f"the biggest: {shown}. Leave files away, or put the code into the image and say its folder "
                "there: kubernetes.code_in: /app"
            )
        return packed


PORT = 2222
RUNS = "/dtrain/runs"
"""Where the disk of the run directory is in the pods."""
NAME_MAX = 40
"""Characters of a run's name: pods are called NAME-evaluator-0-9999-xxxxx, which may have 63."""
SUFFIX_LENGTH = 5


@dataclass(frozen=True)
class KubernetesRun:
    """One run on Kubernetes.

    Attributes:
        name: of all objects (`object_name`).
        command: behind `dtrain task` and its options: the program's path there and its arguments, or ``--``
            and a foreign command.
        secret: the run's; None: a Secret of the cluster has it, and the values of the spec's `secrets`.
        certificates: a certificate for each task by its `task_name`; none: no TLS.
        timeout_s: after which the cluster ends the run; None for never.
    """

    name: str
    spec: RunSpec
    code: Code
    command: tuple[str, ...]
    secret: str | None = field(default=None, repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    certificates: Mapping[str, TlsMaterial] = field(default_factory=dict, repr=False)
    timeout_s: float | None = None

    @property
    def foreign(self) -> bool:
        return self.command[:1] == ("--",)

    @property
    def jobset(self) -> bool:
        """Whether the tasks are one JobSet; a foreign command's servers never end by themselves."""
        needs_end = self.foreign and self.spec.cluster.count(Role.PS) > 0
        return self.spec.on is On.TRAINER or self.spec.kubernetes.as_jobset(needs_end)

    @property
    def roles(self) -> list[Role]:
        return [role for role in START_ORDER if self.spec.cluster.count(role)]

    @property
    def tasks(self) -> list[TaskId]:
        return tasks_of(self.spec.cluster)

    @property
    def leader(self) -> Role:
        return leader_of(self.spec).role

    @property
    def owner(self) -> str:
        """The object with which all others go."""
        return f"jobset/{self.name}" if self.jobset else f"job/{self.job_name(self.leader)}"

    @property
    def volume_name(self) -> str:
        return self.spec.kubernetes.volume.claim or self.name

    @property
    def secret_name(self) -> str:
        return self.spec.kubernetes.secret or self.name

    def job_name(self, role: Role) -> str:
        """Return the name of a role's Job; a JobSet calls its only Job of a role so."""
        return f"{self.name}-{role}-0" if self.jobset else f"{self.name}-{role}"

    def host(self, role: Role, index: int) -> str:
        """Return a pod's name for others, which stays the same when the pod is replaced."""
        return f"{self.job_name(role)}-{index}.{self.name}"

    @property
    def addresses(self) -> ClusterSpec:
        jobs: dict[Role, dict[int, str]] = {}
        for task in self.tasks:
            if task.role is not Role.EVALUATOR:
                jobs.setdefault(task.role, {})[task.index] = f"{self.host(task.role, task.index)}:{PORT}"
        return ClusterSpec(jobs)

    @property
    def run_directory(self) -> str:
        return f"{RUNS}/{self.name}"


def object_name(name: str, suffix: str) -> str:
    """Return the name of a run's objects, as Kubernetes wants names: ``digits-x7k2p``."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[: NAME_MAX - len(suffix) - 1].strip("-")
    if not plain[:1].isalpha():  # a Service's name begins with a letter
        plain = f"run-{plain}"[: NAME_MAX - len(suffix) - 1].strip("-")
    return f"{plain}-{suffix}"


def leader_of(spec: RunSpec) -> TaskId:
    return TaskId(Role.CHIEF if spec.cluster.count(Role.CHIEF) else Role.WORKER, 0)


FILE = "spec.json"
CODE_FILE = "code.tar.gz"
FOLDER = "/etc/dtrain/spec"
TLS_FOLDER = "/etc/dtrain/tls"
WAIT_S = {"start_s": 600.0, "server_s": 600.0, "leader_s": 600.0}
"""The patience where the spec says nothing. A cluster takes minutes to get a node. It gives up a lost one
after 70 s, the grace period of the pods, and the time until an administrator says that the machine is off."""
FAREWELL_S = 10
"""From the end of the tasks' own grace to SIGKILL."""


def task_spec(run: KubernetesRun) -> dict[str, Any]:
    """Return the spec as plain data, without what is at its default and was not set."""
    written = {"cluster": dict(run.addresses.to_dict()), **_settings(run.spec, "environment", "secrets")}
    if evaluators := run.spec.cluster.count(Role.EVALUATOR):
        written["cluster"][Role.EVALUATOR.value] = evaluators
    if run.certificates:
        task = f"{TLS_FOLDER}/{{role}}-{{index}}"
        files = {"ca_file": f"{TLS_FOLDER}/ca.crt", "cert_file": f"{task}.crt", "key_file": f"{task}.key"}
        written["security"] = {"tls": TlsMode.REQUIRED.value, **files}
    return written


def options_of(spec: RunSpec) -> list[str]:
    """Return the options of `dtrain task` that hold a spec but its cluster: there is no file for it."""
    settings = _settings(spec)
    if spec.security.insecure:
        settings["security"] = {"insecure": True}
    return [word for name, value in settings.items() for word in ("--set", f"{name}={json.dumps(value)}")]


def _settings(spec: RunSpec, *more: str) -> dict[str, Any]:
    """Return what a task must know of a spec beside its cluster, and `more` sections, without defaults."""
    given, default = msgspec.to_builtins(spec), msgspec.to_builtins(RunSpec())
    names = [
        name for name in ("checkpoint", "success", "trace", "simulate", *more) if given[name] != default[name]
    ]
    settings = {"name": spec.name, **{name: _beyond(given[name], default[name]) for name in names}}
    training = spec.said.get("training")
    return {**settings, **({"training": training} if training else {}), "wait": wait_of(spec)}


def _beyond(given: Any, default: Any) -> Any:
    if not isinstance(given, dict) or not isinstance(default, dict):
        return given
    return {key: each for key, each in given.items() if key not in default or each != default[key]}


def wait_of(spec: RunSpec) -> dict[str, float]:
    """Return the `wait` section of the tasks: the spec's where it says one, else that of a cluster."""
    written = spec.said.get("wait", {})
    seconds = msgspec.to_builtins(spec.wait) if written else {}
    wait = {name: seconds[name] if name in written else patience for name, patience in WAIT_S.items()}
    return {**wait, "grace_s": grace_s(spec.wait)}


def grace_s(wait: WaitSection) -> float:
    return wait.grace(launched=False)


def stop_s(spec: RunSpec) -> int:
    """Return how long the tasks may take to stop; then they are killed."""
    return math.ceil(grace_s(spec.wait)) + FAREWELL_S
