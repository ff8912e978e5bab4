"""A run that its engine owns: a job that Slurm has yet to start, or pods of Kubernetes.

A launch that follows it, `status`, `stop` and `rm` look at it in one way. What an engine adds is a subclass,
which `engines.COMMANDS` names: its commands, and the reader of their answers.
"""

import os
import select
import shlex
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dtrain.cluster import TaskId
from dtrain.errors import RunError
from dtrain.runs.files import FailureRecord, RunFiles, TaskRecord
from dtrain.runs.states import ENDED, LIVE_RUN_STATES, RunState, TaskState
from dtrain_cli.console.streams import say
from dtrain_cli.launch.engines import command_of
from dtrain_cli.runs.index import Journal, KnownRun, other_host, own_record, where_of
from dtrain_cli.runs.report import ProcessMeter, read_report
from dtrain_cli.targets.signals import STOP_SIGNALS, SignalInbox

_TURN_S = 0.1
_LOOK_EVERY_S = (1.0, 5.0)
"""Between two questions to an engine: in the first minute, and later."""
_SOON_S = 60.0


class View(msgspec.Struct, frozen=True):
    """A run at one moment, in the words of its engine.

    Attributes:
        exit_code: of a run that is over; None: it goes on.
        message: why it waits, or has ended.
        news: sentences, each of which a command that follows the run says once.
        tasks: what is known of them; none, where the engine knows only of the whole.
    """

    state: RunState
    exit_code: int | None = None
    message: str | None = None
    news: Sequence[str] = ()
    tasks: Sequence[TaskRecord] = ()
    failure: FailureRecord | None = None


class RunElsewhere(ABC):
    """A run that its engine owns, and knows as `job`.

    Attributes:
        name: what Ctrl-C asks about, such as ``job 17``.
        what_stays: the end of a sentence about a run that is over: what the engine keeps, and for how long.
    """

    what_stays = ""

    def __init__(self, files: RunFiles, job: str) -> None:
        self.files = files
        self.job = job
        self.name = f"run {files.directory.name}"
        self._look_s = 0.0

    @abstractmethod
    def look(self) -> View:
        """Ask the engine; raise a `RunError` if it does not answer."""

    @abstractmethod
    def show(self) -> bool:
        """Show what tasks have printed; return whether there was something."""

    @abstractmethod
    def cancel(self) -> None:
        """Stop the run in order; raise a `RunError` if the engine does not do so."""

    @abstractmethod
    def close(self, end: View | None) -> None:
        """Show the last lines, and let go of a run that has ended; None: it goes on."""

    def tell_to_stop(self) -> None:
        """Stop the run as `cancel` does, for a command that does not follow it."""
        self.cancel()

    def show_logs(self, tasks: Collection[TaskId], last: int | None, follow: bool, as_json: bool) -> bool:
        """Show what tasks have printed, if the engine has that; return whether there was something."""
        return False

    def remove(self) -> str | None:
        """Remove what the engine has of a run that has ended; return that in a sentence."""
        return None

    def report(self, meter: ProcessMeter | None = None) -> dict[str, Any]:
        """Return what `read_report` does, once the record says what the engine does."""
        report, record = read_report(self.files.directory, meter), own_record(self.files.directory)
        stale = report["state"] == RunState.STALE
        owned = record is not None and record.state in LIVE_RUN_STATES and record.launcher_pid is None
        if not (stale or owned) or time.monotonic() < self._look_s:
            return report
        self._look_s = time.monotonic() + _LOOK_EVERY_S[0]
        view = None
        try:
            self.note(view := self.look())
        except RunError:
            if not stale:
                raise
        report = read_report(self.files.directory, meter)
        return {**report, "stalled": view.message} if view and report["state"] == RunState.STALE else report

    def stop(self, wait_s: float) -> bool:
        """Stop the run in order, and wait; return whether it has ended."""
        deadline_s = time.monotonic() + wait_s
        self.tell_to_stop()
        self._look_s = 0.0
        while self.report()["state"] in LIVE_RUN_STATES:
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(_TURN_S)
        return True

    def note(self, view: View) -> None:
        """Write down what the engine says of a run without a launcher, or whose lost one begins again."""
        record = own_record(self.files.directory)
        if record is None or record.state not in LIVE_RUN_STATES:
            return
        if record.launcher_pid is not None:
            if view.state is not RunState.PENDING:
                return
            record.launcher_pid = record.host = None
        known = {task.task: task for task in view.tasks}
        for number, task in enumerate(record.tasks):
            if (now := known.get(task.task)) is not None:
                record.tasks[number] = replace(now, address=task.address)
            elif task.state not in ENDED and not known and view.state is not RunState.STARTING:
                task.state = TaskState.PENDING if view.exit_code is None else TaskState.STOPPED
        record.state = view.state
        record.stalled = view.message
        journal = Journal(self.files, record, say)
        if view.exit_code is not None:
            journal.end(view.state, view.exit_code, view.failure)
        journal.save()

    def leave(self) -> None:
        """Say how to look at a run that is not followed, and how to end it."""
        record = own_record(self.files.directory)
        run = record.run if record else shlex.quote(str(self.files.directory))
        look = f"look at it with `dtrain status {run}` and `dtrain logs -f {run}`"
        say(f"{self.name} goes on; {look}, end it with `dtrain stop {run}`")


def run_elsewhere(run: KnownRun) -> RunElsewhere | None:
    """Return a run as its engine sees it; None for one whose launcher is here, or which is its leader's."""
    where = where_of(run.files)
    if where.job is None or (run.record.launcher_pid is not None and other_host(run.record) is None):
        return None
    there: RunElsewhere = command_of(where.engine, "run")(run.files, where.job)
    return there


def follow(run: RunElsewhere, signals: SignalInbox) -> tuple[View | None, int]:
    """Wait for the end of a run; return it, and its exit code or that of the signal that has ended the wait.

    Ctrl-C asks, and gives 130 whether it leaves or cancels the run, unless the run has succeeded before.
    """
    cancelled = False
    told: set[str] = set()
    begun_s = look_s = time.monotonic()
    while True:
        now_s = time.monotonic()
        if now_s >= look_s:
            look_s = now_s + _LOOK_EVERY_S[now_s - begun_s > _SOON_S]
            view, news = _looked(run)
            for text in news:
                if text not in told:
                    told.add(text)
                    say(text)
            if view is not None and view.exit_code is not None:
                run.close(view)
                return view, 128 + signal.SIGINT if cancelled and view.exit_code else view.exit_code
        select.select([signals], [], [], 0 if run.show() else _TURN_S)
        for number in signals.read():
            if number == signal.SIGINT and asked_to_cancel(run.name, signals, run.show):
                say(f"cancelling {run.name}: it saves its last step and stops")
                run.cancel()
                cancelled = True
                look_s = 0.0
            elif number in STOP_SIGNALS:
                run.close(None)
                run.leave()
                return None, 128 + number


def _looked(run: RunElsewhere) -> tuple[View | None, Sequence[str]]:
    try:
        view = run.look()
    except RunError as error:
        return None, [f"{error}; {run.name} goes on there, and this command tries again"]
    run.note(view)
    return view, view.news


def asked_to_cancel(what: str, signals: SignalInbox, pump: Callable[[], object]) -> bool:
    """Return whether the user cancels `what`; without a terminal, and by any other answer, it goes on.

    `pump` is called again and again while the user thinks.
    """
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    say(f"{what} goes on without this command: leave it there, or cancel it? [leave/cancel]")
    say("type c to cancel; Enter, or Ctrl-C again, to leave it")
    while True:
        pump()
        ready, _, _ = select.select([sys.stdin, signals], [], [], _TURN_S)
        if signals in ready and set(signals.read()) & set(STOP_SIGNALS):
            return False
        if sys.stdin in ready:
            return os.read(sys.stdin.fileno(), 1024).strip().lower().startswith(b"c")
