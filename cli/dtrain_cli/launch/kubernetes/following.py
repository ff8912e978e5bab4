"""Following a run in the cluster until it ends, or until the user lets go of it."""

import select
import signal
import time
from dataclasses import dataclass

from dtrain.errors import RunError
from dtrain.runs.files import RunRecord
from dtrain.runs.states import ENDED, RunState
from dtrain_cli.console.run_console import RunConsole
from dtrain_cli.launch.engines import asked_to_cancel
from dtrain_cli.launch.kubernetes.mirror import OutputMirror, note_view
from dtrain_cli.runs.journal import Journal
from dtrain_cli.targets.kubernetes.kubectl import Kubectl
from dtrain_cli.targets.kubernetes.view import PodView, RunView
from dtrain_cli.targets.signal_inbox import STOP_SIGNALS, SignalInbox

LOOK_EVERY_S = 2.0
TURN_S = 0.1
LAST_TASKS_S = 60.0
"""How long tasks may take to end by themselves after the leader has succeeded."""
DRAIN_S = 5.0
TIMEOUT_CODE = 124


@dataclass(frozen=True)
class Ending:
    """The way in which the following of a run has ended.

    Attributes:
        state: of the run; None: it goes on in the cluster, and this command does not follow it any more.
        exit_code: of the command.
        failed: the pod whose end was the run's.
        message: why it has failed or was stopped.
        cancel: whether it is to be stopped.
    """

    state: RunState | None
    exit_code: int
    failed: PodView | None = None
    message: str | None = None
    cancel: bool = False


class Follower:
    """One run that is followed."""

    def __init__(
        self,
        kubectl: Kubectl,
        signals: SignalInbox,
        journal: Journal,
        console: RunConsole,
        mirror: OutputMirror,
    ) -> None:
        self._kubectl = kubectl
        self._signals = signals
        self._journal = journal
        self._console = console
        self._mirror = mirror
        self._seen = False
        self._unreachable = False
        self._message: str | None = None
        self._succeeded_s: float | None = None

    def run(self, timeout_s: float | None) -> Ending:
        """Follow until the end; Ctrl-C asks whether to leave the run or to cancel it."""
        begun_s, look_s = time.monotonic(), 0.0
        while True:
            for number in self._signals.read():
                if number in STOP_SIGNALS:
                    return Ending(None, 128 + number, cancel=number == signal.SIGINT and self._cancels())
            now_s = time.monotonic()
            if timeout_s is not None and now_s - begun_s > timeout_s:
                return Ending(None, TIMEOUT_CODE, message=f"--timeout of {timeout_s:g} s", cancel=True)
            if now_s >= look_s:
                look_s = now_s + LOOK_EVERY_S
                if (ending := self._look(now_s)) is not None:
                    self._mirror.drain(DRAIN_S)
                    return ending
            self._console.pump()
            select.select([self._signals], [], [], TURN_S)

    def _look(self, now_s: float) -> Ending | None:
        """Look at the cluster once; how the run has ended, if it has."""
        try:
            view = self._kubectl.look()
        except RunError as error:
            if not self._unreachable:
                self._console.say(f"{error}; the run goes on there, and this command tries again")
            self._unreachable = True
            return None
        if self._unreachable:
            self._console.say("the cluster answers again")
        self._unreachable = False
        self._mirror.see(self._record, view)
        if view.message and view.message != self._message:
            self._console.say(f"the run waits: {view.message}")
        self._message = view.message if view.state != RunState.FAILED else self._message
        before = self._record.state
        note_view(self._record, view)
        if self._record.state != before:
            self._journal.event("state", state=self._record.state)
        self._journal.save()
        return self._ending(view, now_s)

    @property
    def _record(self) -> RunRecord:
        return self._journal.record

    def _ending(self, view: RunView, now_s: float) -> Ending | None:
        if view.state is None and self._seen:
            return Ending(RunState.STOPPED, 128 + signal.SIGTERM, message="its objects were deleted")
        self._seen = self._seen or view.state is not None
        if view.state == RunState.FAILED:
            code = view.failed.exit_code if view.failed else None
            return Ending(RunState.FAILED, code or 1, view.failed, view.message)
        if view.state == RunState.SUCCEEDED:
            self._succeeded_s = self._succeeded_s or now_s
            over = all(pod.state in ENDED for pod in view.newest.values())
            if over or now_s - self._succeeded_s > LAST_TASKS_S:
                return Ending(RunState.SUCCEEDED, 0)
        return None

    def _cancels(self) -> bool:
        return asked_to_cancel("the run", self._signals, self._console.say, self._console.pump)
