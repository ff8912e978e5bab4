"""The streams of a command: plain text, written without ever waiting for its reader.

A pipe that is not emptied, a terminal stopped with Ctrl-S: what cannot be written stays pending. Only
pieces that the kernel takes at once are written (a pipe that is writable takes 4096 bytes). The descriptor
is not made non-blocking: it is shared with the shell. A closed reader is silence.
"""

import codecs
import contextlib
import errno
import io
import json
import os
import select
import stat
import sys
from typing import Any, TextIO

from dtrain.formats.remote_files import masked
from dtrain.process.plain_text import plain

PIECE_BYTES = 4096
PENDING_BYTES_MAX = 1 << 18


class Outlet:
    """One output file descriptor; once `closed`, everything is dropped.

    `trouble` says why nothing can be written, where the reader has not simply closed: a full disk.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.closed = False
        self.trouble: str | None = None
        self._pending = bytearray()
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    @property
    def is_terminal(self) -> bool:
        return os.isatty(self.fd)

    @property
    def is_pipe(self) -> bool:
        """Whether another program reads this; it may show it on this terminal (`| less`, `| tee`)."""
        mode = os.fstat(self.fd).st_mode
        return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)

    @property
    def clogged(self) -> bool:
        """Whether the reader is too slow; producers then wait, or leave something out."""
        return len(self._pending) > PENDING_BYTES_MAX

    @property
    def idle(self) -> bool:
        return not self._pending

    def write(self, text: str) -> None:
        self.write_bytes(text.encode(errors="replace"))

    def write_bytes(self, data: bytes) -> None:
        if not self.closed:
            self._pending += data
            self.flush()

    def flush(self) -> None:
        while self._pending and not self.closed:
            ready = self._poll.poll(0)
            if not ready:
                return
            try:
                written = os.write(self.fd, self._pending[:PIECE_BYTES])
            except OSError as error:  # the log files have it all
                self.trouble = None if error.errno == errno.EPIPE else error.strerror
                self.closed = True
                self._pending.clear()
                return
            del self._pending[:written]


def say(text: str) -> None:
    """Print a line, plainly and without the secrets of URLs; a reader that has gone is no error."""
    with contextlib.suppress(OSError):
        print(plain(f"dtrain: {masked(text)}"), file=sys.stderr, flush=True)  # noqa: T201


def print_json(value: Any, indent: int | None = None) -> None:
    """Print the answer of a command with --json to stdout: one JSON value, on one line without `indent`."""
    print(json.dumps(value, indent=indent), flush=True)  # noqa: T201 - a full disk is an error here


def answer(value: Any, text: str, as_json: bool) -> None:
    """Print what a command has found out: as JSON, or as a text for people."""
    print_json(value) if as_json else print(text, flush=True)  # noqa: T201


CLEAR = "\x1b[H\x1b[2J"


class PlainStream(io.TextIOWrapper):
    """A text stream without control characters; `buffer` takes bytes as they are, `own` dtrain's escapes."""

    own: TextIO

    def write(self, text: str) -> int:
        return super().write(plain(text))


def make_plain() -> None:
    for name in ("stdout", "stderr"):
        own = getattr(sys, name)
        if isinstance(own, io.TextIOWrapper) and not isinstance(own, PlainStream):
            stream = PlainStream(
                own.buffer, own.encoding, errors="backslashreplace", line_buffering=own.line_buffering
            )
            stream.own = own
            setattr(sys, name, stream)


def own_stdout() -> TextIO:
    sys.stdout.flush()
    return getattr(sys.stdout, "own", sys.stdout)


class PlainBytes:
    """The output of a task, which comes in pieces of bytes, for a terminal."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def text(self, piece: bytes) -> bytes:
        text = self._decoder.decode(piece).replace("\r\n", "\n").replace("\r", "\n")
        return plain(text).encode()
