"""Signals: to the launcher, read in its loop, and to process 1 of a container, passed on to its command."""

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
NOTICES = (signal.SIGUSR1, signal.SIGUSR2)
"""Announcements by which schedulers say that a job will end soon: they are for the tasks."""
_CAUGHT = (
    *(*STOP_SIGNALS, *NOTICES, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGPOLL),
    *(signal.SIGPWR, signal.SIGXCPU),
)


def signal_name(number: int, host: str | None = None) -> str:
    """Return a signal's name as a user knows it, and the host at which it arrived, if that is another."""
    name = "SIGINT (Ctrl-C)" if number == signal.SIGINT else signal.Signals(number).name
    return f"{name} at {host}" if host else name


class SignalInbox:
    """The signals that have arrived and were not read yet. One process has one inbox."""

    def __init__(self) -> None:
        self._reading_end, writing_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writing_end, warn_on_full_buffer=False)
        for number in _CAUGHT:
            # `nohup` ignores SIGHUP, and that stays as it is
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda *_: None)

    def fileno(self) -> int:
        return self._reading_end

    def read(self) -> list[int]:
        try:
            numbers = os.read(self._reading_end, 4096)
        except BlockingIOError:
            return []
        return [number for number in numbers if number in _CAUGHT]


FORWARDED = (*STOP_SIGNALS, *NOTICES, signal.SIGCONT)


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
