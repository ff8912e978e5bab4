"""The pieces of one call of `fit` in one stage of a pipeline, and what a term brings to it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace

from dtrain.config import PipelineSection
from dtrain.config.choices import Schedule
from dtrain.learning.graphs.stages import StageNetwork
from dtrain.messages import PipelineTerm
from dtrain.parameters.placement import Plan
from dtrain.roles.chief.start import Start
from dtrain.roles.stage.driver import StageDriver
from dtrain.runs.reporting import Reporter
from dtrain.state.stage_layout import StageLayout
from dtrain.strategies.interface import Problem
from dtrain.types import Array, Blocks
from dtrain.variables import VariableSpec


@dataclass(frozen=True)
class StageParts:
    """The pieces of one call of `fit` in one stage.

    Attributes:
        number: of the call of `fit`.
        begins: the layers with which the stages begin; none where layers are placed by hand.
        label: the first layer of this task.
        plan: of all variables; the server of each is its stage, by its place in `owners`.
        plans: of each task by itself.
        owners: the first replica of each stage, the leader first.
        networks: of this stage, by the place of their segment.
        leave_s: the seconds for a last checkpoint, once this task has been told to end.
        cut_at: returns the pieces of the same call where stages begin with other layers.
    """

    number: int
    problem: Problem
    begins: tuple[str, ...]
    label: str
    plan: Plan
    plans: Sequence[Plan]
    owners: Sequence[int]
    networks: Mapping[int, StageNetwork]
    layout: StageLayout
    schedule: Schedule
    driver: StageDriver
    section: PipelineSection
    reporter: Reporter
    leave_s: float
    incarnation: Callable[[], int]
    cut_at: "PartsOf"

    @property
    def place(self) -> int:
        """The place of this task among those that train."""
        return self.driver.machine.stage

    @property
    def own_plan(self) -> Plan:
        return self.plans[self.place]

    def start_of(self, place: int, start: Start) -> Start:
        """Return what a task begins with, of what all begin with."""
        names = [spec.name for spec in self.plans[place].variables]
        values = {name: start.values[name] for name in names}
        slots = {
            slot: {name: arrays[name] for name in names if name in arrays}
            for slot, arrays in start.slots.items()
        }
        return replace(start, plan=self.plans[place], values=values, slots=slots)


PartsOf = Callable[[tuple[str, ...]], StageParts]
"""Cuts the model in front of these layers."""


def share_of(start: Start, term: int, begins: tuple[str, ...]) -> tuple[PipelineTerm, Blocks]:
    """Return the message that begins a term in a stage, and its blocks: variables, then slots."""
    trained = [spec for spec in start.plan.variables if spec.trainable]
    blocks = [_flat(spec, start.values[spec.name]) for spec in start.plan.variables]
    blocks += [_flat(spec, start.slots[slot][spec.name]) for slot in start.slots for spec in trained]
    state = start.state.but(plan=None, model=None)
    return PipelineTerm(state=state, term=term, slots=tuple(start.slots), begins=begins), blocks


def start_from(message: PipelineTerm, blocks: Blocks, plan: Plan) -> Start:
    """Return the start of a stage that was told it; raise a ValueError unless it fits the plan."""
    trained = [spec for spec in plan.variables if spec.trainable]
    source = iter(blocks)
    values = {spec.name: next(source).reshape(spec.shape) for spec in plan.variables}
    slots = {
        slot: {spec.name: next(source).reshape(spec.shape) for spec in trained} for slot in message.slots
    }
    return Start(message.state, plan, values, slots)


def _flat(spec: VariableSpec, value: Any) -> Array:
    whole = value if isinstance(value, np.ndarray) or not spec.shape else value[0 : spec.shape[0]]
    return np.ascontiguousarray(whole, spec.dtype).reshape(-1)


class StageWeights(dict[str, Array]):
    """Every variable of a model by name, of which this stage has some; the others are asked for when read."""

    def __init__(self, names: Sequence[str], read: Callable[[str], Array]) -> None:
        super().__init__(dict.fromkeys(names, np.empty(0)))
        self._read = read

    def __getitem__(self, name: str) -> Array:
        return self._read(name) if name in self else super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:  # so that `dict(weights)` asks `__getitem__`
        return super().__iter__()

    def items(self) -> Any:
        return [(name, self[name]) for name in self]

    def values(self) -> Any:
        return [self[name] for name in self]
