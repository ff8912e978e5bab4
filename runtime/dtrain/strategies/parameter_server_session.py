"""One call of `fit` on parameter servers, seen from one of the tasks that take part."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtrain import checkpoints
from dtrain.errors import DtrainError
from dtrain.learning.graphs.passes import OnGradients
from dtrain.messages import Row, Verdict
from dtrain.parameters.compression import Compression
from dtrain.parameters.packing import CompressedPacking, Packing
from dtrain.parameters.placement import Plan
from dtrain.parameters.replica_memory import ReplicaMemory, cut
from dtrain.parameters.row_routes import RowRoutes
from dtrain.protocol.batch_cut import BatchCut
from dtrain.protocol.staleness import StalenessHistogram
from dtrain.protocol.tally import Open
from dtrain.roles.chief.keeper import Keeper
from dtrain.roles.chief.order_driver import OrderDriver
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.roles.worker.driver import ReplicaDriver
from dtrain.roles.worker.machine import Outcome, Phase, Replica
from dtrain.strategies.interface import Array, Contribution, Orders, StepResult, Weights
from dtrain.wire.connecting import arrays_to_send

if TYPE_CHECKING:
    from dtrain.strategies.parameter_server import ParameterServerStrategy


class ParameterServerSession:
    """One generation of variables, seen from one replica; see `Session`."""

    def __init__(
        self,
        strategy: "ParameterServerStrategy",
        generation: int,
        plan: Plan,
        link: HeartbeatLink,
        keeper: Keeper | None,
    ) -> None:
        training = strategy.training
        self._strategy = strategy
        self._reporter = strategy.reporter
        self._training = training
        self._link = link
        self._keeper = keeper
        self._saved = False
        self._plan = plan
        room = partial(arrays_to_send, training.transport if strategy.trains else "grpc")
        compression = Compression.of(training.compression)
        weights, gradients = ReplicaMemory(plan), ReplicaMemory(plan, None if compression else room)
        arrays, variables = gradients.variables, [spec for spec in plan.variables if not spec.sparse]
        self.gradients: dict[str, Array] = {
            spec.name: arrays[spec.name] for spec in variables if spec.trainable
        }
        self.updates: dict[str, Array] = {
            spec.name: arrays[spec.name] for spec in variables if not spec.trainable
        }
        self.rank = strategy.rank
        self.weighs_examples = training.weighting == "examples"
        self._staleness = StalenessHistogram()
        machine = Replica(
            plan.servers,
            generation,
            link.incarnation,
            plan.hash,
            training.updates == "sync",
            strategy.trains,
            saves=keeper is not None,
            nan_policy=training.nan_policy,
            first_judges=training.updates == "async" and training.max_staleness is not None,
            sequence=strategy.pushes_sent,
        )
        self._driver = ReplicaDriver(
            machine,
            weights,
            gradients,
            strategy.connect,
            strategy.reporter,
            connect_s=strategy.connect_s,
            patience_s=strategy.patience_s,
            packing=CompressedPacking(compression, weights, gradients, room)
            if compression
            else Packing(weights, gradients),
        )
        self.weights: dict[str, Array] = weights.variables
        self.arriving: Weights = self._driver.arriving
        self._driver.arriving.fetch_again = self._fetch_again
        self.complete: OnGradients | None = self._driver.complete if self._driver.sends_ahead else None
        self.row_gradients = self._driver.row_gradients
        link.on_failure = self._abort
        self._orders = OrderDriver(
            plan.servers, generation, link.incarnation, strategy.connect, strategy.patience_s
        )
        if keeper is not None:
            keeper.on_failure = self._abort
            keeper.own_step = lambda: (machine.term, machine.global_step)
        self._reporter.status.stale_gradients = 0
        self._driver.start()
        self.cut = BatchCut(
            machine.parts, training.updates == "sync" and training.has_backups(strategy.num_replicas)
        )
        self.optimizer: dict[str, Any] = self._rule_in_force() if keeper is not None else {}
        if keeper is not None:
            self._orders.ask_for_rows()
        self.arrive()
        for name, update in self.updates.items():
            update[...] = self.weights[name]
        self._report_beginning(machine.max_steps)
        self.entered_step = self.global_step if keeper is None else keeper.first_version
        self._reporter.bytes_moved = lambda: self._driver.bytes_moved
        self._begun_s = self._reporter.begins()

    def _report_beginning(self, max_steps: int) -> None:
        self._reporter.status.max_steps = max_steps
        self._reporter.progress(self.global_step)
        self._reporter.running()

    @property
    def global_step(self) -> int:
        """As ps:0 counts."""
        return self._driver.machine.global_step

    @property
    def first_step(self) -> int:
        """Where the `fit` before this one ended."""
        return self._driver.machine.first_step

    @property
    def part(self) -> int:
        """See `Session.part`."""
        return self._driver.machine.part

    @property
    def repairs(self) -> bool:
        """See `Session.repairs`."""
        return self._driver.machine.repairs

    @property
    def tally(self) -> Open:
        """See `Session.tally`."""
        return self._driver.machine.tally

    @property
    def rows(self) -> Mapping[int, Row]:
        """See `Session.rows`."""
        return self._driver.machine.rows if self._keeper is None else self._orders.rows

    @property
    def finished(self) -> bool:
        """Whether the last step is done."""
        return self._driver.machine.phase is Phase.FINISHED

    def _rule_in_force(self) -> dict[str, Any]:
        """Leader: what the servers hold, who wait for its first order."""
        found = self._orders.look()
        if self._orders.torn and self._keeper is not None:
            self._keeper.give_back()
            self._driver.start()
            found = self._orders.look()
        if found.stopped and self._keeper is not None:
            self._keeper.ordered(None, end=found.version)
        return found.optimizer

    def _abort(self, reason: str) -> None:
        self._driver.abort(reason)
        self._orders.abort(reason)

    def _explained(self, error: DtrainError) -> DtrainError:
        """Return why the keeper or a heartbeat has given up, which says more than the connection that
        broke.
        """
        return self._link.failure or (self._keeper and self._keeper.failure) or error

    @contextmanager
    def _failures_explained(self) -> Iterator[None]:
        try:
            yield
        except DtrainError as error:
            raise self._explained(error) from None

    def arrive(self) -> None:
        """See `Session.arrive`."""
        self._driver.arrive()

    def _fetch_again(self, server: int) -> None:
        with self._failures_explained():
            self._driver.fetch_again(server)

    def conclude(self) -> bool:
        """See `Session.conclude`."""
        if self._keeper is None:
            return True
        with self._failures_explained():
            self._saved = self._keeper.finish()
            if not self._saved:
                self._driver.start()
                self._keep_orders()
        return self._saved

    def _keep_orders(self) -> None:
        """Leader: where the servers have begun another term, they wait for the order in force."""
        machine = self._driver.machine
        while self._orders.repeat_in(machine.term) and machine.held and not self.finished:
            self._driver.start()

    def wait(self, step: int) -> None:
        """See `Session.wait`."""
        with self._failures_explained():
            self._driver.wait_for(step)
            self._keep_orders()
        self._reporter.progress(self.global_step)

    def control(self, orders: Orders) -> None:
        """See `Session.control`."""
        new = {
            name: value for name, value in (orders.weights or {}).items() if value is not self.weights[name]
        }
        self.arrive()
        values = [] if orders.weights is None else self._blocks(new)
        with self._failures_explained():
            machine, reached = self._driver.machine, self.global_step
            version, stops = self._orders.give(
                orders.optimizer,
                term=self._orders.term,
                reached=reached,
                stop=orders.stop,
                until=orders.until,
                values=values,
            )
            if self._keeper is not None:
                self._keeper.ordered(orders.until, end=version if stops else None)
            for name in new.keys() - self._driver.tables.keys():
                self.weights[name][...] = new[name]
            if (stops or machine.held or self._orders.waits) and not self.finished:
                self._driver.start()
                self._keep_orders()

    def _blocks(self, new: Weights) -> list[list[Array]]:
        """Each server's values where these are new; those of tables that are not stay at the servers."""
        dense = cut(self._plan, {**self.weights, **new})
        return [blocks + rows for blocks, rows in zip(dense, RowRoutes(self._plan).whole(new), strict=True)]

    def checkpoint(self) -> None:
        """See `Session.checkpoint`."""
        if self._keeper is not None:
            with self._failures_explained():
                self._keeper.save_now()

    def save(self, directory: Path) -> None:
        """See `Session.save`: a copy of the run's own checkpoint of now."""
        if self._keeper is not None:
            self._keeper.save_now()
            checkpoints.copy_latest(self._strategy.checkpoint_folder, directory, time.time())

    def record(self, epoch: int, rows: Mapping[int, Row]) -> None:
        """See `Session.record`."""
        with self._failures_explained():
            if not self._orders.record(self._orders.term, epoch, rows):
                self._driver.start()
                self._keep_orders()

    def step(self, contribution: Contribution) -> StepResult:
        """See `Session.step`.

        Raises:
            PeerLostError: a server is gone for good.
            TrainingError: the rules of the spec end training.
        """
        return self._step(
            lambda: self._driver.push(contribution.examples, contribution.empty, contribution.sums),
            contribution,
        )

    def pass_over(self, empty: int) -> StepResult:
        """See `Session.pass_over`."""
        return self._step(lambda: self._driver.push_nothing(empty), None)

    def _step(self, push: Callable[[], Outcome], contribution: Contribution | None) -> StepResult:
        self._reporter.slow_down(self._begun_s)
        try:
            self._driver.arrive()
            if self._driver.is_void():
                self._keep_orders()
                return StepResult(Verdict.VOID, self.global_step)
            outcome = push()
            self._keep_orders()
        except DtrainError as error:
            raise self._explained(error) from None
        verdict, step = outcome.verdict, self.global_step
        if contribution is None:
            self._reporter.progress(step)
        else:
            self._reporter.progress(step, contribution.loss, contribution.examples)
        status = self._reporter.status
        status.stale_gradients = (status.stale_gradients or 0) + outcome.stale
        if verdict is Verdict.ACCEPTED and self._training.updates == "async":
            self._staleness.add(outcome.staleness)
            status.staleness_mean, status.staleness_counts = self._staleness.mean, self._staleness.counts
        if verdict is Verdict.REFUSED and self._training.nan_policy == "refuse":
            self._reporter.warn(f"step {step}: {outcome.reason}; it was not applied")
        self._begun_s = self._reporter.begins()
        return StepResult(verdict, step)

    def close(self, error: BaseException | None = None) -> None:
        """See `Session.close`; a leader that ends early, because it was ordered to stop, writes a last
        checkpoint.
        """
        self._strategy.let_read(self._driver)
        self._orders.close()
        if self._keeper is not None and not self._keeper.generation.alone:
            self._strategy.recorded[self._keeper.generation.number] = self.rows
        self._reporter.progress(self.global_step)  # others may have made the last steps
        self._reporter.current()
        self._reporter.bytes_moved = None
        self._strategy.pushes_sent = self._driver.machine.sequence
        self._link.on_failure = lambda reason: None
        if self._keeper is not None and not self._saved:
            self._keeper.stop(save=error is None or isinstance(error, SystemExit | KeyboardInterrupt))
        if error is None:
            self._reporter.fit_ends()
