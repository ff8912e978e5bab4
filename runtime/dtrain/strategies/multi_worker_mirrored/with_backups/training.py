"""One task's part in a call of `fit` in which no step waits for every replica."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from dtrain.roles.collective.backup_driver import BackupDriver
from dtrain.strategies.multi_worker_mirrored.leader import ReplicaLeader
from dtrain.strategies.multi_worker_mirrored.orders import Order
from dtrain.strategies.multi_worker_mirrored.training import ReplicaTraining
from dtrain.strategies.problem import ConfigChange

T = TypeVar("T")


class BackupTraining(ReplicaTraining):
    """See `ReplicaTraining`. The leader may be late like any other: it orders while nobody makes a step."""

    @property
    def backups(self) -> BackupDriver:
        """The driver."""
        assert isinstance(self.driver, BackupDriver), "a training with backups has such a driver"
        return self.driver

    def _round(self, make: Callable[[], T]) -> T:
        self.boundary.begin_step()
        try:
            result = make()
        finally:
            self.boundary.end_step()
        self._lead_if_due()
        return result

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Let nobody make a step, in no thread of this process either."""
        self.boundary.begin_step()
        try:
            with self.backups.at_rest():
                yield
        finally:
            self.boundary.end_step()

    @property
    def _awaited_leader(self) -> int:
        """See `ReplicaTraining`: the one before may have died, and the next one may be stopped."""
        return self.backups.leadership.awaited

    def _lead_if_due(self) -> None:
        due = self.leader is None and not self.book.concluded and self.backups.leadership.is_due
        if due and self.backups.leadership.take():
            self.book.lead(self.driver.rank, self.global_step)
            self.leader = self._lead(self)


class BackupLeader(ReplicaLeader):
    """The leader of a call of `fit` with backups."""

    def control(self, change: ConfigChange) -> None:
        """See `Leader.control`.

        What others compute as values are assigned counts for nothing, and is computed again.
        """
        training, book = self._training, self._book
        assert isinstance(training, BackupTraining), "it leads such a training"
        with training.at_rest():
            version = training.global_step
            values = self._new_values(change)
            is_end = change.stop and not training.finished
            end = version if is_end else book.order.end
            book.give(
                Order(book.order.number + 1, change.optimizer, change.until, end, version), values, version
            )
            if is_end:
                book.carry_out()
        if values is not None:
            book.carried_out()
        training.bells.ring()
