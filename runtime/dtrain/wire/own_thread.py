"""gRPC's own code in a thread of its own.

SIGTERM's SystemExit rises in the main thread. In the midst of gRPC's code it would leave a lock locked, for
which another thread then waits for ever, or a shutdown half made, over which gRPC's own thread then stumbles.
"""

import queue
import threading
from collections.abc import Callable
from typing import TypeVar, cast

from dtrain.wire.answers import next_of

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
