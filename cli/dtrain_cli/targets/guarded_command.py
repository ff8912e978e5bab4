"""The launcher's side of one guardian process (`dtrain_cli.targets.guardian`)."""

import os
import signal
import subprocess
import sys

from dtrain.process import private_variables, start_protocol
from dtrain.process.start_protocol import Exited, Refused, Report
from dtrain_cli.plan.run_plan import TaskLaunch
from dtrain_cli.targets.fork_server import LifeLine


class GuardedCommand:
    """One command that runs under a guardian; `ended` once the end of the command has been reported."""

    def __init__(self, launch: TaskLaunch, line: LifeLine) -> None:
        self.ended = False
        self._task = str(launch.task)
        self._attempt = launch.attempt
        self._reading_end, writing_end = os.pipe()
        self._lines = start_protocol.Lines(start_protocol.REPORTS.decode)
        fds: tuple[int, ...] = (line.reading_end, writing_end)
        names = (*map(str, fds), str(launch.task), str(launch.attempt))
        environment = {**os.environ, **launch.environment}
        private = private_variables.handed_over(launch.private) if launch.private else None
        if private is not None:
            environment[private_variables.DESCRIPTOR] = str(private)
            fds = (*fds, private)
        with open(launch.log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dtrain_cli.targets.guardian", *names, *launch.command],
                env=environment,
                cwd=launch.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=fds,
                start_new_session=True,
            )
        os.close(writing_end)
        if private is not None:
            os.close(private)

    def fileno(self) -> int:
        """Return the file descriptor that a selector watches."""
        return self._reading_end

    def reports(self) -> list[Report]:
        """Return the reports that have arrived; to be called when `fileno()` can be read."""
        data = os.read(self._reading_end, 1 << 16)
        reports = self._lines.feed(data)
        if not data:  # it was killed: its command died with it, and this process has adopted what that left
            reports.append(Exited(self._task, self._attempt, -signal.SIGKILL, 0))
        self.ended = any(isinstance(report, Exited | Refused) for report in reports)
        return reports

    def close(self) -> None:
        """Read no more reports."""
        os.close(self._reading_end)
