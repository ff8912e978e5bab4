"""The loss and metrics of epochs, over all replicas.

The rule *Aggregated logs* (docs/design/protocol.md#aggregated-logs):

1. Every contribution brings sums over its examples. They count when it counts, and belong to the epoch of the
   step that it makes: epochs are counted in global steps.
2. The leader is sent the sums of every epoch that it has not ended. It ends an epoch by recording its
   numbers: a row.
3. Sums of epochs that have not ended, and all rows, are part of a checkpoint: they go back with a rollback.

Sums are float64 and never compressed. Kept by ps:0, and by a process that trains alone. Source:
`tf.keras.metrics` under a strategy, whose variables are summed over the replicas that see different examples.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from dtrain.errors import InputError
from dtrain.state.fit_state import FitState, Open, Row, Sums

Array = np.ndarray[Any, np.dtype[np.float64]]
FLOAT64 = np.dtype("<f8")
KINDS_MAX = 32
"""The limit of different sets of names in one epoch. One message brings the sums of all to the leader."""


def check(sums: Sums) -> None:
    """Refuse sums of a peer or a file that cannot be counted.

    Raises:
        InputError: they are no numbers, fewer than the names need, or not of a number of examples.
    """
    count, remainder = divmod(len(sums.totals), FLOAT64.itemsize)
    if remainder or count < 1 + len(sums.names):
        raise InputError(f"sums of {len(sums.totals)} bytes for {len(sums.names)} names")
    examples = float(np.frombuffer(sums.totals, FLOAT64, 1)[0])
    if not 0 <= examples < np.inf:
        raise InputError(f"sums of {examples:g} examples")


class Tally(msgspec.Struct):
    """The account of one call of `fit`.

    Attributes:
        first_step: the version at which it began.
        kept: whether its rows belong to the history of the run; those of `train_on_batch` do not.
        sums: by epoch and the names that steps return, the totals of those that have not ended; float64,
            flat.
    """

    first_step: int
    steps_per_epoch: int
    first_epoch: int = 0
    kept: bool = True
    rows: dict[int, Row] = msgspec.field(default_factory=dict)
    sums: dict[tuple[int, tuple[str, ...]], Array] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, state: FitState) -> "Tally":
        """Begin, or go on from a checkpoint's state.

        Raises:
            InputError: it holds sums that cannot be counted.
        """
        rows = {} if state.alone else state.history.get(state.generation, {})
        first = state.lineage.first_step, state.steps_per_epoch, state.first_epoch
        return cls(*first, not state.alone, dict(rows)).holding(state.tally)

    def holding(self, open_sums: Open) -> "Tally":
        """Return a copy of this account in which the sums of the open epochs are replaced by these."""
        tally = replace(self, rows=dict(self.rows), sums={})
        for epoch, sums in open_sums:
            if epoch > max(self.rows, default=-1):
                check(sums)
                tally._add(epoch, sums)
        return tally

    def after(self, before: Open, version: int, given: Sequence[Sums]) -> Open:
        """Return the sums of the open epochs with those of a version's parts; this account stays as it is."""
        tally = self.holding(before)
        for sums in given:
            tally.add(version, sums)
        return tally.open()

    def add(self, version: int, sums: Sums | None) -> None:
        if sums is not None and self.steps_per_epoch:
            self._add(self.first_epoch + (version - self.first_step) // self.steps_per_epoch, sums)

    def _add(self, epoch: int, sums: Sums) -> None:
        totals = np.frombuffer(sums.totals, FLOAT64)
        before = self.sums.get((epoch, sums.names))
        if before is None:
            if sum(known == epoch for known, _ in self.sums) < KINDS_MAX:
                self.sums[epoch, sums.names] = totals.copy()
        elif before.shape == totals.shape:
            before += totals

    def record(self, epoch: int, rows: Mapping[int, Row]) -> None:
        while self.rows and next(reversed(self.rows)) >= epoch:
            self.rows.popitem()
        self.rows.update(rows)
        self.sums = {key: totals for key, totals in self.sums.items() if key[0] >= epoch}

    def open(self) -> Open:
        return tuple(
            (epoch, Sums(names=names, totals=totals.tobytes()))
            for (epoch, names), totals in self.sums.items()
        )


def added(sums: Sequence[Sums]) -> Sums:
    """Return the sums of several steps of one replica; an `InputError` if these have returned different
    names.
    """
    names = {each.names for each in sums}
    if len(names) > 1:
        first, other = sorted(names)[:2]
        raise InputError(
            f"train_step: expected the same numbers from every step of a round of local steps, found "
            f"{', '.join(first)} and {', '.join(other)}"
        )
    totals = np.sum([np.frombuffer(each.totals, FLOAT64) for each in sums], axis=0)
    return Sums(names=sums[0].names, totals=totals.astype(FLOAT64).tobytes())


def merged(sums: Sequence[Sums], size: int) -> tuple[dict[str, float], Array]:
    """Return the means of the steps' numbers, by name, and the sum of the metrics' states: float64, flat.
    States of another size than `size` are of other metrics, and not counted.
    """
    totals: dict[str, float] = {}
    examples: dict[str, float] = {}
    states: Array = np.zeros(size)
    for each in sums:
        numbers = np.frombuffer(each.totals, "<f8")
        for name, total in zip(each.names, numbers[1:], strict=False):
            totals[name] = totals.get(name, 0.0) + float(total)
            examples[name] = examples.get(name, 0.0) + float(numbers[0])
        state = numbers[1 + len(each.names) :]
        if state.size == size:
            states += state
    return {name: total / examples[name] for name, total in totals.items() if examples[name]}, states
