"""A run as Kubernetes gets it: its names, addresses and everything that its pods are given."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dtrain.cluster import ClusterSpec, Role
from dtrain.config import RunSpec
from dtrain.process.tls_material import TlsMaterial
from dtrain_cli.plan.run_plan import START_ORDER
from dtrain_cli.targets.kubernetes.code import Code

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
        name: of all objects; see `object_name`.
        spec: a checked spec, whose cluster has counts.
        code: the files that the pods get.
        command: behind `dtrain task` and its options: the program's path there and its arguments, or ``--``
            and a foreign command.
        secret: the run's; None: a Secret of the cluster has it.
        secrets: the values of the spec's `secrets`; likewise.
        certificates: a certificate for each task by its `task_name`; none: no TLS.
    """

    name: str
    spec: RunSpec
    code: Code
    command: tuple[str, ...]
    secret: str | None = field(default=None, repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    certificates: Mapping[str, TlsMaterial] = field(default_factory=dict, repr=False)

    @property
    def foreign(self) -> bool:
        """Return whether a foreign command runs, which knows nothing of dtrain."""
        return self.command[:1] == ("--",)

    @property
    def jobset(self) -> bool:
        """Return whether the tasks are one JobSet; a foreign command's servers never end by themselves."""
        return self.spec.kubernetes.as_jobset(self.foreign and self.spec.cluster.count(Role.PS) > 0)

    @property
    def roles(self) -> list[Role]:
        """Return the roles that have tasks, in the order of starting."""
        return [role for role in START_ORDER if self.spec.cluster.count(role)]

    @property
    def leader(self) -> Role:
        """Return the role whose first task leads."""
        return Role.CHIEF if Role.CHIEF in self.roles else Role.WORKER

    @property
    def volume_name(self) -> str:
        """Return the name of the claim of the run directory."""
        return self.spec.kubernetes.volume.claim or self.name

    @property
    def secret_name(self) -> str:
        """Return the name of the Secret."""
        return self.spec.kubernetes.secret or self.name

    def job_name(self, role: Role) -> str:
        """Return the name of a role's Job; a JobSet calls its only Job of a role so."""
        return f"{self.name}-{role}-0" if self.jobset else f"{self.name}-{role}"

    def host(self, role: Role, index: int) -> str:
        """Return a pod's name for others, which stays the same when the pod is replaced."""
        return f"{self.job_name(role)}-{index}.{self.name}"

    @property
    def addresses(self) -> ClusterSpec:
        """Return the address of every task that has one."""
        return ClusterSpec(
            {
                role: {
                    index: f"{self.host(role, index)}:{PORT}"
                    for index in range(self.spec.cluster.count(role))
                }
                for role in self.roles
                if role is not Role.EVALUATOR
            }
        )

    @property
    def run_directory(self) -> str:
        """Return where the leader keeps its files, in the pods."""
        return f"{RUNS}/{self.name}"


def object_name(name: str, suffix: str) -> str:
    """Return the name of a run's objects, as Kubernetes wants names: ``digits-x7k2p``.

    Args:
        name: the run's.
        suffix: small letters and digits, of which no other run has the same.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[: NAME_MAX - len(suffix) - 1].strip("-")
    if not plain[:1].isalpha():  # a Service's name begins with a letter
        plain = f"run-{plain}"[: NAME_MAX - len(suffix) - 1].strip("-")
    return f"{plain}-{suffix}"
