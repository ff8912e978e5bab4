"""The `kubernetes` section. docs/reference/spec.md#kubernetes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from dtrain.config.problems import Problem

RoleName = Literal["chief", "worker", "ps", "evaluator"]
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|[MGTPE]i?|Ki)?")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_UNITS = {"": 1.0, "m": 1e-3, "k": 1e3, "Ki": 1024.0}
MEMORY_OF_TASK = "1Gi"


@dataclass(frozen=True)
class ResourcesSection:
    """The share of a node that each pod of a role gets.

    Attributes:
        cpu: cores that are requested; also how many threads the task computes with.
        memory: what is requested, and the limit.
    """

    cpu: float | str = 1
    memory: str = MEMORY_OF_TASK

    @property
    def cores(self) -> float:
        """Return the cores as a number: ``500m`` is 0.5."""
        if isinstance(self.cpu, int | float):
            return float(self.cpu)
        unit = self.cpu.lstrip("0123456789.")
        return float(self.cpu.removesuffix(unit)) * _UNITS.get(unit, 1.0)

    def problems(self) -> Iterator[Problem]:
        """Yield the mistakes that types do not exclude."""
        for name in ("cpu", "memory"):
            value = getattr(self, name)
            if isinstance(value, str) and not _QUANTITY.fullmatch(value):
                yield (name,), f"expected a quantity such as 500m or 8Gi, found {value[:60]!r}"
            elif isinstance(value, int | float) and not 0 < value < 1e6:
                yield (name,), f"expected a number of cores above 0, found {value}"


@dataclass(frozen=True)
class VolumeSection:
    """The disk of the run directory, which outlives the pods.

    Attributes:
        claim: a PersistentVolumeClaim that is there; None: one is made for the run.
        size: of a claim that is made.
        storage_class: likewise; None: the cluster's default.
        access: likewise, and of the claim that is there.
    """

    claim: str | None = None
    size: str = "10Gi"
    storage_class: str | None = None
    access: Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"] = "ReadWriteOnce"

    @property
    def shared(self) -> bool:
        """Return whether pods on several nodes can have it at once."""
        return self.access == "ReadWriteMany"

    def problems(self) -> Iterator[Problem]:
        """Yield the mistakes that types do not exclude."""
        if not _QUANTITY.fullmatch(self.size):
            yield ("size",), f"expected a quantity such as 10Gi, found {self.size[:60]!r}"
        for name in ("claim", "storage_class"):
            if reason := _misnamed(getattr(self, name), _NAME):
                yield (name,), reason


@dataclass(frozen=True)
class KubernetesSection:
    """The namespace, image and resources of a run's pods.

    Attributes:
        image: holds Python, dtrain of this version, and what the program imports.
        namespace: of all objects; None: the one of the kubectl context.
        context: kubectl's; None: its current one.
        queue: the LocalQueue of Kueue in which the run waits for its turn.
        jobset: whether the tasks are one JobSet, which its controller must be there for, or an Indexed Job a
            role; `auto`: a JobSet where a queue is named, which then admits all tasks or none.
        resources: by role.
        volume: of the run directory.
        secret: a Secret that is there, with the key `secret` and a key for each name of the spec's `secrets`;
            None: one is made for the run.
        code_in: the folder of the image that holds the program; None: the program travels in a ConfigMap.
    """

    image: str | None = None
    namespace: str | None = None
    context: str | None = None
    queue: str | None = None
    jobset: bool | Literal["auto"] = "auto"
    resources: dict[RoleName, ResourcesSection] = field(default_factory=dict)
    volume: VolumeSection = field(default_factory=VolumeSection)
    secret: str | None = None
    code_in: str | None = None

    def resources_of(self, role: str) -> ResourcesSection:
        """Return the resources of a pod of a role."""
        given: dict[str, ResourcesSection] = dict(self.resources.items())
        return given.get(role, ResourcesSection())

    def as_jobset(self, needs_end: bool) -> bool:
        """Return whether the tasks are to be one JobSet.

        Args:
            needs_end: whether some tasks never end by themselves, and must be ended when the leader has.
        """
        return (self.queue is not None or needs_end) if self.jobset == "auto" else self.jobset

    def problems(self) -> Iterator[Problem]:
        """Yield the mistakes that types do not exclude."""
        for name, pattern in (("namespace", _LABEL), ("queue", _NAME), ("secret", _NAME)):
            if reason := _misnamed(getattr(self, name), pattern):
                yield (name,), reason
        if self.image is not None and (not self.image or any(map(str.isspace, self.image))):
            yield ("image",), f"expected an image such as registry/team/dtrain:1, found {self.image[:60]!r}"
        if self.code_in is not None and not self.code_in.startswith("/"):
            yield ("code_in",), f"expected a folder of the image such as /app, found {self.code_in[:60]!r}"
        for role, resources in self.resources.items():
            yield from ((("resources", role, *path), text) for path, text in resources.problems())
        yield from ((("volume", *path), text) for path, text in self.volume.problems())


def _misnamed(name: str | None, pattern: re.Pattern[str]) -> str | None:
    if name is None or pattern.fullmatch(name):
        return None
    return f"expected small letters, digits and '-', with a letter or digit at both ends, found {name[:60]!r}"
