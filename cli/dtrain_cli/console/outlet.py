"""Writing to stdout and stderr without ever waiting for their reader.

A pipe that is not emptied, a terminal stopped with Ctrl-S: what cannot be written stays pending. Only pieces
that the kernel takes at once are written (a pipe that is writable takes 4096 bytes). The descriptor is not
made non-blocking: it is shared with the shell. A closed reader is silence.
"""

import errno
import os
import select
import stat

PIECE_BYTES = 4096
PENDING_BYTES_MAX = 1 << 18


class Outlet:
    """One output file descriptor.

    Attributes:
        closed: the reader is gone; everything is swallowed from then on.
        trouble: why nothing can be written, where that is not the reader's will: a full disk behind a
            redirection.
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
        """Return whether this is a terminal."""
        return os.isatty(self.fd)

    @property
    def is_pipe(self) -> bool:
        """Return whether another program reads this; it may show it on this terminal (`| less`, `| tee`)."""
        mode = os.fstat(self.fd).st_mode
        return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)

    @property
    def clogged(self) -> bool:
        """Return whether the reader is too slow. Producers then wait, or leave something out."""
        return len(self._pending) > PENDING_BYTES_MAX

    @property
    def idle(self) -> bool:
        """Return whether everything has been written."""
        return not self._pending

    def write(self, text: str) -> None:
        """Take `text` and write what can be written now."""
        self.write_bytes(text.encode(errors="replace"))

    def write_bytes(self, data: bytes) -> None:
        """Write bytes as they are."""
        if not self.closed:
            self._pending += data
            self.flush()

    def flush(self) -> None:
        """Write as much as the kernel takes without waiting."""
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
