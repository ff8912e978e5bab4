"""The faults of a spec's `simulate` section that the launcher brings about: kill and pause. Pure; each fires once a run."""

import signal
from dataclasses import dataclass

from dtrain.cluster import TaskId
from dtrain.config import KillFault, PauseFault, SimulateSection


@dataclass(frozen=True)
class Fault:
    """Something to do to a task now."""

    task: TaskId
    signal: int
    text: str


class FaultSchedule:
    """Decides which faults are due, by the run's step or the seconds since its start."""

    def __init__(self, simulate: SimulateSection) -> None:
        self._waiting: list[KillFault | PauseFault] = [*simulate.kill, *simulate.pause]
        self._paused: list[tuple[float, TaskId]] = []

    def due(self, elapsed_s: float, step: int | None) -> list[Fault]:
        """What to do now.

        Args:
            elapsed_s: since the start of the run.
            step: the global step; None before training.
        """
        faults = [Fault(task, signal.SIGCONT, "goes on") for end_s, task in self._paused if elapsed_s >= end_s]
        self._paused = [(end_s, task) for end_s, task in self._paused if elapsed_s < end_s]
        for fault in [fault for fault in self._waiting if _is_due(fault, elapsed_s, step)]:
            self._waiting.remove(fault)
            task = TaskId.parse(fault.task)
            if isinstance(fault, PauseFault):
                self._paused.append((elapsed_s + fault.for_s, task))
                faults.append(Fault(task, signal.SIGSTOP, f"paused for {fault.for_s:g} s"))
            else:
                faults.append(Fault(task, signal.SIGKILL, "killed"))
        return faults


def _is_due(fault: KillFault | PauseFault, elapsed_s: float, step: int | None) -> bool:
    if fault.at_s is not None:
        return elapsed_s >= fault.at_s
    return step is not None and fault.at_step is not None and step >= fault.at_step
