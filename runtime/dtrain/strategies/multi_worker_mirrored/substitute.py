"""A part of a step that a replica computes beside another one, because both meet within the step."""

import threading
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue

from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.messages import Sums, Verdict
from dtrain.process.clock import LOOK_S
from dtrain.protocol.outcome import Outcome
from dtrain.roles.collective.call_log import GivenCall
from dtrain.strategies.interface import Compute, Replica
from dtrain.strategies.multi_worker_mirrored.summed import Summed
from dtrain.strategies.replicas.reduction import Nest, ReduceOp
from dtrain.types import Array

ACCEPTED = Outcome(Verdict.ACCEPTED)


class Substitute(Replica):
    """Computes one part in a thread of its own, up to its next call; the program's thread answers the calls.

    Attributes:
        calls: how many it has made.
        examples, sums: of the part, when it has ended.
        ended: whether it has, and that was noted.
    """

    exchanges = True

    def __init__(
        self,
        rank: int,
        number: int,
        weights: Mapping[str, Array],
        places: tuple[dict[str, Array], dict[str, Array]],
        compute: Compute,
    ) -> None:
        """Begin; the data are read in this thread.

        Args:
            rank: of the replica that computes.
            number: of the part.
            weights: see `Replica`.
            places: of gradients and of new values of untrained variables.
            compute: returns what computes a part.
        """
        self.rank = rank
        self.weights = weights
        self.gradients, self.updates = places
        self.rows: dict[str, SparseRows] = {}
        self.calls = self.examples = 0
        self.sums: Sums | None = None
        self.ended = False
        self._number = number
        self._asked: GivenCall | None = None
        self._told: SimpleQueue[GivenCall | BaseException | None] = SimpleQueue()
        self._answers: SimpleQueue[Sequence[Sequence[Array]] | BaseException] = SimpleQueue()
        work = compute(self, number)
        self._thread = threading.Thread(target=self._run, args=(work,), name=f"part {number}")
        self._thread.start()

    # In its thread

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._told.put(error)
        else:
            self._told.put(None)

    def next_batch(self) -> int:
        """Return the part."""
        return self._number

    def commit(self, loss: float, examples: int, sums: Sums | None, empty: int = 0) -> Outcome:
        """Keep what is to be said of the part; the program's thread contributes it."""
        self.examples, self.sums = examples, sums
        return ACCEPTED

    def all_reduce(self, op: ReduceOp, value: Nest) -> Nest:
        """See `Replica.all_reduce`."""
        summed = Summed.of(op, value)
        self._told.put(summed.call)
        answer = self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return summed.result(answer)

    # In the program's thread

    def asked(self) -> GivenCall | None:
        """Return the call that it waits in, once it has computed so far; None: its part is complete.

        Raises:
            BaseException: that of the part.
        """
        while self._asked is None:
            try:
                told = self._told.get(timeout=LOOK_S)  # in pieces: signals are handled between them
            except Empty:
                continue
            if isinstance(told, BaseException):
                raise told
            if told is None:
                self._thread.join()
                return None
            self.calls += 1
            self._asked = told
        return self._asked

    def answer(self, given: Sequence[Sequence[Array]] | BaseException) -> None:
        """Let it go on with what all parts have given to the call; or let it fail."""
        self._asked = None
        self._answers.put(given)

    def abandon(self, error: BaseException) -> None:
        """End it: what it computes counts for nothing."""
        while self._thread.is_alive():
            self._answers.put(error)
            self._thread.join(LOOK_S)
