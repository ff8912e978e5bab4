"""A strategy of a test's own: several replicas in this process, each in a thread, that reduce in memory."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from strategies.averaging import AveragingReplica, AveragingStrategy, Contribution

from dtrain.distribute import ReduceOp
from dtrain.errors import TrainingError
from dtrain.messages import Sums, Verdict
from dtrain.protocol.contributions import Outcome
from dtrain.strategies.in_process.thread_replicas import ThreadsTraining
from dtrain.strategies.in_process.training import LocalTraining
from dtrain.strategies.interface import TurnReplica
from dtrain.strategies.replicas.reduction import Nest

WAIT_S = 60.0


class Meeting:
    """The place where all replicas hand in a value and get what all of them have handed in."""

    def __init__(self, replicas: int) -> None:
        self.reason = f"a replica was not there within {WAIT_S:g} s"
        self._values: list[Any] = [None] * replicas
        self.aborted = threading.Event()
        self._barrier = threading.Barrier(replicas, timeout=WAIT_S)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """Return the values of all, by rank."""
        self._values[rank] = value
        try:
            self._barrier.wait()
            values = list(self._values)
            self._barrier.wait()  # the next meeting begins when all have read
        except threading.BrokenBarrierError:
            raise TrainingError(self.reason) from None
        return values

    def abort(self, reason: str) -> None:
        """End every wait with this reason."""
        self.reason = reason
        self.aborted.set()
        self._barrier.abort()


def reduced(op: ReduceOp, values: Sequence[Any]) -> Any:
    """Return the sum or mean of nests, added up by rank."""
    first = values[0]
    if isinstance(first, Mapping):
        return {name: reduced(op, [value[name] for value in values]) for name in first}
    if isinstance(first, list | tuple):
        return [reduced(op, each) for each in zip(*values, strict=True)]
    return sum(values[1:], first) / (len(values) if op is ReduceOp.MEAN else 1)


class MirroredReplica(AveragingReplica):
    """One of several, each in its thread; the last one that commits makes the step."""

    def __init__(
        self, training: LocalTraining, rank: int, held: dict[int, Contribution], meeting: Meeting, lock: Any
    ) -> None:
        super().__init__(training, rank, held)
        self._meeting = meeting
        self._lock = lock

    def commit(self, loss: float, examples: int, sums: Sums | None, empty: int = 0) -> Outcome:
        with self._lock:
            own = super().commit(loss, examples, sums, empty)
        outcomes = self._meeting.exchange(self.rank, own)
        return next(each for each in outcomes if each.verdict is not Verdict.PENDING)

    def all_reduce(self, op: ReduceOp, value: Nest) -> Nest:
        return reduced(op, self._meeting.exchange(self.rank, value))


class MirroringStrategy(AveragingStrategy):
    """Trains with several replicas in one process, in threads."""

    kind = ThreadsTraining

    def make_replicas(self, training: LocalTraining) -> Sequence[TurnReplica]:
        meeting = Meeting(self.context.num_replicas)
        assert isinstance(training, ThreadsTraining)
        training.abort = meeting.abort
        held: dict[int, Contribution] = {}
        lock = threading.Lock()
        ranks = range(self.context.num_replicas)
        return [MirroredReplica(training, rank, held, meeting, lock) for rank in ranks]
