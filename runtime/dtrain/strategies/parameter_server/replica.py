"""One replica of a call of `fit` on parameter servers: its gradients go to every server, which answer with
the next values.
"""

from dtrain.config import ServerSection
from dtrain.config.choices import NanPolicy
from dtrain.errors import DtrainError, InputError
from dtrain.messages import Sums, Verdict
from dtrain.parameters.replica_memory import ReplicaMemory
from dtrain.protocol.outcome import Outcome
from dtrain.protocol.staleness import StalenessHistogram
from dtrain.roles.worker.driver import ReplicaDriver
from dtrain.runs.reporting import Reporter
from dtrain.strategies.interface import Replica
from dtrain.strategies.parameter_server.failures import Failures
from dtrain.strategies.parameter_server.leader import ServerLeader
from dtrain.types import Array


class ServerReplica(Replica):
    """The replica of one task; see `Replica`."""

    def __init__(
        self,
        rank: int,
        driver: ReplicaDriver,
        gradients: ReplicaMemory,
        weights: dict[str, Array],
        section: ServerSection,
        reporter: Reporter,
        failures: Failures,
        leader: ServerLeader | None,
    ) -> None:
        """Take over a driver that has started and whose values are there.

        Args:
            rank: of the replica.
            driver: exchanges gradients for values.
            gradients: the memory that `driver` sends from.
            weights: every variable by name, as `driver` refreshes them.
            section: the rules.
            reporter: told of steps.
            failures: why something fails.
            leader: of this task, if it leads.
        """
        self.rank = rank
        self.weights = weights
        dense = [spec for spec in gradients.plan.variables if not spec.sparse]
        arrays = gradients.variables
        self.gradients = {spec.name: arrays[spec.name] for spec in dense if spec.trainable}
        self.updates = {spec.name: arrays[spec.name] for spec in dense if not spec.trainable}
        self.rows = driver.row_gradients
        self._driver = driver
        self._machine = driver.machine
        self._reporter = reporter
        self._failures = failures
        self._leader = leader
        self._warns = section.nan_policy == NanPolicy.REFUSE
        self._staleness = None if driver.machine.sync else StalenessHistogram()
        for name, update in self.updates.items():
            update[...] = self.weights[name]
        self._begun_s = reporter.begins()

    def next_batch(self) -> int:
        """See `Replica.next_batch`."""
        return self._machine.turn.part

    def commit(self, loss: float, examples: int, sums: Sums | None, empty: int = 0) -> Outcome:
        """See `Replica.commit`.

        Raises:
            InputError: a batch without examples, in asynchronous training.
            PeerLostError: a server is gone for good.
            TrainingError: the rules of the spec end training.
        """
        if not examples and not self._machine.sync:
            raise InputError(
                "data: expected at least one example, found an empty batch: each batch is a step with "
                "updates: async; give every pipeline some examples, or train with updates: sync"
            )
        reporter = self._reporter
        reporter.slow_down(self._begun_s)
        try:
            outcome = self._driver.push(examples, empty, sums)
            if self._leader is not None:
                self._leader.keep_changes()
        except DtrainError as error:
            raise self._failures.reason_of(error) from None
        reporter.progress(self._machine.global_step, loss if examples else None, examples)
        if outcome.stale or self._staleness is not None or outcome.verdict is Verdict.REFUSED:
            self._account_for(outcome)
        self._begun_s = reporter.begins()
        return outcome

    def _account_for(self, outcome: Outcome) -> None:
        """Say in the status what became of gradients."""
        status = self._reporter.status
        if outcome.stale:
            status.stale_gradients = (status.stale_gradients or 0) + outcome.stale
        if self._staleness is not None and outcome.verdict is Verdict.ACCEPTED:
            self._staleness.add(outcome.staleness)
            status.staleness_mean = self._staleness.mean
            status.staleness_counts = self._staleness.counts
        if self._warns and outcome.verdict is Verdict.REFUSED:
            step = self._machine.global_step
            self._reporter.refused(f"step {step}: {outcome.reason}")
