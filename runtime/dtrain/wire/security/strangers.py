"""The lines in a server's own log about peers that it has turned away: a few, however many come."""

import sys
import threading
import time

from dtrain.process.plain_text import plain_line

PAUSE_S = 10.0
REASON_CHARACTERS = 300
"""Without a secret a reason quotes what the peer says of itself."""


class Strangers:
    """Counts refused connections, and prints one line about them each `PAUSE_S` at most. Threads share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._silent_until_s = 0.0
        self._unsaid = 0

    def note(self, peer: str, reason: str) -> None:
        """Note that a peer was turned away, and why."""
        now_s = time.monotonic()
        with self._lock:
            if now_s < self._silent_until_s:
                self._unsaid += 1
                return
            more, self._unsaid = self._unsaid, 0
            self._silent_until_s = now_s + PAUSE_S
        others = f" ({more} more since the last such line)" if more else ""
        line = plain_line(f"dtrain: refused a connection from {peer}: {reason[:REASON_CHARACTERS]}{others}")
        print(line, file=sys.stderr, flush=True)  # noqa: T201
