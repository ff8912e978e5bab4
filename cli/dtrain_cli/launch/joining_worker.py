"""The supervision of a worker that joins a run, by the command that owns it as a launcher owns its tasks.

The worker's output goes to its log, where `dtrain logs` finds it, and from there to this terminal. It is
started again by the run's restart rule, ends with this command, and this command ends with the run's
launcher.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from msgspec.structs import replace

from dtrain.config import NO_RESTART
from dtrain.process.life_line import started_s
from dtrain.process.start_protocol import Exited
from dtrain.process.tensorflow import write_tf_config
from dtrain.runs.files import FailureRecord, RunRecord, TaskRecord, read_sound, write_record
from dtrain.runs.joined import JoinedRecord
from dtrain.runs.states import LIVE_RUN_STATES, RunState, TaskState
from dtrain_cli.console.streams import Outlet, PlainBytes
from dtrain_cli.launch.join import Joining, threads_beside
from dtrain_cli.launch.policies.ordered_stop import RunStop
from dtrain_cli.launch.task_ends import TOLD_TO_STOP
from dtrain_cli.launch.task_supervisor import TaskSupervisor
from dtrain_cli.launch.tasks import TaskLife, failure_of
from dtrain_cli.plan.run_plan import TaskLaunch
from dtrain_cli.runs.logs import TaskOutput
from dtrain_cli.runs.report import first_line, is_alive
from dtrain_cli.targets.cold_start import LifeLine
from dtrain_cli.targets.fork_server import ForkServer
from dtrain_cli.targets.local import LocalTarget
from dtrain_cli.targets.signals import NOTICES, SignalInbox

LAST_LINES_S = 5.0
"""The longest wait for a slow reader of the last lines; the log has them all."""
KILLED = 128 + signal.SIGKILL


class JoiningWorker(TaskSupervisor):
    """The supervisor of one worker that joins a run; `run` is its life."""

    def __init__(self, joining: Joining, program: Path, arguments: tuple[str, ...]) -> None:
        assignment = joining.assignment
        spec, task, launched = assignment.spec, assignment.task, assignment.launched
        spec = spec if launched else replace(spec, restart={task.role.value: NO_RESTART})
        launch, target = _launch(joining, program, arguments), LocalTarget(ForkServer(LifeLine()))
        super().__init__([launch], spec, task, target, SignalInbox(), spec.wait.grace(launched))
        self._life = self.lives[task]
        self._run = joining.run
        self._launcher = joining.keeper if launched else None
        self._output = TaskOutput(self._files, task)
        self._outlet = Outlet(1)
        self._plain = PlainBytes() if self._outlet.is_terminal else None
        self._run_is_stopping = self._trains = False
        self._ended: RunRecord | None = None
        self._written: TaskRecord | None = None
        self._owner_started_s = started_s(os.getpid()) or 0.0

    def run(self) -> int:
        """Own the worker to its end; return the exit code."""
        self._say(f"joins run {self._run}; its log is {self._life.launch.log}")
        self._supervise()
        self._target.close()
        deadline_s = time.monotonic() + LAST_LINES_S
        self._show()
        while not self._outlet.idle and time.monotonic() < deadline_s:
            time.sleep(0.01)
            self._show()
        return self._conclude()

    def _conclude(self) -> int:
        life, order = self._life, self._order
        assert order is not None, "it is over"
        if self._ended is not None:
            life.state, life.exit_code = TaskState(self._ended.state), self._ended.exit_code
        elif order.state is RunState.STOPPED and life.exit_code:
            life.state, life.exit_code = TaskState.STOPPED, order.exit_code
        self._write()
        if self._ended is None and order.state is not RunState.FAILED and order.exit_code != KILLED:
            how = "has left" if order.state is RunState.STOPPED else "has trained to the end of"
            left = f"{how} run {self._run}{self._at_step()}"
            self._say(first_line(life.lost.message) if life.lost else left)
        return life.exit_code or 0

    def _say(self, text: str) -> None:
        task = self._life.task
        print(f"dtrain: {task}: {text.removeprefix(f'{task} ')}", file=sys.stderr, flush=True)  # noqa: T201

    def _stop_text(self, name: str) -> str:
        run = read_sound(self._files.run, RunRecord)
        self._run_is_stopping = run is not None and run.state is RunState.STOPPING  # then no task was lost
        return f"{f'run {self._run} is being stopped' if self._run_is_stopping else name}: leaves in order"

    def _answer(self, number: int, name: str) -> None:
        if number in NOTICES:
            self._life.signal(signal.SIGUSR1)

    def _exited(self, life: TaskLife, end: Exited, now_s: float) -> None:
        super()._exited(life, end, now_s)
        if self._order is None:
            if life.ended:
                self._order = RunStop(RunState.SUCCEEDED, 0, now_s, self._grace_s)
        elif not self._run_is_stopping and end.exit_code not in (0, TOLD_TO_STOP):
            life.lost = failure_of(life.launch, end)

    def _lose(self, life: TaskLife, why: FailureRecord, now_s: float) -> None:
        if self._order is None:
            life.lost = why
            self._stop(RunStop(RunState.FAILED, 1, now_s, self._grace_s), first_line(why.message))

    def _tick(self, now_s: float) -> None:
        self._read_statuses()
        gone = self._launcher is not None and not is_alive(self._files, self._launcher)
        if gone and self._ended is None and not self._over():
            self._without_launcher(now_s)
        super()._tick(now_s)
        if self._order is not None:
            self._advance_stop(self._order, now_s)
        elif not self._trains and (at_step := self._at_step()):
            self._trains = True
            self._say(f"trains; the run is{at_step}")
        self._write()
        self._show()

    def _without_launcher(self, now_s: float) -> None:
        run = read_sound(self._files.run, RunRecord)
        if run is None or run.state in LIVE_RUN_STATES:
            self._life.state, self._life.exit_code = TaskState.STOPPED, KILLED
            order = RunStop(RunState.STOPPED, KILLED, now_s, 0.0)
            self._stop(order, f"the launcher of run {self._run} has died, and its tasks with it")
            return
        self._ended = run
        self._say(f"run {self._run} has {run.state}, and this worker ends with it")
        if self._order is None:
            self._stop(RunStop(RunState.STOPPED, run.exit_code or 0, now_s, self._grace_s), None)

    def _at_step(self) -> str:
        status = self._life.status
        return "" if status is None or status.step is None else f" at step {status.step}"

    def _write(self) -> None:
        record = self._life.to_record()
        if record != self._written:
            joined = JoinedRecord(os.getpid(), self._owner_started_s, record)
            with contextlib.suppress(OSError):  # a full disk must not stop training
                write_record(self._files.joined(self._life.task), joined)
                self._written = record

    def _show(self) -> None:
        self._outlet.flush()
        if not self._outlet.clogged:
            for block in self._output.blocks():
                self._outlet.write_bytes(self._plain.text(block) if self._plain else block)


def _launch(joining: Joining, program: Path, arguments: tuple[str, ...]) -> TaskLaunch:
    assignment = joining.assignment
    assert assignment.run_dir is not None
    environment = assignment.to_environment(write_tf_config(assignment.cluster, assignment.task))
    return TaskLaunch(
        task=assignment.task,
        address=None,
        program=program,
        command=(sys.executable, "-m", "dtrain.task", str(program), *arguments),
        arguments=arguments,
        environment=environment | threads_beside(joining, os.environ),
        cwd=Path.cwd(),
        run_dir=assignment.run_dir,
        needs_grpc=False,
        private=assignment.private,
    )
