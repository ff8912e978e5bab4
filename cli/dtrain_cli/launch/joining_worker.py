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

from msgspec.structs import replace

from dtrain.cluster import Role
from dtrain.config import NO_RESTART
from dtrain.process.life_line import started_s
from dtrain.process.start_protocol import Exited, Refused, Started
from dtrain.process.tensorflow import write_tf_config
from dtrain.runs.files import RunFiles, RunRecord, read_sound, write_record
from dtrain.runs.joined import JoinedRecord
from dtrain.runs.states import LIVE_RUN_STATES, RunState, TaskState
from dtrain.runs.task_states import why_lost
from dtrain_cli.console.streams import Outlet, PlainBytes
from dtrain_cli.launch.join import Joining, threads_beside
from dtrain_cli.launch.policies import outcomes
from dtrain_cli.launch.task_ends import TOLD_TO_STOP
from dtrain_cli.launch.tasks import TaskLife, failure_of
from dtrain_cli.plan.run_plan import TaskLaunch
from dtrain_cli.runs.logs import TaskOutput
from dtrain_cli.runs.report import is_alive
from dtrain_cli.targets.cold_start import LifeLine
from dtrain_cli.targets.fork_server import ForkServer
from dtrain_cli.targets.local import LocalTarget
from dtrain_cli.targets.signals import NOTICES, STOP_SIGNALS, SignalInbox, signal_name
from dtrain_cli.targets.target import Event

TICK_S = 0.1
LAST_LINES_S = 5.0
"""The longest wait for a slow reader of the last lines; the log has them all."""
NOT_EXECUTED = 127
KILLED = 128 + signal.SIGKILL


class JoiningWorker:
    """One worker that has joined a run; `run` is the loop."""

    def __init__(self, joining: Joining, program: Path, arguments: tuple[str, ...]) -> None:
        assignment = joining.assignment
        self._life = TaskLife(_launch(joining, program, arguments), host=socket.gethostname())
        self._files = RunFiles(self._life.launch.run_dir)
        self._run = joining.run
        self._launcher = joining.keeper if assignment.launched else None
        self._rule = assignment.spec.restart_of(Role.WORKER) if assignment.launched else NO_RESTART
        self._grace_s = assignment.spec.wait.grace(assignment.launched)
        self._signals = SignalInbox()
        self._target = LocalTarget(ForkServer(LifeLine()))
        self._target.wake_on(self._signals)
        self._output = TaskOutput(self._files, self._life.task)
        self._outlet = Outlet(1)
        self._plain = PlainBytes() if self._outlet.is_terminal else None
        self._stop_signal: int | None = None
        self._run_is_stopping = False
        self._message: str | None = None
        self._trains = False
        self._kill_s = float("inf")
        self._exit_code: int | None = None
        self._ended: RunRecord | None = None
        self._owner_started_s = started_s(os.getpid()) or 0.0

    def run(self) -> int:
        """Own the worker to its end; return the exit code."""
        self._print(f"joins run {self._run}; its log is {self._life.launch.log}")
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
        if self._ended is None and (self._stop_signal is not None or self._exit_code == 0):
            how = "has left" if self._stop_signal is not None else "has trained to the end of"
            self._print(self._message or f"{how} run {self._run}{self._at_step()}")
        return self._exit_code

    def _start(self) -> None:
        self._life.restart_s = self._life.status = None
        self._life.started_s = time.monotonic()
        self._write(TaskState.STARTING)
        try:
            self._life.handle = self._target.start(self._life.launch)
        except OSError as error:
            self._print(f"cannot be started: {error.strerror} ({error.filename or 'fork'})")
            self._end(TaskState.FAILED, NOT_EXECUTED)

    def _react(self, event: Event, now_s: float) -> None:
        if isinstance(event, Started):
            self._life.pid, self._message = event.pid, None
            self._write(TaskState.RUNNING)
            if self._stop_signal is not None or self._ended is not None:  # while it was being started
                self._life.signal(signal.SIGTERM)
        elif isinstance(event, Refused):
            self._print(event.reason)
            self._end(TaskState.FAILED, NOT_EXECUTED)
        elif isinstance(event, Exited):
            self._exited(event, now_s)

    def _signalled(self, number: int, now_s: float) -> None:
        """Pass the first signal on as the request to stop, and kill at the second, as a launcher does."""
        if number in NOTICES:
            self._life.signal(signal.SIGUSR1)
        if number not in STOP_SIGNALS:
            return
        if self._stop_signal is not None:
            self._kill_s = now_s
            return
        self._stop_signal = number
        run = read_sound(self._files.run, RunRecord)
        self._run_is_stopping = run is not None and run.state is RunState.STOPPING  # then no task was lost
        why = f"run {self._run} is being stopped" if self._run_is_stopping else signal_name(number)
        self._print(f"{why}: leaves in order; a second signal kills at once")
        if self._life.state != TaskState.RESTARTING:
            self._write(TaskState.STOPPING)
        self._stop(TaskState.STOPPED, 128 + number, now_s)

    def _stop(self, state: TaskState, code: int, now_s: float) -> None:
        """Stop the worker within its grace time. If it waits for a restart, it ends now, in `state`."""
        if self._life.state == TaskState.RESTARTING:
            self._end(state, code)
            return
        self._kill_s = min(self._kill_s, now_s + self._grace_s)
        self._life.signal(signal.SIGTERM)
        self._life.signal(signal.SIGCONT)

    def _exited(self, end: Exited, now_s: float) -> None:
        code, life = end.exit_code, self._life
        life.read_status()  # its last words
        life.pid = None
        error_type: str | None = None
        message = why_lost(life.status) if life.status else None
        if end.status != 0:
            failure = failure_of(life.launch, end)
            message, error_type = failure.message.partition("\n")[0], failure.error_type
        asked = self._run_is_stopping or (self._stop_signal is not None and code in (0, TOLD_TO_STOP))
        self._message = None if asked else message
        if self._ended is not None:
            self._end(TaskState(self._ended.state), self._ended.exit_code or 0)
            return
        if self._stop_signal is not None:
            state = TaskState.STOPPED if code else TaskState.SUCCEEDED
            self._end(state, 128 + self._stop_signal if code else 0)
            return
        used, ran_s = life.restarts_used, now_s - life.started_s
        restart = outcomes.decide_restart(self._rule, end.status, used, ran_s, now_s, error_type)
        if message is None or restart is None:
            if message:
                self._print(message)
            self._end(TaskState.FAILED if message else TaskState.SUCCEEDED, code)
            return
        life.restart_s, life.restarts_used = restart.at_s, restart.count
        count = f"{restart.count} of {self._rule.max}"
        self._print(f"{message}; restarting in {restart.at_s - now_s:g} s ({count})")
        self._write(TaskState.RESTARTING)

    def _at_step(self) -> str:
        self._life.read_status()
        status = self._life.status
        return "" if status is None or status.step is None else f" at step {status.step}"

    def _tick(self, now_s: float) -> None:
        if self._exit_code is not None:
            return
        if self._ended is None and self._launcher is not None and not is_alive(self._files, self._launcher):
            self._without_launcher(now_s)
        elif now_s >= self._kill_s:
            self._life.signal(signal.SIGKILL)
        elif self._life.restart_s is not None and now_s >= self._life.restart_s:
            self._life.launch = self._life.launch.for_attempt(self._life.launch.attempt + 1)
            self._start()
        elif not self._trains and (at_step := self._at_step()):
            self._trains = True
            self._print(f"trains; the run is{at_step}")

    def _without_launcher(self, now_s: float) -> None:
        run = read_sound(self._files.run, RunRecord)
        if run is None or run.state in LIVE_RUN_STATES:
            self._print(f"the launcher of run {self._run} has died, and its tasks with it")
            self._end(TaskState.STOPPED, KILLED)
            return
        self._print(f"run {self._run} has {run.state}, and this worker ends with it")
        self._ended = run
        self._stop(TaskState(run.state), run.exit_code or 0, now_s)

    def _end(self, state: TaskState, code: int) -> None:
        self._exit_code = self._life.exit_code = code
        self._write(state)

    def _write(self, state: TaskState) -> None:
        self._life.state = state
        record = replace(self._life.to_record(), message=self._message)
        joined = JoinedRecord(os.getpid(), self._owner_started_s, record)
        with contextlib.suppress(OSError):  # a full disk must not stop training
            write_record(self._files.joined(self._life.task), joined)

    def _show(self) -> None:
        self._outlet.flush()
        if not self._outlet.clogged:
            for block in self._output.blocks():
                self._outlet.write_bytes(self._plain.text(block) if self._plain else block)

    def _print(self, text: str) -> None:
        print(f"dtrain: {self._life.task}: {text}", file=sys.stderr, flush=True)  # noqa: T201


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
