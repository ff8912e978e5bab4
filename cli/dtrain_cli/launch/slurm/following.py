"""Following a job: its output here as it comes, how it stands, and the question on Ctrl-C."""

import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

from dtrain.errors import RunError
from dtrain_cli.console.streams import Outlet
from dtrain_cli.launch.engines import asked_to_cancel
from dtrain_cli.launch.slurm.job_progress import JobProgress
from dtrain_cli.targets.signal_inbox import STOP_SIGNALS, SignalInbox
from dtrain_cli.targets.slurm import commands

_TICK_S = 0.3
_ASK_EVERY_S = (1.0, 5.0)
"""Between two questions to Slurm: in the first minute, and later."""
_SOON_S = 60.0
_PIECE_BYTES = 1 << 18
_LAST_S = 10.0
"""The longest wait for the rest of the output of a job that is over: other machines write it."""


class GrowingFile:
    """A file to which a job appends, copied to a descriptor of this process."""

    def __init__(self, path: Path, outlet: Outlet) -> None:
        self.path = path
        self._outlet = outlet
        self._told = 0

    def copy(self) -> bool:
        """Copy what is new; return whether there was something, or something still waits for its reader."""
        self._outlet.flush()
        if self._outlet.clogged:
            return True
        try:
            with open(self.path, "rb") as file:
                file.seek(self._told)
                data = file.read(_PIECE_BYTES)
        except OSError:  # not there yet, or not visible from here
            return False
        self._told += len(data)
        self._outlet.write_bytes(data)
        return bool(data) or not self._outlet.idle


class Follower:
    """A command that waits for a job."""

    def __init__(self, job: str, out: Path, err: Path, say: Callable[[str], None]) -> None:
        """Follow a job.

        Args:
            job: its number.
            out: the file for its stdout; likewise `err`.
            err: the file for its stderr.
            say: prints a line of this command's own.
        """
        self._job = job
        self._files = [GrowingFile(out, Outlet(1)), GrowingFile(err, Outlet(2))]
        self._say = say
        self._progress = JobProgress(job)
        self._signals = SignalInbox()
        self._cancelled = False

    def follow(self) -> int:
        """Wait for the end of the job; return its exit code, or that of the signal which has ended the wait.

        The job is left or cancelled then: Ctrl-C gives 130 either way, unless the run has succeeded before it
        could be cancelled.
        """
        begun_s = asked_s = time.monotonic()
        self._look()
        while self._progress.exit_code is None:
            select.select([self._signals], [], [], 0 if self._copy() else _TICK_S)
            for number in self._signals.read():
                if number in STOP_SIGNALS and self._stops(number):
                    return 128 + number
            now_s = time.monotonic()
            if now_s - asked_s >= _ASK_EVERY_S[now_s - begun_s > _SOON_S]:
                asked_s = now_s
                self._look()
        self._copy_rest()
        return (
            128 + signal.SIGINT if self._cancelled and self._progress.exit_code else self._progress.exit_code
        )

    def _look(self) -> None:
        try:
            report = commands.show(self._job)
        except RunError:  # a controller that is down for a while; the job goes on
            return
        if (news := self._progress.look(report)) is not None:
            self._say(news)

    def _stops(self, number: int) -> bool:
        """Ask what becomes of the job; return whether this command ends, and the job goes on."""
        if number == signal.SIGINT and asked_to_cancel(
            f"job {self._job}", self._signals, self._say, lambda: None
        ):
            self._say(f"cancelling job {self._job}: its run saves its last step and stops")
            commands.cancel(self._job)
            self._cancelled = True
            return False
        self._say(f"job {self._job} goes on; its output is in {self._files[1].path}")
        self._say(f"cancel it with `scancel {self._job}`, look at it with `dtrain status`")
        return True

    def _copy(self) -> bool:
        copied = [file.copy() for file in self._files]  # each of them, not up to the first that has news
        return any(copied)

    def _copy_rest(self) -> None:
        deadline_s = time.monotonic() + _LAST_S
        while self._copy() and time.monotonic() < deadline_s:
            pass
        for file in self._files:
            if not file.path.exists():
                self._say(f"{file.path} cannot be seen from here; it is on the first node of the job")
