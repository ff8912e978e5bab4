"""The faults of a spec's `simulate` section that the launcher causes: kill and pause, each once. Pure."""

import random
import signal
from collections.abc import Container
from dataclasses import dataclass, replace

from dtrain.cluster import TaskId
from dtrain.config import KillFault, PauseFault, SimulateSection

AnyFault = KillFault | PauseFault


@dataclass(frozen=True)
class Fault:
    """Something to do to a task now."""

    task: TaskId
    signal: int
    text: str


class FaultSchedule:
    """The decision which faults are due, by the run's step or the seconds since its start."""

    def __init__(self, simulate: SimulateSection) -> None:
        chance = random.Random(simulate.seed)
        faults: list[AnyFault] = [*simulate.kill, *simulate.pause]
        self._waiting = [_at_one_moment(fault, chance) for fault in faults]
        self._paused: list[tuple[float, TaskId]] = []

    def due(self, elapsed_s: float, step: int | None, there: Container[TaskId] | None = None) -> list[Fault]:
        """Return the faults that are due now.

        Args:
            elapsed_s: since the start of the run.
            step: the global step; None before training.
            there: the tasks that have a process (None: all); what is due to others comes when they have one.
        """
        faults = [
            Fault(task, signal.SIGCONT, "resumed") for end_s, task in self._paused if elapsed_s >= end_s
        ]
        self._paused = [(end_s, task) for end_s, task in self._paused if elapsed_s < end_s]
        for fault in [fault for fault in self._waiting if _is_due(fault, elapsed_s, step)]:
            task = TaskId.parse(fault.task)
            if there is not None and task not in there:
                continue
            self._waiting.remove(fault)
            if isinstance(fault, PauseFault):
                self._paused.append((elapsed_s + fault.for_s, task))
                faults.append(Fault(task, signal.SIGSTOP, f"paused for {fault.for_s:g} s"))
            else:
                faults.append(Fault(task, signal.SIGKILL, "killed"))
        return faults

    @property
    def over(self) -> bool:
        """Return whether nothing more will be due."""
        return not self._waiting and not self._paused

    def missed(self) -> list[str]:
        """Return the faults that have not happened by the end of the run, with their tasks."""
        return [
            f"{fault.task} was not {'paused' if isinstance(fault, PauseFault) else 'killed'}"
            for fault in self._waiting
        ]


def _at_one_moment(fault: AnyFault, chance: random.Random) -> AnyFault:
    """Return the fault at the step or second that the seed draws between the two that the spec gives."""
    if isinstance(fault.at_step, tuple):
        return replace(fault, at_step=chance.randint(*fault.at_step))
    return replace(fault, at_s=chance.uniform(*fault.at_s)) if isinstance(fault.at_s, tuple) else fault


def _is_due(fault: AnyFault, elapsed_s: float, step: int | None) -> bool:
    if isinstance(fault.at_step, int):
        return step is not None and step >= fault.at_step
    return isinstance(fault.at_s, float | int) and elapsed_s >= fault.at_s
