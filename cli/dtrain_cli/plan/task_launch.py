"""One task of a run, ready to be started."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dtrain.cluster import TaskId
from dtrain.formats.masked_urls import masked
from dtrain.process.assignment import ATTEMPT
from dtrain.runs.files import RunFiles


@dataclass(frozen=True)
class TaskLaunch:
    """One task, ready to be started.

    Attributes:
        task: who it will be.
        address: where it serves; None for the evaluator.
        program: the Python program; None for a foreign command.
        command: the argv that is run; for a program the equivalent ``python -m dtrain.task PROGRAM ARGS``.
        arguments: the program's own arguments, or those of the foreign command (without the executable).
        environment: the variables that dtrain sets, on top of the inherited ones.
        private: those that only the task itself may see; they are recorded nowhere.
        cwd: the working directory.
        run_dir: the directory of the run.
        needs_grpc: whether a `.py` program's task serves, or its servers may not be on this host.
        attempt: how often the task has been restarted.
    """

    task: TaskId
    address: str | None
    program: Path | None
    command: tuple[str, ...]
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    cwd: Path
    run_dir: Path
    needs_grpc: bool
    private: Mapping[str, str] = field(default_factory=dict, repr=False)
    attempt: int = 0

    @property
    def log(self) -> Path:
        """Return the file for this attempt's output."""
        return RunFiles(self.run_dir).log(self.task, self.attempt)

    def for_attempt(self, attempt: int) -> "TaskLaunch":
        """Return the same launch as another attempt, with that attempt's environment and log."""
        return replace(self, attempt=attempt, environment={**self.environment, ATTEMPT: str(attempt)})

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for plan.json and `dtrain plan --json`."""
        return {
            "task": str(self.task),
            "address": self.address,
            "program": str(self.program) if self.program else None,
            "command": list(self.command),
            "arguments": list(self.arguments),
            "environment": {name: masked(value) for name, value in self.environment.items()},
            "cwd": str(self.cwd),
            "attempt": self.attempt,
            "log": str(self.log),
        }
