"""The leader's work for one call of `fit` without servers."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dtrain import checkpoints
from dtrain.messages import Row
from dtrain.process.clock import SYSTEM
from dtrain.roles.chief.keeper.thread import KeeperThread
from dtrain.state.fit_state import Open
from dtrain.strategies.interface import Leader
from dtrain.strategies.multi_worker_mirrored.orders import Order
from dtrain.strategies.multi_worker_mirrored.training import ReplicaTraining
from dtrain.strategies.problem import ConfigChange, Weights


class ReplicaLeader(Leader):
    """The leader of one call of `fit`; see `Leader`. It is a replica itself."""

    keeps = True

    def __init__(
        self,
        training: ReplicaTraining,
        keeper: KeeperThread,
        folder: Path,
        conclude: Callable[[], None],
    ) -> None:
        """Lead `training` from now on.

        Args:
            training: this task's.
            keeper: writes checkpoints.
            folder: the run's own checkpoints.
            conclude: tells the tasks that are no replicas that the last step is saved.
        """
        self._training = training
        self._book = training.book
        self._keeper = keeper
        self._folder = folder
        self._conclude = conclude
        self._saved = False

    @property
    def optimizer(self) -> dict[str, Any]:
        """See `Leader.optimizer`."""
        return self._training.state.store.optimizer_config

    @property
    def tally(self) -> Open:
        """See `Leader.tally`."""
        return self._training.state.tally.open()

    def control(self, change: ConfigChange) -> None:
        """See `Leader.control`.

        Where no step is under way, what changes is written in place. In the midst of an epoch the others are
        computing: the step that they compute is begun again where it must not see other values, or an end.
        """
        training, book = self._training, self._book
        version = training.global_step
        rests = training.finished or book.is_held(version)
        values = self._new_values(change)
        is_end = change.stop and not training.finished
        end = version if is_end else book.order.end
        writes = values is not None or is_end
        order = Order(
            book.order.number + 1, change.optimizer, change.until, end, version, in_round=writes and not rests
        )
        book.give(order, values, version)
        if writes:
            if rests:
                training.boundary.begin_step()
                try:
                    book.carry_out()
                finally:
                    training.boundary.end_step()
            else:
                training.void()
            book.carried_out()
        training.bells.ring()

    def _new_values(self, change: ConfigChange) -> Weights | None:
        known = self._training.weights
        new = {name: value for name, value in (change.weights or {}).items() if value is not known.get(name)}
        return new or None

    def record(self, epoch: int, rows: Mapping[int, Row]) -> None:
        """See `Leader.record`; training never goes back here, so that all of `rows` stay."""
        self._book.record(rows, self._training.global_step)

    def keep(self, entries: Mapping[str, bytes]) -> None:
        """See `Leader.keep`."""
        self._book.keep(entries)

    def save(self, directory: Path | None = None) -> None:
        """See `Leader.save`."""
        self._keeper.save_now()
        if directory is not None:
            checkpoints.copy_latest(self._folder, directory, SYSTEM.wall())

    def wait(self, step: int) -> None:
        """Return at once: this task is a replica."""

    def conclude(self) -> bool:
        """See `Leader.conclude`."""
        self._saved = self._keeper.finish()
        self._conclude()
        self._book.conclude(self._training.global_step)
        self._training.bells.ring()
        return True

    def close(self, error: BaseException | None) -> None:
        """End it; where it was told to stop early, write a last checkpoint."""
        if not self._saved:
            self._keeper.stop(save=error is None or isinstance(error, SystemExit | KeyboardInterrupt))
