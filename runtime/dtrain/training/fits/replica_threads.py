"""One thread a replica: all compute their parts of a step at the same time."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

from dtrain.process.clock import LOOK_S


class ReplicaThreads:
    """The threads of the replicas of one training."""

    def __init__(self, replicas: int, abort: Callable[[str], None]) -> None:
        """Begin; `abort` ends the waits of replicas for one that has failed, for a reason."""
        self._pool = ThreadPoolExecutor(replicas, thread_name_prefix="replica")
        self._abort = abort

    def run(self, parts: Sequence[Callable[[], None]]) -> None:
        """Run every part in a thread; return when all have ended.

        Raises:
            BaseException: the error of the part that failed first, or what interrupts this thread; when it
                is raised no part runs any more.
        """
        futures: list[Future[None]] = []
        try:
            for part in parts:
                futures.append(self._pool.submit(part))
            while not _ended(futures):
                pass
        except BaseException as error:
            self._abort(f"another replica has failed: {type(error).__name__}: {error}")
            self._pool.shutdown()
            raise

    def close(self) -> None:
        """End the threads, which have nothing to do any more."""
        self._pool.shutdown()


def _ended(futures: Sequence[Future[None]]) -> bool:
    """Return whether all have ended, after `LOOK_S` at the latest: a signal that came just before a wait
    without end would be handled only at its end.

    Raises:
        BaseException: the error of one that has failed.
    """
    done, others = wait(futures, LOOK_S, FIRST_EXCEPTION)
    for future in futures:
        if future in done:
            future.result()
    return not others
