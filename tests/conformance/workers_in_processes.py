"""Several workers of a strategy in processes of one host, which exchange arrays as the shipped strategy does."""

import os
import pickle
import traceback

from conformance.workers_in_threads import OfThreads

from dtrain.roles.collective.calls import CallMemory, Calls
from dtrain.roles.collective.rules import Waits
from dtrain.strategies.replicas.calls import PeerProcesses
from dtrain.strategies.replicas.loops import Loops
from dtrain.wire.one_host.synchronization import NotifySockets, pairs

PATIENCE_S = 30


class OfProcesses(OfThreads):
    """One worker of several."""

    def __init__(self, peers):
        super().__init__()
        self._peers = peers

    @property
    def num_replicas_in_sync(self):
        return self._peers.tasks

    def _make_loops(self):
        return Loops(self, 1, self._peers.number, self._peers)


def on_processes(count, program):
    """Run `program(strategy)` in each of `count` processes; return what they return, which can be pickled."""
    memory, ends = CallMemory.make(count), pairs(range(count))
    children = []
    for rank in range(count):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(pickle.dumps(_of_one(program, memory, ends, rank)))
            os._exit(0)
        os.close(writing)
        children.append((child, reading))
    for each in (socket for sockets in ends.values() for socket in sockets.values()):
        each.close()
    found = []
    for child, reading in children:
        with os.fdopen(reading, "rb") as pipe:
            found.append(pickle.loads(pipe.read()))  # of this process's own children
        os.waitpid(child, 0)
    for each in found:
        assert not isinstance(each, str), each
    return found


def _of_one(program, memory, ends, rank):
    """What one process returns; a text if it fails."""
    try:
        for other, sockets in ends.items():
            for each in sockets.values() if other != rank else ():
                each.close()
        ranks = list(ends)
        calls = Calls(memory, NotifySockets(ends[rank]), rank, Waits(patience_s=PATIENCE_S))
        return program(OfProcesses(PeerProcesses(len(ranks), rank, lambda: calls)))
    except BaseException:
        return traceback.format_exc()
