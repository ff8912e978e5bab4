"""The leader's account of epochs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dtrain.callbacks import History
from dtrain.messages import Row
from dtrain.strategies.interface import Leader, Training
from dtrain.training.evaluation import Totals


@dataclass
class EpochLog:
    """The leader's account of epochs: the sums of all replicas' contributions, as the strategy knows them.

    Attributes:
        rows: by epoch, the numbers of those that have ended.
        ended: those of the epoch that ended last.
    """

    training: Training
    leader: Leader
    totals: Totals
    history: History
    rows: dict[int, Row] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Continue where an earlier process of the leader stood."""
        self.rows = dict(self.training.recorded)
        self.history.take(self.rows)

    def results(self, epoch: int) -> dict[str, float]:
        """Return the means over all contributions to an epoch that are known so far."""
        return self.totals.results_of([sums for number, sums in self.leader.tally if number == epoch])

    def record(self, epoch: int, results: Mapping[str, Any]) -> None:
        """Have the numbers of an epoch kept, unless they are kept already."""
        row = {name: _plain(value) for name, value in results.items()}
        if self.rows.get(epoch) != row:
            self.rows[epoch] = row
            self.leader.record(next(reversed(self.rows)) + 1, {epoch: row})

    @property
    def lost(self) -> int | None:
        """The first epoch that has ended here but not on servers, which went back to a checkpoint."""
        kept = self.training.recorded
        if not self.rows or next(reversed(self.rows)) in kept:  # they are kept in their order
            return None
        return min(self.rows.keys() - kept.keys())

    def go_back_to(self, epoch: int) -> None:
        """Forget this epoch and later ones."""
        self.rows = {number: row for number, row in self.rows.items() if number < epoch}
        self.history.take(self.rows)


def _plain(value: Any) -> Any:
    """Return a number or an array in the form that travels and is saved."""
    if value is None or isinstance(value, str | bool):
        return value
    return float(value) if np.ndim(value) == 0 else np.asarray(value).tolist()
