"""The one wait of all transports. It wakes now and then, so that a signal is heard."""

import queue
import time
from typing import TypeVar

LOOK_S = 0.5
"""How long Python may be away from its signal handlers: a signal that comes just before a wait for ever would
be heard when the wait ends.
"""

Item = TypeVar("Item")


def next_of(answers: "queue.SimpleQueue[Item]", deadline: float | None = None) -> Item:
    """Return the next item that another thread puts there.

    Raises:
        queue.Empty: none has come by the deadline, in seconds of `time.monotonic`.
    """
    while True:
        try:
            if deadline is None:
                return answers.get(timeout=LOOK_S)
            return answers.get(timeout=max(0.0, min(LOOK_S, deadline - time.monotonic())))
        except queue.Empty:
            if deadline is not None and time.monotonic() >= deadline:
                raise
