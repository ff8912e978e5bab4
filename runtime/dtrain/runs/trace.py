"""The trace of one task: what happened when, and what it spent its time on; a JSON line each.

Events come from machines, spans from drivers. Without `trace: true` or DTRAIN_TRACE=1 nothing is measured: a
function that would be timed is called as it is. Events also go to `logging.getLogger("dtrain")`, at the level
INFO, for a program that has set up logging.
"""

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import msgspec

from dtrain.formats.bounded_reading import read_regular
from dtrain.runs.events import AnyEvent

VARIABLE = "DTRAIN_TRACE"
BYTES_MAX = 256 << 20
"""A trace that has grown so long ends with a line that says so."""

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("dtrain")


class Header(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="task"):
    """The first line of each attempt.

    Attributes:
        wall_s: seconds since 1970 at `at_s`; relates the clocks of several machines.
    """

    task: str
    attempt: int
    pid: int
    host: str
    at_s: float
    wall_s: float


class Span(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="span"):
    """An activity of a task over a time: input, compute, wait (for `whom`), send or apply."""

    name: str
    at_s: float
    for_s: float
    whom: str | None = None


class Happened(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="event"):
    """An event and its time."""

    at_s: float
    what: AnyEvent


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="ended"):
    """The trace has reached its limit; what happened later is not in it."""

    at_s: float


Line = Header | Span | Happened | Ended


class Trace:
    """Collects the lines of one task in memory until `flush`, from any thread; spans too where it is `on`."""

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.on = path is not None
        self._path = path
        self._clock = clock
        self._lines: list[bytes] = []
        self._written_bytes = 0
        self._writing = threading.Lock()  # the reporter's thread flushes, and so does the task as it ends

    def event(self, event: AnyEvent) -> None:
        if _log.isEnabledFor(logging.INFO):
            _log.info("%s", event)
        if self.on:
            self.write(Happened(at_s=self._clock(), what=event))

    def span(self, name: str, begun_s: float, ended_s: float, whom: str | None = None) -> None:
        if self.on:
            self.write(Span(name=name, at_s=begun_s, for_s=ended_s - begun_s, whom=whom))

    def timed(self, name: str, function: Callable[P, T]) -> Callable[P, T]:
        """Return `function`, whose calls are spans of that name; itself where nothing is traced."""
        if not self.on:
            return function

        @functools.wraps(function)
        def measured(*args: P.args, **kwargs: P.kwargs) -> T:
            begun_s = self._clock()
            try:
                return function(*args, **kwargs)
            finally:
                self.span(name, begun_s, self._clock())

        return measured

    def flush(self) -> None:
        """Append what has come since the last call. A full disk must not stop training."""
        with self._writing:
            if self._path is not None and self._lines:
                self._append(self._path)

    def _append(self, path: Path) -> None:
        count = len(self._lines)
        data = b"".join(self._lines[:count])
        del self._lines[:count]
        with contextlib.suppress(OSError):
            if self._written_bytes == 0:
                path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(data)
        self._written_bytes += len(data)
        if self._written_bytes >= BYTES_MAX and self.on:
            self.write(Ended(at_s=self._clock()))
            self.on = False

    def write(self, line: Line) -> None:
        """Keep a line; where none is written, a simulation prints it."""
        if self.on:
            self._lines.append(msgspec.json.encode(line) + b"\n")


NO_TRACE = Trace(None)
"""The trace of what is not a task of a run."""


def read_trace(path: Path) -> list[Line]:
    """Read the lines of a trace; the last one may be cut off where its task was killed, and is left out."""
    decoder = msgspec.json.Decoder(Line)
    lines: list[Line] = []
    for text in read_regular(path, 2 * BYTES_MAX).splitlines():
        with contextlib.suppress(msgspec.DecodeError):
            lines.append(decoder.decode(text))
    return lines
