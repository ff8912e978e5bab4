"""The numbers of epochs that tasks print: sums over what counted.

Rule *Aggregated logs* (docs/design/protocol.md#aggregated-logs).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from simulation.data import Row, row_of, sums_of
from simulation.judging.promises import Promise
from simulation.judging.term import TermSeen
from simulation.judging.units import Counts


class Histories:
    """Compares what is printed with what the last checkpoint contains."""

    def __init__(self, judge: Any) -> None:
        self._judge = judge
        self._epochs: dict[int, dict[int, Row | None]] = {}
        self._totals: dict[int, Row] = {}
        self._printed: dict[int, Mapping[int, Row]] = {}

    def ended(self, term: TermSeen, counts: Counts) -> None:
        """A call of `fit` ends: its last values contain this."""
        self._totals[term.generation] = _row(counts)
        steps, length = term.last_step - term.first_step, self._judge.scenario.steps_per_epoch
        starts = range(0, steps, length)
        self._epochs[term.generation] = {
            epoch: self._between(
                term, term.first_step + start, min(term.first_step + start + length, term.last_step)
            )
            for epoch, start in enumerate(starts)
        }
        if term.alone:  # what `train_on_batch` returns is no history
            del self._epochs[term.generation]

    def _between(self, term: TermSeen, start: int, stop: int) -> Row | None:
        """The numbers of the steps between two versions, where both were seen."""
        before, after = term.contents.get(start), term.contents.get(stop)
        if before is None or after is None:
            return None
        return _row(after - before)

    def printed(self, task: str, generation: int, rows: Mapping[int, Row]) -> None:
        """A task's `fit` returns with these numbers."""
        if generation not in self._epochs:
            return
        demand, epochs = self._judge.demand, self._epochs[generation]
        first = self._printed.setdefault(generation, {epoch: dict(row) for epoch, row in rows.items()})
        rows = {epoch: dict(row) for epoch, row in rows.items()}
        demand(Promise.HISTORY, rows == first, f"{task} ends with {rows}, another with {first}")
        demand(
            Promise.HISTORY,
            list(rows) == list(epochs),
            f"{task} ends with epochs {list(rows)} of {list(epochs)}",
        )
        for epoch, truth in epochs.items():
            right = truth is None or rows.get(epoch) == truth
            demand(
                Promise.HISTORY,
                right,
                f"{task} ends with {rows.get(epoch)} in epoch {epoch}: {truth} has counted",
            )
        total = {name: sum(float(row[name]) for row in rows.values()) for name in self._totals[generation]}
        whole = self._totals[generation]
        demand(
            Promise.HISTORY, total == whole, f"{task} ends with {total} in all epochs: {whole} has counted"
        )


def _row(counts: Counts) -> Row:
    return row_of(
        [sums_of(range(row, row + 1)) for row in np.flatnonzero(counts).tolist()] or [sums_of(range(0))]
    )
