"""The leader's work for one call of `fit` on parameter servers: changes, checkpoints, waits."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtrain import checkpoints
from dtrain.messages import Row
from dtrain.parameters.placement import Plan
from dtrain.parameters.replica_memory import cut
from dtrain.parameters.row_routes import RowRoutes
from dtrain.roles.chief.keeper.driver import Keeper
from dtrain.roles.chief.order_driver import OrderDriver
from dtrain.roles.worker.driver import ReplicaDriver
from dtrain.runs.events import ConfigChanged
from dtrain.runs.reporting import Reporter
from dtrain.state.fit_state import Open
from dtrain.strategies.interface import Leader
from dtrain.strategies.parameter_server.failures import Failures
from dtrain.strategies.problem import ConfigChange, Weights
from dtrain.types import Array


class ServerLeader(Leader):
    """The leader of one generation; see `Leader`."""

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

        Args:
            plan: where variables lie.
            weights: every variable by name, as `driver` refreshes them.
            driver: has started.
            orders: carries changes to the servers.
            keeper: saves.
            failures: why something fails.
            reporter: told of steps.
            checkpoint_folder: the run's own.
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
        self._optimizer = self._rule_in_force()
        orders.ask_for_rows()

    @property
    def optimizer(self) -> dict[str, Any]:
        """See `Leader.optimizer`."""
        return self._optimizer

    @property
    def tally(self) -> Open:
        """See `Leader.tally`."""
        return self._machine.tally

    @property
    def recorded(self) -> Mapping[int, Row]:
        """The numbers of every epoch that is recorded, as ps:0 has them."""
        return self._orders.rows

    def _rule_in_force(self) -> dict[str, Any]:
        found = self._orders.look()
        if self._orders.torn:
            self._keeper.give_back()
            self._driver.start()
            found = self._orders.look()
        if self._orders.term != self._machine.term:  # the servers have gone back since the driver started
            self._driver.start()
        if found.stopped:
            self._keeper.ordered(None, end=found.version)
        return found.optimizer

    def conclude(self) -> bool:
        """See `Leader.conclude`."""
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
        """See `Leader.wait`."""
        with self._failures.explained():
            self._driver.wait_for(step)
            self.keep_changes()
        self._reporter.progress(self._machine.global_step)

    def control(self, change: ConfigChange) -> None:
        """See `Leader.control`."""
        weights = change.weights or {}
        new = {name: value for name, value in weights.items() if value is not self._weights[name]}
        values = [] if change.weights is None else self._blocks(new)
        with self._failures.explained():
            version, stops = self._orders.give(
                change.optimizer,
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
        """Return each server's values where these are new; those of tables that are not stay at the
        servers.
        """
        dense = cut(self._plan, {**self._weights, **new})
        return [blocks + rows for blocks, rows in zip(dense, RowRoutes(self._plan).whole(new), strict=True)]

    def save(self, directory: Path | None = None) -> None:
        """See `Leader.save`; a folder of its own gets a copy of the run's own checkpoint of now."""
        with self._failures.explained():
            self._keeper.save_now()
        if directory is not None:
            checkpoints.copy_latest(self._folder, directory, time.time())

    def record(self, epoch: int, rows: Mapping[int, Row]) -> None:
        """See `Leader.record`."""
        with self._failures.explained():
            if not self._orders.record(self._orders.term, epoch, rows):
                self._driver.start()
                self.keep_changes()

    def heard_term(self, term: int) -> None:
        """See `ServerTraining.heard_term`."""
        self._orders.heard_term(term)

    def close(self, error: BaseException | None) -> None:
        """End it; where it was ordered to stop early, write a last checkpoint."""
        self._orders.close()
        if not self._saved:
            self._keeper.stop(save=error is None or isinstance(error, SystemExit | KeyboardInterrupt))
