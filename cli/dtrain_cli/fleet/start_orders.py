"""A task of the plan as an order to the agent of its host, with the paths of that host. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dtrain.process.assignment import BIND, MOVED_TO, RUN_DIR
from dtrain_cli.agent.messages import StartOrder
from dtrain_cli.plan.task_launch import TaskLaunch


@dataclass(frozen=True)
class RemotePlace:
    """The place of a run on a host, with paths of that host.

    Attributes:
        run_dir: the run's directory.
        cwd: the working directory of its tasks.
        executable: the interpreter.
        code: the folder here whose files lie in `cwd` there; None: the paths here are those there.
    """

    run_dir: str
    cwd: str
    executable: str
    code: Path | None = None

    def path_of(self, path: Path) -> str:
        """Return the path there of a file here."""
        if self.code is None or not path.absolute().is_relative_to(self.code):
            return str(path.absolute())
        return str(Path(self.cwd) / path.absolute().relative_to(self.code))


def start_order(
    launch: TaskLaunch,
    place: RemotePlace,
    secrets: Mapping[str, str],
    moved_to: str | None,
    bind: str | None,
) -> StartOrder:
    """Return the order that starts a task.

    Args:
        launch: the task as the plan has it.
        place: where it starts.
        secrets: variables that are recorded nowhere.
        moved_to: its address, where that is no longer the cluster's.
        bind: the address on which it listens; None: its own.
    """
    program = None if launch.program is None else place.path_of(launch.program)
    command = list(launch.command)
    if program is not None:
        command = [place.executable, "-m", "dtrain.task", program, *launch.arguments]
    environment = {**secrets, **launch.environment, RUN_DIR: place.run_dir}
    if moved_to is not None:
        environment[MOVED_TO] = moved_to
    if bind is not None:
        environment[BIND] = bind
    return StartOrder(
        task=str(launch.task),
        attempt=launch.attempt,
        address=moved_to or launch.address,
        program=program,
        command=command,
        arguments=list(launch.arguments),
        environment=environment,
        private=dict(launch.private),
        cwd=place.cwd,
        needs_grpc=launch.needs_grpc,
    )
