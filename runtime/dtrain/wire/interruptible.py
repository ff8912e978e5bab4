"""Waits that a signal interrupts: of all transports, and for gRPC's own code in a thread of its own.

SIGTERM's SystemExit rises in the main thread. In the midst of gRPC's code it would leave a lock locked, for
which another thread then waits for ever, or a shutdown half made, over which gRPC's own thread then stumbles.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar, cast

LOOK_S = 0.5
"""How long Python may be away from its signal handlers: a signal that comes just before a wait for ever would
be heard when the wait ends.
"""

Item = TypeVar("Item")


def next_of(answers: "queue.SimpleQueue[Item]", deadline: float | None = None) -> Item:
    """Return the next item that another thread puts there; raise `queue.Empty` after a monotonic deadline."""
    while True:
        try:
            if deadline is None:
                return answers.get(timeout=LOOK_S)
            return answers.get(timeout=max(0.0, min(LOOK_S, deadline - time.monotonic())))
        except queue.Empty:
            if deadline is not None and time.monotonic() >= deadline:
                raise


Result = TypeVar("Result")


def in_own_thread(call: Callable[[], Result], name: str) -> Result:
    """Return the result of a call, or raise its exception; the wait may be interrupted, the call goes on."""
    results: queue.SimpleQueue[tuple[Result | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((call(), None))
        except BaseException as error:  # it belongs to the thread that waits
            results.put((None, error))

    threading.Thread(target=run, name=name, daemon=True).start()
    result, error = next_of(results)
    if error is not None:
        raise error
    return cast(Result, result)
