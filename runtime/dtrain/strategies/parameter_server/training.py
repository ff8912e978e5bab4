"""One call of `fit` on parameter servers in one of its tasks: its replica, and the leader's work.

A replica's gradients go to every server, which answer with the next values.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from dtrain import checkpoints
from dtrain.checkpoints import OptimizerState
from dtrain.config import ServerSection
from dtrain.config.choices import NanPolicy
from dtrain.errors import DtrainError, InputError
from dtrain.messages import Row, Sums, Verdict
from dtrain.parameters.placement import Plan
from dtrain.parameters.replica_memory import ReplicaMemory, RowRoutes, cut
from dtrain.process.clock import SYSTEM, Clock
from dtrain.protocol.contributions import Outcome
from dtrain.roles.chief.driver import Keeper
from dtrain.roles.chief.order_driver import OrderDriver
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.roles.worker.driver import ReplicaDriver
from dtrain.runs.events import ConfigChanged
from dtrain.runs.reporting import Reporter
from dtrain.state.batch_cut import BatchCut
from dtrain.state.fit_state import Open
from dtrain.state.rounds import Rounds
from dtrain.strategies.context import TaskContext
from dtrain.strategies.interface import (
    Compute,
    FitOrder,
    Stepped,
    TurnReplica,
    TurnTraining,
    Weights,
)
from dtrain.types import Array
from dtrain.wire.connecting import ConnectTask


class LocalTrainingParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that local steps add to one call of `fit`; see `local_steps`.

    Attributes:
        rounds: which batches make which round.
        wrap: makes the servers' optimizer, with the program's in it, of the latter.
        rule: the servers' optimizer as this call of `fit` has begun.
        state: the moments with which this task's replica goes on; None: without.
        make_replica: makes this task's replica, which contributes from the memory that it is given.
    """

    rounds: Rounds
    wrap: Callable[[dict[str, Any]], dict[str, Any]]
    rule: dict[str, Any]
    state: OptimizerState | None
    make_replica: Callable[["ServerTraining", ReplicaMemory], "ServerReplica"]


class TrainingParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of one call of `fit`.

    Attributes:
        number: of the call of `fit`.
        link: the task's lease.
        keeper: the leader's; None in other tasks.
        host: the server that hosts the control plane.
        connect_s: how long a server may take to be there at first.
        patience_s: how long one may be away later.
        sequence: the number of the last push of this process.
        on_close: called when training ends.
        local: in local steps; None: replicas push gradients.
    """

    number: int
    plan: Plan
    context: TaskContext
    section: ServerSection
    link: HeartbeatLink
    keeper: Keeper | None
    host: int
    connect: ConnectTask
    connect_s: float
    patience_s: float
    reporter: Reporter
    sequence: int
    steps_per_epoch: int
    checkpoint_folder: Path | None
    on_close: Callable[["ServerTraining"], None]
    local: LocalTrainingParts | None = None
    clock: Clock = SYSTEM


class ServerReplica(TurnReplica):
    """The replica of one task."""

    _step_s = 0.0
    """How long each step of a round has taken."""

    def __init__(self, training: "ServerTraining", gradients: ReplicaMemory) -> None:
        """Contribute from `gradients`; the driver of `training` has the first values, and refreshes them."""
        parts, driver = training.parts, training.driver
        self.rank = parts.context.rank
        self.weights = training.weights
        dense = [spec for spec in gradients.plan.variables if not spec.sparse]
        arrays = gradients.variables
        self.gradients = {spec.name: arrays[spec.name] for spec in dense if spec.trainable}
        self.updates = {spec.name: arrays[spec.name] for spec in dense if not spec.trainable}
        self.rows = driver.row_gradients
        self._training = training
        self._driver = driver
        self._machine = driver.machine
        self._reporter = parts.reporter
        self._warns = parts.section.nan_policy == NanPolicy.REFUSE
        self._staleness: Counter[int] | None = None if driver.machine.sync else Counter()
        for name, update in self.updates.items():
            update[...] = self.weights[name]
        self._begun_s = self._reporter.begins()
        self._steps = 1

    @property
    def state(self) -> OptimizerState | None:
        """The state of the program's optimizer, where the replica has it."""
        return None

    def close(self) -> None:
        """Keep what the replica alone has, as training ends here."""
        return

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
            outcome = self._driver.push(examples, empty, sums, self._steps, self._step_s)
            self._training.keep_changes()
        except DtrainError as error:
            raise self._training.reason_of(error) from None
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
    """One generation of variables, in a task that does not lead."""

    replicas: Sequence[ServerReplica] = ()
    leads = False

    def __init__(self, parts: TrainingParts, driver: ReplicaDriver) -> None:
        """Put the parts together; `begin` gets the first values."""
        self.parts = parts
        self.driver = driver
        self._machine = driver.machine
        self._reporter = parts.reporter
        parts.link.on_failure = self.abort

    def begin(self, gradients: ReplicaMemory) -> None:
        """Get the first values; a replica contributes from `gradients`."""
        driver, machine, reporter = self.driver, self._machine, self._reporter
        reporter.status.stale_gradients = 0
        driver.start()
        self._learn_what_is_in_force()
        self.weights = driver.weights
        self.first_step = machine.first_step
        reporter.status.max_steps = machine.max_steps
        reporter.progress(machine.global_step)
        reporter.running()
        reporter.bytes_moved = lambda: driver.bytes_moved
        if self.parts.context.rank >= 0:
            local = self.parts.local
            make = ServerReplica if local is None else local.make_replica
            self.replicas = [make(self, gradients)]

    def _learn_what_is_in_force(self) -> None:
        return

    @property
    def inner_state(self) -> OptimizerState | None:
        """In local steps, the state of the program's optimizer in this task's replica."""
        return next((replica.state for replica in self.replicas), None)

    @property
    def global_step(self) -> int:
        return self._machine.global_step

    @property
    def finished(self) -> bool:
        return self._machine.finished

    @property
    def cut(self) -> BatchCut:  # type: ignore[override]
        return self._machine.cut

    @property
    def repairs(self) -> bool:  # type: ignore[override]
        return self._machine.turn.repairs

    @property
    def tally(self) -> Open:
        return self._machine.tally

    @property
    def recorded(self) -> Mapping[int, Row]:
        return self._machine.rows

    # Failures

    def abort(self, reason: str) -> None:
        """End all waits for servers, from another thread."""
        self.driver.abort(reason)

    def reason_of(self, error: DtrainError) -> DtrainError:
        """Return why the heartbeat or the keeper has given up, which explains a broken connection; else the
        error itself.
        """
        keeper = self.parts.keeper
        return self.parts.link.failure or (keeper and keeper.failure) or error

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise the reason of whatever fails within it."""
        try:
            yield
        except DtrainError as error:
            raise self.reason_of(error) from None

    def heard_term(self, term: int) -> None:
        """From another thread: this is the term at ps:0; waits for a process that is gone begin anew."""
        self.driver.heard_term(term)

    def keep_changes(self) -> None:
        """Repeat the order in force, where the servers have begun another term and wait for it."""

    def close(self, error: BaseException | None = None) -> None:
        for replica in self.replicas:
            replica.close()
        reporter = self._reporter
        reporter.progress(self.global_step)  # others may have made the last steps
        reporter.current()  # with the bytes of the connections, which are closed next
        reporter.bytes_moved = None
        self.parts.on_close(self)
        self._stop(error)
        if error is None:
            reporter.fit_ends()

    def _stop(self, error: BaseException | None) -> None:
        return


class LeaderTraining(ServerTraining):
    """One generation of variables, in the task that leads."""

    leads = True

    def __init__(self, parts: TrainingParts, driver: ReplicaDriver) -> None:
        assert parts.keeper is not None, "a leader keeps what is trained"
        self._keeper = parts.keeper
        self._saved = False
        self._orders = OrderDriver(
            parts.plan.servers,
            parts.number,
            parts.link.incarnation,
            parts.connect,
            parts.patience_s,
            parts.clock,
            host=parts.host,
        )
        super().__init__(parts, driver)
        self._keeper.on_failure = self.abort
        self._keeper.own_step = lambda: (driver.machine.term, driver.machine.global_step)

    def abort(self, reason: str) -> None:
        super().abort(reason)
        self._orders.abort(reason)

    def _learn_what_is_in_force(self) -> None:
        """Learn it from the servers, which wait for the first order."""
        found = self._orders.poll()
        if self._orders.torn:
            self._keeper.give_back()
            self.driver.start()
            found = self._orders.poll()
        if self._orders.term != self._machine.term:  # the servers have gone back since the driver started
            self.driver.start()
        if found.stopped:
            self._keeper.ordered(None, end=found.version)
        self._optimizer = found.optimizer
        self._orders.ask_for_rows()

    @property
    def optimizer(self) -> dict[str, Any]:
        inner: dict[str, Any] = self._optimizer["config"].get("inner")
        return self._optimizer if self.parts.local is None else inner

    @property
    def recorded(self) -> Mapping[int, Row]:
        """The numbers of every epoch that is recorded, as ps:0 has them."""
        return self._orders.rows

    def step(self, compute: Compute) -> Stepped:
        """Let the replica compute; where there is none, wait for the end of an epoch."""
        if self.replicas or self.finished:
            return super().step(compute)
        length = max(1, self.parts.steps_per_epoch)
        step = self.global_step - self.first_step
        with self.explained():
            self.driver.wait_for(self.first_step + step + length - step % length)
            self.keep_changes()
        self._reporter.progress(self.global_step)
        return Stepped.NOTHING

    def _conclude(self) -> bool:
        with self.explained():
            self._saved = self._keeper.finish()
            if not self._saved:
                self.driver.start()
                self.keep_changes()
        return self._saved

    def keep_changes(self) -> None:
        while self._orders.repeat_in(self._machine.term) and self._machine.held and not self.finished:
            self.driver.start()

    def order(self, order: FitOrder) -> None:
        with self.explained():
            if order.rows is not None and not self._orders.record(
                self._orders.term, order.open_from, order.rows
            ):
                self.driver.start()
                self.keep_changes()
            if order.optimizer is not None:
                self._change(order, order.optimizer)

    def _change(self, order: FitOrder, optimizer: dict[str, Any]) -> None:
        weights = order.weights or {}
        new = {name: value for name, value in weights.items() if value is not self.weights[name]}
        local = self.parts.local
        version, stops = self._orders.give(
            optimizer if local is None else local.wrap(optimizer),
            term=self._orders.term,
            reached=self.global_step,
            stop=order.stop,
            until=order.until,
            values=[] if order.weights is None else self._blocks(new),
            saved=self._keeper.saved_step,
        )
        self._reporter.trace.event(ConfigChanged(step=version, stops=stops))
        self._keeper.ordered(order.until, end=version if stops else None)
        for name in new.keys() - self.driver.tables.keys():
            self.weights[name][...] = new[name]
        waits = stops or self._machine.held or self._orders.waits
        if waits and not self.finished:
            self.driver.start()
            self.keep_changes()

    def _blocks(self, new: Weights) -> list[list[Array]]:
        """Return each server's new values; those of tables that are not new stay at the servers."""
        plan = self.parts.plan
        dense = cut(plan, {**self.weights, **new})
        return [blocks + rows for blocks, rows in zip(dense, RowRoutes(plan).whole(new), strict=True)]

    def save(self, directory: Path | None = None) -> None:
        """Save; a folder of its own gets a copy of the run's own checkpoint of now."""
        with self.explained():
            self._keeper.save_now()
        if directory is not None and self.parts.checkpoint_folder is not None:
            checkpoints.copy_latest(self.parts.checkpoint_folder, directory, time.time())

    def heard_term(self, term: int) -> None:
        super().heard_term(term)
        self._orders.heard_term(term)

    def _stop(self, error: BaseException | None) -> None:
        """End it; where it was ordered to stop early, write a last checkpoint."""
        self._orders.close()
        if not self._saved:
            self._keeper.stop(save=error is None or isinstance(error, SystemExit | KeyboardInterrupt))
