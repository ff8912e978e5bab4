"""A foreign command below process 1 of a container: it gets the signals that process 1 gets."""

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

FORWARDED = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT),
)


def attend(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command in a child, pass signals on, collect orphans; return its code, 128+n for signal n."""
    inbox = [*FORWARDED, signal.SIGCHLD]
    signal.pthread_sigmask(signal.SIG_BLOCK, inbox)
    child = os.posix_spawnp(command[0], list(command), environment, setsigmask=[], setsigdef=FORWARDED)
    while True:
        number = signal.sigwait(inbox)
        if number != signal.SIGCHLD:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
            continue
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            pid, status = ended
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
