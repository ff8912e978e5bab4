"""The streams of a command: whatever is printed there is text of others, and plain."""

import codecs
import io
import sys
from typing import TextIO

from dtrain.process.plain_text import plain

CLEAR = "\x1b[H\x1b[2J"


class PlainStream(io.TextIOWrapper):
    """A text stream without control characters; `buffer` takes bytes as they are, `own` dtrain's escapes."""

    own: TextIO

    def write(self, text: str) -> int:
        """Write a text without its control characters."""
        return super().write(plain(text))


def make_plain() -> None:
    """Have `sys.stdout` and `sys.stderr` pass no control characters from now on."""
    for name in ("stdout", "stderr"):
        own = getattr(sys, name)
        if isinstance(own, io.TextIOWrapper) and not isinstance(own, PlainStream):
            stream = PlainStream(
                own.buffer, own.encoding, errors="backslashreplace", line_buffering=own.line_buffering
            )
            stream.own = own
            setattr(sys, name, stream)


def own_stdout() -> TextIO:
    """Return stdout for escape codes of dtrain's own, after what has been printed so far."""
    sys.stdout.flush()
    return getattr(sys.stdout, "own", sys.stdout)


class PlainBytes:
    """The output of a task, which comes in pieces of bytes, for a terminal."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def text(self, piece: bytes) -> bytes:
        """Return a piece plainly; a line that overwrites itself becomes several."""
        text = self._decoder.decode(piece).replace("\r\n", "\n").replace("\r", "\n")
        return plain(text).encode()
