"""The first processes of `dtrain launch`, before its own imports: the life line, and its own fork server.

The fork server imports for half a second, the launcher for a quarter: they do it side by side. This module
therefore imports next to nothing.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

from dtrain.process import WARM_START_VARIABLE, life_line
from dtrain.process.private_variables import SECRET

_ELSEWHERE = frozenset({"--", "--on", "-h", "--help"})
"""Words of a launch that has no fork server here."""


class LifeLine:
    """A pipe whose writing end only this process holds: its end-of-file says that the launcher is gone."""

    def __init__(self) -> None:
        self.reading_end, self._writing_end = os.pipe()


ColdStart: TypeAlias = tuple[subprocess.Popen[bytes], socket.socket]
"""A fork server that still imports, and the socket of its orders."""

_early: list[tuple[LifeLine, ColdStart]] = []


def start(line: LifeLine) -> ColdStart:
    ours, theirs = socket.socketpair()
    fds = (theirs.fileno(), line.reading_end)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dtrain.task", "--fork-server", *map(str, fds)],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is the launcher's business alone
            preexec_fn=partial(life_line.die_with_parent, os.getpid()),  # until it can read its life line
        )
    return process, ours


def start_early(words: Sequence[str]) -> None:
    """Start the fork server that the command line `words` will most likely need; see `take_early`."""
    if words[:1] == ["launch"] and _ELSEWHERE.isdisjoint(words) and not os.environ.get(WARM_START_VARIABLE):
        prepare()
        line = LifeLine()
        _early.append((line, start(line)))


def take_early() -> tuple[LifeLine, ColdStart | None]:
    """Return a life line and the fork server that has been started on it, if there is one."""
    return _early.pop() if _early else (LifeLine(), None)


def end_early() -> None:
    """End the fork server that was started and is not needed."""
    while _early:
        _, (process, orders) = _early.pop()
        process.kill()
        process.wait()
        orders.close()


def prepare() -> None:
    """Make this process one that may start others: no child gets the secret of another run.

    /dev/null is opened for each of stdin, stdout and stderr that the caller has closed. A pipe of the
    launcher would get its number otherwise, and with it the output of the tasks.
    """
    os.environ.pop(SECRET, None)
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
