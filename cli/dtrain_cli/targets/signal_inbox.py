"""The signals to the launcher, read in its loop instead of interrupting it."""

import os
import signal

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
NOTICES = (signal.SIGUSR1, signal.SIGUSR2)
"""Announcements by which schedulers say that a job will end soon: they are for the tasks."""
_CAUGHT = (
    *(*STOP_SIGNALS, *NOTICES, signal.SIGCONT, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF),
    *(signal.SIGPOLL, signal.SIGPWR, signal.SIGXCPU),
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
        """Return the file descriptor that a selector watches."""
        return self._reading_end

    def read(self) -> list[int]:
        """Return the numbers of the signals that have arrived, in order."""
        try:
            numbers = os.read(self._reading_end, 4096)
        except BlockingIOError:
            return []
        return [number for number in numbers if number in _CAUGHT]
