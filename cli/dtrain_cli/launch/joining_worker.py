"""The life of a worker that joins a run, by the command that owns it as a launcher owns its tasks.

The worker's output goes to its log, where `dtrain logs` finds it, and from there to this terminal. It is
started again by the run's restart rule, ends with this command, and this command ends with the run's
launcher.
"""

import contextlib
import os
import signal
import socket
import sys
import time
from pathlib import Path

from dtrain.cluster import Role
from dtrain.config import NO_RESTART
from dtrain.messages.membership import TaskStatus
from dtrain.process.life_line import started_s
from dtrain.process.start_protocol import Exited, Refused, Started
from dtrain.process.tensorflow import write_tf_config
from dtrain.runs.files import RunFiles, RunRecord, TaskRecord, read_sound, write_record
from dtrain.runs.joined import JoinedRecord
from dtrain.runs.states import LIVE_RUN_STATES, RunState, TaskState
from dtrain.runs.task_states import why_lost
from dtrain_cli.console.streams import Outlet, PlainBytes
from dtrain_cli.launch.join import Joining, threads_beside
from dtrain_cli.launch.policies import outcomes
from dtrain_cli.launch.task_ends import TOLD_TO_STOP
from dtrain_cli.launch.tasks import failure_of
from dtrain_cli.plan.run_plan import TaskLaunch
from dtrain_cli.runs.logs import TaskOutput
from dtrain_cli.runs.report import is_alive
from dtrain_cli.targets.fork_server import LifeLine
from dtrain_cli.targets.local import LocalTarget
from dtrain_cli.targets.signals import NOTICES, STOP_SIGNALS, SignalInbox, signal_name
from dtrain_cli.targets.target import Event, TaskHandle

TICK_S = 0.1
LAST_LINES_S = 5.0
"""The longest wait for a slow reader of the last lines; the log has them all."""
NOT_EXECUTED = 127
KILLED = 128 + signal.SIGKILL


class JoiningWorker:
    """One worker that has joined a run; `run` is the loop."""

    def __init__(self, joining: Joining, program: Path, arguments: tuple[str, ...]) -> None:
        assignment = joining.assignment
        self.launch = _launch(joining, program, arguments)
        self._files = RunFiles(self.launch.run_dir)
        self._run = joining.run
        self._launcher = joining.keeper if assignment.launched else None
        self._rule = assignment.spec.restart_of(Role.WORKER) if assignment.launched else NO_RESTART
        self._grace_s = assignment.spec.wait.grace(assignment.launched)
        self._signals = SignalInbox()
        self._target = LocalTarget(LifeLine(), None)
        self._target.wake_on(self._signals)
        self._handle: TaskHandle | None = None
        self._output = TaskOutput(self._files, self.launch.task)
        self._outlet = Outlet(1)
        self._plain = PlainBytes() if self._outlet.is_terminal else None
        self._restarts = 0
        self._restart_s: float | None = None
        self._started_s = 0.0
        self._told: int | None = None
        self._told_with_all = False
        self._trains = False
        self._kill_s = float("inf")
        self._exit_code: int | None = None
        self._ended: RunRecord | None = None
        record = TaskRecord(str(self.launch.task), host=socket.gethostname())
        self._record = JoinedRecord(os.getpid(), started_s(os.getpid()) or 0.0, record)

    def run(self) -> int:
        """Own the worker to its end; return the exit code."""
        self._say(f"joins run {self._run}; its log is {self.launch.log}")
        self._start()
        while self._exit_code is None:
            events = self._target.events(time.monotonic() + TICK_S)
            for number in self._signals.read():
                self._signalled(number, time.monotonic())
            for event in events:
                self._react(event, time.monotonic())
            self._tick(time.monotonic())
            self._show()
        self._target.close()
        deadline_s = time.monotonic() + LAST_LINES_S
        self._show()
        while not self._outlet.idle and time.monotonic() < deadline_s:
            time.sleep(0.01)
            self._show()
        if self._ended is None and (self._told is not None or self._exit_code == 0):
            how = "has left" if self._told is not None else "has trained to the end of"
            self._say(self._record.task.message or f"{how} run {self._run}{self._at_step()}")
        return self._exit_code

    def _start(self) -> None:
        self._restart_s = None
        self._started_s = time.monotonic()
        self._write(TaskState.STARTING)
        try:
            self._handle = self._target.start(self.launch)
        except OSError as error:
            self._say(f"cannot be started: {error.strerror} ({error.filename or 'fork'})")
            self._end(TaskState.FAILED, NOT_EXECUTED)

    def _react(self, event: Event, now_s: float) -> None:
        if isinstance(event, Started):
            self._record.task.pid = event.pid
            self._record.task.message = None
            self._write(TaskState.RUNNING)
            if self._told is not None or self._ended is not None:  # while it was being started
                self._signal(signal.SIGTERM)
        elif isinstance(event, Refused):
            self._say(event.reason)
            self._end(TaskState.FAILED, NOT_EXECUTED)
        elif isinstance(event, Exited):
            self._exited(event, now_s)

    def _signalled(self, number: int, now_s: float) -> None:
        """Pass the first signal on as the request to stop, and kill at the second, as a launcher does."""
        if number in NOTICES:
            self._signal(signal.SIGUSR1)
        if number not in STOP_SIGNALS:
            return
        if self._told is not None:
            self._kill_s = now_s
            return
        self._told = number
        self._kill_s = now_s + self._grace_s
        run = read_sound(self._files.run, RunRecord)
        self._told_with_all = run is not None and run.state is RunState.STOPPING  # then no task was lost
        why = f"run {self._run} is being stopped" if self._told_with_all else signal_name(number)
        self._say(f"{why}: leaves in order; a second signal kills at once")
        if self._record.task.state == TaskState.RESTARTING:
            self._end(TaskState.STOPPED, 128 + number)
            return
        self._write(TaskState.STOPPING)
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def _exited(self, end: Exited, now_s: float) -> None:
        code = end.exit_code
        self._record.task.pid = None
        message, error_type = self._why(end)
        asked = self._told_with_all or (self._told is not None and code in (0, TOLD_TO_STOP))
        self._record.task.message = None if asked else message
        if self._ended is not None:
            self._end(TaskState(self._ended.state), self._ended.exit_code or 0)
            return
        if self._told is not None:
            self._end(TaskState.STOPPED if code else TaskState.SUCCEEDED, 128 + self._told if code else 0)
            return
        ran_s = now_s - self._started_s
        restart = outcomes.decide_restart(self._rule, end.status, self._restarts, ran_s, now_s, error_type)
        if message is None or restart is None:
            if message:
                self._say(message)
            self._end(TaskState.FAILED if message else TaskState.SUCCEEDED, code)
            return
        self._restart_s = restart.at_s
        self._restarts = restart.count
        self._say(
            f"{message}; restarting in {restart.at_s - now_s:g} s ({restart.count} of {self._rule.max})"
        )
        self._write(TaskState.RESTARTING)

    def _why(self, end: Exited) -> tuple[str | None, str | None]:
        """Return in one line why the worker was lost (None: it ended well), and its exception's class."""
        if end.status != 0:
            failure = failure_of(self.launch, end)
            return failure.message.partition("\n")[0], failure.error_type
        status = read_sound(self._files.status(self.launch.task), TaskStatus)
        return why_lost(status) if status is not None else None, None

    def _at_step(self) -> str:
        status = read_sound(self._files.status(self.launch.task), TaskStatus)
        return "" if status is None or status.step is None else f" at step {status.step}"

    def _tick(self, now_s: float) -> None:
        if self._exit_code is not None:
            return
        if self._ended is None and self._launcher is not None and not is_alive(self._files, self._launcher):
            self._without_launcher(now_s)
        elif now_s >= self._kill_s:
            self._signal(signal.SIGKILL)
        elif self._restart_s is not None and now_s >= self._restart_s:
            self.launch = self.launch.for_attempt(self.launch.attempt + 1)
            self._record.task.attempt = self._record.task.restarts = self.launch.attempt
            self._start()
        elif not self._trains and (at_step := self._at_step()):
            self._trains = True
            self._say(f"trains; the run is{at_step}")

    def _without_launcher(self, now_s: float) -> None:
        """End with the run: it has ended, with its launcher, or the launcher has died."""
        run = read_sound(self._files.run, RunRecord)
        if run is None or run.state in LIVE_RUN_STATES:
            self._say(f"the launcher of run {self._run} has died, and its tasks with it")
            self._end(TaskState.STOPPED, KILLED)
            return
        self._say(f"run {self._run} has {run.state}, and this worker ends with it")
        self._ended = run
        if self._record.task.state == TaskState.RESTARTING:
            self._end(TaskState(run.state), run.exit_code or 0)
            return
        self._kill_s = min(self._kill_s, now_s + self._grace_s)
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._handle is not None:
            self._handle.signal(number)

    def _end(self, state: TaskState, code: int) -> None:
        self._exit_code = self._record.task.exit_code = code
        self._write(state)

    def _write(self, state: TaskState) -> None:
        self._record.task.state = TaskState(state)
        with contextlib.suppress(OSError):  # a full disk must not stop training
            write_record(self._files.joined(self.launch.task), self._record)

    def _show(self) -> None:
        self._outlet.flush()
        if not self._outlet.clogged:
            for block in self._output.blocks():
                self._outlet.write_bytes(self._plain.text(block) if self._plain else block)

    def _say(self, text: str) -> None:
        print(f"dtrain: {self.launch.task}: {text}", file=sys.stderr, flush=True)  # noqa: T201


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
