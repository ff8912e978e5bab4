"""Replicas in threads of this process: each has a strategy and a model of its own."""

import threading
from collections.abc import Callable, Sequence
from typing import Any


def run_replicas(
    strategies: Sequence[Any],
    build: Callable[[], Any],
    body: Callable[[Any], Any],
    *,
    end_s: float,
    on_error: Callable[[str], None] = lambda reason: None,
    at_end: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Build the model of every strategy, in the order of ranks, and run the body on each at once; returns the
    bodies' results.

    The first error of any replica is raised.

    Args:
        end_s: by then all have come to their end.
        on_error: told at once why a replica has failed.
        at_end: called when the threads have ended, or should have.
    """
    models = []
    for strategy in strategies:
        with strategy.scope():
            models.append(build())
    results: list[Any] = [None] * len(models)
    errors: list[BaseException] = []

    def replica(rank: int) -> None:
        error = None
        try:
            results[rank] = body(models[rank])
        except BaseException as caught:
            error = caught
            errors.append(caught)
            on_error(f"replica {rank}: {type(caught).__name__}: {caught}")
        finally:
            strategies[rank].close(error)

    threads = [threading.Thread(target=replica, args=[rank], daemon=True) for rank in range(len(models))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(end_s)
    alive = [thread for thread in threads if thread.is_alive()]
    at_end()
    if errors:
        raise errors[0]
    assert not alive, f"{len(alive)} of {len(threads)} replicas have not come to their end"
    return results
