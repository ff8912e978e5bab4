"""One replica of a call of `fit`, whose gradients lie in memory that all replicas share."""

from dtrain.config import MultiWorkerMirroredSection
from dtrain.config.choices import NanPolicy
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.messages import Sums, Verdict
from dtrain.parameters.finite import any_non_finite
from dtrain.protocol.outcome import Outcome
from dtrain.protocol.part_dealer import NO_PART
from dtrain.runs.reporting import Reporter
from dtrain.strategies.interface import Replica
from dtrain.strategies.multi_worker_mirrored.training import ReplicaTraining
from dtrain.strategies.replicas.reduction import Nest, ReduceOp
from dtrain.types import Array


class ArenaReplica(Replica):
    """This task's; see `Replica`.

    A part of a batch has its own place for a gradient: `gradients` and `updates` are those of the part that
    `next_batch` has named last.
    """

    def __init__(
        self, training: ReplicaTraining, section: MultiWorkerMirroredSection, reporter: Reporter
    ) -> None:
        """Train by `section`."""
        self.rank = training.driver.rank
        self.weights = training.weights
        self.rows: dict[str, SparseRows] = {}
        self.exchanges = training.driver.exchanges
        self._training = training
        self._driver = training.driver
        self._calls = training.calls
        self._reporter = reporter
        self._warns = section.nan_policy == NanPolicy.REFUSE
        plan = training.state.plan
        self._trainable = {spec.name: spec.trainable for spec in plan.variables}
        self._places: dict[int, tuple[dict[str, Array], dict[str, Array]]] = {}
        self._part = NO_PART
        self._point_at(0)
        self._begun_s = reporter.begins()

    def _point_at(self, place: int) -> None:
        self.gradients, self.updates = self._memory_of(place)

    def _memory_of(self, place: int) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the gradients of a part and the new values of untrained variables, by its place."""
        if place not in self._places:
            arrays = self._driver.gradients(place).variables
            trainable = self._trainable
            self._places[place] = (
                {name: array for name, array in arrays.items() if trainable[name]},
                {name: array for name, array in arrays.items() if not trainable[name]},
            )
        return self._places[place]

    def next_batch(self) -> int:
        """See `Replica.next_batch`; NO_PART where others have computed all of a step that is made, or this
        task leads now.
        """
        part = self._driver.next_part()
        if part == NO_PART and not self._training.finished:
            self._training.sit_out()
            self._reporter.progress(self._training.global_step)
        elif part != NO_PART:
            self._part = part
            self._point_at(self._driver.place_of(part))
        return part

    def commit(self, loss: float, examples: int, sums: Sums | None, empty: int = 0) -> Outcome:
        """See `Replica.commit`.

        Raises:
            NonFiniteGradientError: a gradient holds NaN or infinity, and `nan_policy` is ``fail``.
            WaitTimeoutError: a replica that is alive did not do its share in time.
        """
        reporter = self._reporter
        reporter.slow_down(self._begun_s)
        self._calls.finish(self._memory_of)
        part = self._part  # not the driver's next one: others may have died meanwhile
        if examples:
            self._driver.give_rows(part, self.rows)
        finite = not examples or not any_non_finite(self._driver.given(part))
        self.rows.clear()
        outcome = self._training.contribute(part, examples, sums, finite)
        reporter.progress(self._training.global_step, loss if examples else None, examples)
        if self._warns and outcome.verdict is Verdict.REFUSED:
            reporter.refused(f"step {self._training.global_step}: {outcome.reason}")
        if outcome.verdict is Verdict.STALE:
            reporter.status.stale_gradients = (reporter.status.stale_gradients or 0) + 1
        self._begun_s = reporter.begins()
        return outcome

    def all_reduce(self, op: ReduceOp, value: Nest) -> Nest:
        """See `Replica.all_reduce`, and `StepCalls.all_reduce`."""
        return self._calls.all_reduce(self._part % self._training.cut.parts, self._memory_of, op, value)
