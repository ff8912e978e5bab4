"""The spec of a study: parameters, metric, sampler, counts; and the rules that its values must obey."""

import math
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Literal

import msgspec

from dtrain.config import Problem
from dtrain.config.plain_data import AtLeast0, AtLeast1, below

Scalar = str | int | float | bool
Named = str | dict[str, dict[str, Any]]
"""The name of a sampler or pruner, with its options if it has any."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_MEMORY = re.compile(r"(\d{1,15}(?:\.\d{1,15})?) ?([kMGT]?)(i?)B?")


Better = StrEnum("Better", "MAXIMIZE MINIMIZE")
Scale = StrEnum("Scale", "LINEAR LOG")
"""The scale on which the values of a range are equally likely."""
Kind = StrEnum("Kind", "FLOAT INT")


class ValueRange(msgspec.Struct, frozen=True):
    """The values of a parameter from `min` to `max`, both included; `step`: `min` plus multiples of it."""

    min: float
    max: float
    type: Kind = Kind.FLOAT
    scale: Scale = Scale.LINEAR
    step: float | None = None

    @property
    def whole(self) -> bool:
        return self.type is Kind.INT

    def problems(self) -> Iterator[Problem]:
        if self.min > self.max:
            yield ("min",), f"expected at most max, which is {self.max:g}, found {self.min:g}: upside down?"
        if self.scale is Scale.LOG and self.min <= 0:
            yield ("min",), f"a log scale begins above 0; found {self.min:g}"
        for name in ("min", "max", "step") if self.whole else ():
            number = getattr(self, name)
            if number is not None and number != int(number):
                yield (name,), f"expected a whole number, as `type: int` says, found {number:g}"
        if self.step is not None and (self.step <= 0 or self.scale is Scale.LOG):
            yield ("step",), f"expected a step above 0, and a linear scale, found {self.step:g}"

    def grid(self) -> list[Scalar] | None:
        """Return all values, or None if they are without number."""
        step = self.step or (1.0 if self.whole else None)
        if step is None:
            return [self.min] if self.min == self.max else None
        values = [self.min + index * step for index in range(int((self.max - self.min) / step + 1e-9) + 1)]
        return [int(value) for value in values] if self.whole else list(values)


Parameter = ValueRange | tuple[Scalar, ...]


class TrialResources(msgspec.Struct, frozen=True):
    """The cores and the memory of a trial; what is not said follows from its tasks, or is measured."""

    cores: float | None = None
    memory: str | int | None = None

    @property
    def nbytes(self) -> int | None:
        return None if self.memory is None else memory_bytes(self.memory)

    def problems(self) -> Iterator[Problem]:
        if self.cores is not None and not 0 < self.cores < math.inf:
            yield ("cores",), f"expected a number of cores above 0, found {self.cores:g}"
        if self.memory is not None and not self.nbytes:
            yield ("memory",), f"expected bytes, or a text such as 2GB or 512MiB, found {self.memory!r}"


def memory_bytes(text: str | int) -> int | None:
    match = _MEMORY.fullmatch(str(text))
    if match is None:
        return None
    return int(float(match[1]) * (1024 if match[3] else 1000) ** " kMGT".index(match[2] or " "))


class StudySpec(msgspec.Struct, frozen=True):
    """A study as its file says it.

    Attributes:
        metric: its name, and whether it is to be large or small.
        max_failed_trial_count: when more have failed, the study ends.
        trial: the spec of the run of each trial, or the file that has it; None: as a launch without one.
        timeout_s: seconds after which a trial has failed.
    """

    name: str
    metric: dict[str, Better]
    parameters: dict[str, Parameter]
    max_trial_count: AtLeast1[int] = 20
    parallel_trial_count: AtLeast1[int] | Literal["auto"] = 1
    max_failed_trial_count: AtLeast0[int] = 10
    sampler: Named = "random"
    pruner: Named | None = None
    trial: str | dict[str, Any] | None = None
    resources: TrialResources = msgspec.field(default_factory=TrialResources)
    timeout_s: AtLeast0[float] | None = None

    @property
    def metric_name(self) -> str:
        return next(iter(self.metric))

    @property
    def maximizes(self) -> bool:
        return self.metric[self.metric_name] is Better.MAXIMIZE

    @property
    def parallel(self) -> int | None:
        """The number of trials at a time; None: as many as fit."""
        return self.parallel_trial_count if isinstance(self.parallel_trial_count, int) else None

    def better(self, one: float, other: float) -> bool:
        return one > other if self.maximizes else one < other

    def problems(self) -> Iterator[Problem]:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", self.name):
            yield ("name",), f"expected letters, digits, '.', '_' and '-', at most 80, found {self.name!r}"
        if len(self.metric) != 1:
            yield ("metric",), f"expected one, such as {{accuracy: maximize}}, found {len(self.metric)}"
        for key in ("sampler", "pruner"):
            if isinstance(named := getattr(self, key), dict) and len(named) != 1:
                yield (key,), f"expected one {key}, such as {{NAME: {{OPTION: VALUE}}}}, found {len(named)}"
        yield from below(("resources",), self.resources.problems())
        yield from below(("parameters",), self._parameter_problems())

    def _parameter_problems(self) -> Iterator[Problem]:
        if not self.parameters:
            yield (), "expected at least one parameter, found none"
        for name, parameter in self.parameters.items():
            if not _NAME.fullmatch(name):
                yield (name,), "expected the name of a flag: letters, digits, '_' and '-'"
            if isinstance(parameter, ValueRange):
                yield from below((name,), parameter.problems())
                if name_of(self.sampler) == "grid" and parameter.grid() is None:
                    yield (name,), "a grid needs a `step`, `type: int`, or a list of values"
            elif not parameter or len(set(map(repr, parameter))) < len(parameter):
                yield (name,), "expected a list of one value or more, all different"


def name_of(named: Named | None) -> str:
    return "" if named is None else named if isinstance(named, str) else next(iter(named))


def options_of(named: Named | None) -> dict[str, Any]:
    return next(iter(named.values())) if isinstance(named, dict) else {}
