"""The start of a fork server before the launcher's own imports, and the life line of its run.

The fork server imports for half a second, and the launcher for a quarter. They do it at the same time, so
this module imports next to nothing.
"""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

from dtrain.process import WARM_START_VARIABLE, life_line
from dtrain.process.private_variables import SECRET

_ELSEWHERE = frozenset({"--", "--on", "--queue", "-h", "--help"})
"""Words of a launch that has no fork server here, or has to wait for its turn first."""


class LifeLine:
    """A pipe whose writing end only this process holds: its end-of-file says that the launcher is gone."""

    def __init__(self) -> None:
        self.reading_end, self._writing_end = os.pipe()


ColdStart: TypeAlias = tuple[subprocess.Popen[bytes], socket.socket]
"""A fork server that still imports, and the socket of its orders."""

_early: list[tuple[LifeLine, ColdStart]] = []


def start(line: LifeLine, bare: bool = False) -> ColdStart:
    """Start a fork server; a `bare` one does not import what programs need."""
    ours, theirs = socket.socketpair()
    fds = (theirs.fileno(), line.reading_end)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "dtrain.task", "--fork-server", *map(str, fds), *["--bare"] * bare],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal is the launcher's business alone
            preexec_fn=partial(life_line.die_with_parent, os.getpid()),  # until it can read its life line
        )
    return process, ours


def start_early(words: Sequence[str]) -> None:
    """Start the fork server that the command line `words` will most likely need; see `take_early`.

    If the system refuses, nothing is said: the launch tries again, and reports it.
    """
    here = sys.platform == "linux" and not os.environ.get(WARM_START_VARIABLE)
    if here and words[:1] == ["launch"] and _ELSEWHERE.isdisjoint(words):
        with contextlib.suppress(OSError):
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
    """Remove the secret of another run from the environment, and open the standard files that are closed.

    They become /dev/null. Otherwise a pipe of the launcher would get the number of stdout or stderr, and with
    it the output of the tasks.
    """
    os.environ.pop(SECRET, None)
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
