"""Calls that wait for something far away, made at once by threads that no exit of the program waits for."""

import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
CALLS_MAX = 16
"""Calls of this process that are under way at once."""

_free = threading.BoundedSemaphore(CALLS_MAX)


def _renew() -> None:
    global _free
    _free = threading.BoundedSemaphore(CALLS_MAX)


os.register_at_fork(after_in_child=_renew)  # its threads, and what they hold, stay in the parent


def at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Return the results of calls in their order; raise the first error, after which no call begins."""
    if len(calls) == 1:
        with _free:
            return [calls[0]()]
    found: dict[int, T] = {}
    errors: list[BaseException] = []
    waiting = enumerate(calls)  # of a sequence: several threads may take from it

    def run() -> None:
        try:
            for number, call in waiting:
                with _free:
                    found[number] = call()
                if errors:
                    return
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=run, name=f"dtrain-read-{number}", daemon=True)
        for number in range(min(CALLS_MAX, len(calls)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [found[number] for number in range(len(calls))]
