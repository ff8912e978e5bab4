"""Several workers of a strategy in threads of one process, which exchange arrays in its memory."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dtrain.exchange.calls import check_calls
from dtrain.strategies.replicas.contexts import CrossReplica, entered
from dtrain.strategies.replicas.loops import Loops
from dtrain.strategies.single import SingleStrategy

DEADLINE_S = 60


class _Meeting:
    """The place where all workers meet for a call."""

    def __init__(self, tasks):
        self.given = [None] * tasks
        self.barrier = threading.Barrier(tasks)

    def exchange(self, number, call, arrays):
        self.given[number] = call, [np.array(array) for array in arrays]
        self.barrier.wait(DEADLINE_S)
        given = list(self.given)
        self.barrier.wait(DEADLINE_S)
        check_calls({rank: call for rank, (call, _) in enumerate(given)})
        return [arrays for _, arrays in given]


class PeersInThreads:
    """The other workers, for one of them."""

    def __init__(self, meeting, number):
        self._meeting = meeting
        self.tasks, self.number = len(meeting.given), number

    def exchange(self, call, arrays):
        return self._meeting.exchange(self.number, call, arrays)

    def all_reduce(self, call, arrays):
        return [sum(parts[1:], parts[0]) for parts in zip(*self.exchange(call, arrays), strict=True)]


class OfThreads(SingleStrategy):
    """One worker of several, or one with several replicas, each in a thread."""

    def __init__(self, replicas=1, meeting=None, number=0):
        super().__init__()
        self._replicas, self._meeting, self._number = replicas, meeting, number

    @property
    def num_replicas_in_sync(self):
        return self._replicas * (len(self._meeting.given) if self._meeting else 1)

    def _make_loops(self):
        peers = PeersInThreads(self._meeting, self._number) if self._meeting else None
        return Loops(self, self._replicas, self._number * self._replicas, peers)


def scope_in_thread(strategy):
    """The strategy's scope, of the calling thread alone; that of `Strategy.scope` is the whole process's."""
    return entered(CrossReplica(strategy))


def on_workers(count, program):
    """Run `program(strategy)` in each of `count` workers with one replica each; return what they return."""
    meeting = _Meeting(count)

    def run(number):
        try:
            return program(OfThreads(1, meeting, number))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))
