"""One call of `fit` on parameter servers in one of its tasks: its replica, and the leader's work.

A replica's gradients go to every server, which answer with the next values.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dtrain import checkpoints
from dtrain.config import ServerSection
from dtrain.config.choices import NanPolicy
from dtrain.errors import DtrainError, InputError
from dtrain.messages import Row, Sums, Verdict
from dtrain.parameters.placement import Plan
from dtrain.parameters.replica_memory import ReplicaMemory, RowRoutes, cut
from dtrain.protocol.contributions import Outcome
from dtrain.roles.chief.driver import Keeper
from dtrain.roles.chief.order_driver import OrderDriver
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.roles.worker.driver import ReplicaDriver
from dtrain.runs.events import ConfigChanged
from dtrain.runs.reporting import Reporter
from dtrain.state.batch_cut import BatchCut
from dtrain.state.fit_state import Open
from dtrain.strategies.interface import (
    Compute,
    FitOrder,
    Stepped,
    TurnReplica,
    TurnTraining,
    Weights,
)
from dtrain.types import Array


class Failures:
    """The failures that heartbeat and keeper know, which explain a broken connection."""

    def __init__(self, link: HeartbeatLink, keeper: Keeper | None) -> None:
        self._link = link
        self._keeper = keeper

    def reason_of(self, error: DtrainError) -> DtrainError:
        """Return why the keeper or the heartbeat has given up, or the error itself."""
        return self._link.failure or (self._keeper and self._keeper.failure) or error

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise the reason of whatever fails within it."""
        try:
            yield
        except DtrainError as error:
            raise self.reason_of(error) from None


class ServerLeader:
    """The leader of one generation.

    Attributes:
        optimizer: the rule that was in force when this task came.
    """

    def __init__(
        self,
        plan: Plan,
        weights: dict[str, Array],
        driver: ReplicaDriver,
        orders: OrderDriver,
        keeper: Keeper,
        failures: Failures,
        reporter: Reporter,
        checkpoint_folder: Path,
    ) -> None:
        """Learn what is in force from the servers, which wait for the first change.

        `driver` has started, and refreshes `weights`, every variable by name.
        """
        self._plan = plan
        self._weights = weights
        self._driver = driver
        self._machine = driver.machine
        self._orders = orders
        self._keeper = keeper
        self._failures = failures
        self._reporter = reporter
        self._folder = checkpoint_folder
        self._saved = False
        self.optimizer = self._rule_in_force()
        orders.ask_for_rows()

    @property
    def recorded(self) -> Mapping[int, Row]:
        """The numbers of every epoch that is recorded, as ps:0 has them."""
        return self._orders.rows

    def _rule_in_force(self) -> dict[str, Any]:
        found = self._orders.poll()
        if self._orders.torn:
            self._keeper.give_back()
            self._driver.start()
            found = self._orders.poll()
        if self._orders.term != self._machine.term:  # the servers have gone back since the driver started
            self._driver.start()
        if found.stopped:
            self._keeper.ordered(None, end=found.version)
        return found.optimizer

    def conclude(self) -> bool:
        """Return whether the last step is saved; if not, training has gone back to a checkpoint."""
        with self._failures.explained():
            self._saved = self._keeper.finish()
            if not self._saved:
                self._driver.start()
                self.keep_changes()
        return self._saved

    def keep_changes(self) -> None:
        """Repeat the change in force, where the servers have begun another term and wait for it."""
        while (
            self._orders.repeat_in(self._machine.term) and self._machine.held and not self._machine.finished
        ):
            self._driver.start()

    def wait(self, step: int) -> None:
        """Wait until this step is made everywhere, or training has ended; the weights are then the newest."""
        with self._failures.explained():
            self._driver.wait_for(step)
            self.keep_changes()
        self._reporter.progress(self._machine.global_step)

    def order(self, order: FitOrder) -> None:
        if order.rows is not None:
            self._record(order.open_from, order.rows)
        if order.optimizer is not None:
            self._control(order, order.optimizer)

    def _record(self, epoch: int, rows: Mapping[int, Row]) -> None:
        with self._failures.explained():
            if not self._orders.record(self._orders.term, epoch, rows):
                self._driver.start()
                self.keep_changes()

    def _control(self, change: FitOrder, optimizer: dict[str, Any]) -> None:
        weights = change.weights or {}
        new = {name: value for name, value in weights.items() if value is not self._weights[name]}
        values = [] if change.weights is None else self._blocks(new)
        with self._failures.explained():
            version, stops = self._orders.give(
                optimizer,
                term=self._orders.term,
                reached=self._machine.global_step,
                stop=change.stop,
                until=change.until,
                values=values,
                saved=self._keeper.saved_step,
            )
            self._reporter.trace.event(ConfigChanged(step=version, stops=stops))
            self._keeper.ordered(change.until, end=version if stops else None)
            for name in new.keys() - self._driver.tables.keys():
                self._weights[name][...] = new[name]
            waits = stops or self._machine.held or self._orders.waits
            if waits and not self._machine.finished:
                self._driver.start()
                self.keep_changes()

    def _blocks(self, new: Weights) -> list[list[Array]]:
        """Return each server's new values; those of tables that are not new stay at the servers."""
        dense = cut(self._plan, {**self._weights, **new})
        return [blocks + rows for blocks, rows in zip(dense, RowRoutes(self._plan).whole(new), strict=True)]

    def save(self, directory: Path | None = None) -> None:
        """Save; a folder of its own gets a copy of the run's own checkpoint of now."""
        with self._failures.explained():
            self._keeper.save_now()
        if directory is not None:
            checkpoints.copy_latest(self._folder, directory, time.time())

    def heard_term(self, term: int) -> None:
        self._orders.heard_term(term)

    def close(self, error: BaseException | None) -> None:
        """End it; where it was ordered to stop early, write a last checkpoint."""
        self._orders.close()
        if not self._saved:
            self._keeper.stop(save=error is None or isinstance(error, SystemExit | KeyboardInterrupt))


class ServerReplica(TurnReplica):
    """The replica of one task."""

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
        """Use a driver that has the first values, sends from `gradients`, and refreshes `weights`."""
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
        self._staleness: Counter[int] | None = None if driver.machine.sync else Counter()
        for name, update in self.updates.items():
            update[...] = self.weights[name]
        self._begun_s = reporter.begins()

    def next_batch(self) -> int:
        return self._machine.turn.part

    def commit(self, loss: float, examples: int, sums: Sums | None, empty: int = 0) -> Outcome:
        """Send the gradient.

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
        """Count what became of gradients, in the status."""
        status = self._reporter.status
        if outcome.stale:
            status.stale_gradients = (status.stale_gradients or 0) + outcome.stale
        if self._staleness is not None and outcome.verdict is Verdict.ACCEPTED:
            self._staleness[outcome.staleness] += 1
            status.staleness_counts = self._staleness
        if self._warns and outcome.verdict is Verdict.REFUSED:
            step = self._machine.global_step
            self._reporter.refused(f"step {step}: {outcome.reason}")


class ServerTraining(TurnTraining):
    """One generation of variables."""

    replicas: Sequence[ServerReplica]
    leads = False

    def __init__(
        self,
        driver: ReplicaDriver,
        weights: dict[str, Array],
        replicas: Sequence[ServerReplica],
        leader: ServerLeader | None,
        reporter: Reporter,
        *,
        cut: BatchCut,
        steps_per_epoch: int,
        on_close: Callable[["ServerTraining"], None],
    ) -> None:
        self.driver = driver
        self.weights = weights
        self.replicas = replicas
        self.leads = leader is not None
        self.first_step = driver.machine.first_step
        self.cut = cut
        self._machine = driver.machine
        self._steps_per_epoch = max(1, steps_per_epoch)
        self._leader = leader
        self._reporter = reporter
        self._on_close = on_close

    @property
    def global_step(self) -> int:
        return self._machine.global_step

    @property
    def finished(self) -> bool:
        return self._machine.finished

    @property
    def repairs(self) -> bool:
        return self._machine.turn.repairs

    @property
    def tally(self) -> Open:
        return self._machine.tally

    def step(self, compute: Compute) -> Stepped:
        """Let the replica compute; in a leader that has none, wait for the end of an epoch."""
        if self.replicas or self.finished or self._leader is None:
            return super().step(compute)
        step = self.global_step - self.first_step
        self._leader.wait(self.first_step + step + self._steps_per_epoch - step % self._steps_per_epoch)
        return Stepped.NOTHING

    def _conclude(self) -> bool:
        return self._leader is None or self._leader.conclude()

    @property
    def optimizer(self) -> dict[str, Any]:
        return self._as_leader.optimizer

    def order(self, order: FitOrder) -> None:
        self._as_leader.order(order)

    def save(self, directory: Path | None = None) -> None:
        self._as_leader.save(directory)

    @property
    def _as_leader(self) -> ServerLeader:
        assert self._leader is not None, "this task leads"
        return self._leader

    @property
    def recorded(self) -> Mapping[int, Row]:
        return self.driver.machine.rows if self._leader is None else self._leader.recorded

    def heard_term(self, term: int) -> None:
        """From another thread: this is the term at ps:0; waits for a process that is gone begin anew."""
        self.driver.heard_term(term)
        if self._leader is not None:
            self._leader.heard_term(term)

    def close(self, error: BaseException | None = None) -> None:
        """End it; a leader that ends early, because it was ordered to stop, writes a last checkpoint."""
        reporter = self._reporter
        reporter.progress(self.global_step)  # others may have made the last steps
        reporter.current()  # with the bytes of the connections, which are closed next
        reporter.bytes_moved = None
        self._on_close(self)
        if self._leader is not None:
            self._leader.close(error)
        if error is None:
            reporter.fit_ends()
