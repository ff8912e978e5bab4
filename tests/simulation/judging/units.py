"""Reads out of values how often they contain every example; see `model`.

One application of an example moves its element by about one unit: by the learning rate, and where a step may
lack some of its parts, by more. As long as the largest such move is smaller than two of the smallest, the sum
of moves says their number.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from simulation.judging.promises import Promise
from simulation.model import MARK, RATES, State
from simulation.setup import Setup

Array = np.ndarray[Any, Any]
Counts = Array
"""By example, from 0: how often it is contained."""

SLOTS = {"momentum": "m", "adagrad": "accumulator", "adam": "v"}
"""Slots that remember the sum of gradients, or of their squares."""
ROUNDED = 1e-6


class Units:
    """What one application of an example is, in a call of `fit` that began with a cluster, `begun`, and trains on
    another one now.
    """

    def __init__(self, setup: Setup, begun: Setup, demand: Callable[[Promise, Any, str], None]) -> None:
        self._demand = demand
        self._model = setup.model
        self._optimizer = setup.scenario.optimizer
        least, most = self._move(begun)
        slowest, fastest = min(RATES) * (0.86 if self._optimizer == "schedule" else 1.0), max(RATES)
        shrunk = 0.9 if self._optimizer == "ema" else 1.0
        self._values = least * slowest * shrunk, most * fastest
        self._slots = {
            "momentum": (least * slowest * 0.995**setup.scenario.max_steps, most * fastest),
            "adagrad": (least**2, most**2),
            "adam": (least**2 * 0.96, most**2),
        }

    @staticmethod
    def _move(setup: Setup) -> tuple[float, float]:
        """The least and the most that one application moves an element by, at a learning rate of 1."""
        if not setup.sync:
            return 1.0, 1.0
        data, cut, parts = setup.data, setup.cut, setup.parts
        if setup.by_examples and setup.has_backups:
            smallest, largest = min(data.rows, data.last_rows), max(data.rows, data.last_rows)
            return smallest / (parts * cut.most), largest / (parts * cut.least)
        refused = setup.scenario.nan_rate > 0
        return 1.0, float(
            data.rows if setup.by_examples else parts
        ) if refused and not setup.has_backups else 1.0

    def in_values(self, server: int, values: Any) -> tuple[Counts, float, bool]:
        """What flat values of a server's groups contain, the mark, and whether the counts are exact, or 1
        stands for more.
        """
        linear = self._optimizer not in SLOTS
        return self._read(server, values, 0.0, self._values if linear else None)

    def in_state(self, server: int, state: State) -> tuple[Counts, float, bool]:
        """As `in_values`, of everything that a server holds."""
        if self._optimizer not in SLOTS:
            return self.in_values(server, state.values)
        groups = self._model.plan.layout(server).groups
        slot, empty = state.slots[SLOTS[self._optimizer]], 0.1 if self._optimizer == "adagrad" else 0.0
        remembered = iter(slot)
        flats = [
            next(remembered) if group.trainable else value
            for group, value in zip(groups, state.values, strict=True)
        ]
        if self._optimizer == "adam":
            flats = [flat / 0.001 for flat in flats]
        counts, _, exact = self._read(server, flats, empty, self._slots[self._optimizer])
        return counts, self.in_values(server, state.values)[1], exact

    def _read(
        self, server: int, flats: Any, empty: float, limits: tuple[float, float] | None
    ) -> tuple[Counts, float, bool]:
        counters = self._model.counters(server, flats)
        marks = {float(counter[MARK]) for counter in counters}
        self._demand(Promise.WHOLE, len(marks) == 1, f"variables of ps:{server} have the marks {marks}")
        # Variables that were on different servers may have got the same examples in another order, and have
        # other values by that.
        counts, *others = [self._count(server, counter, empty, limits) for counter in counters]
        same = all(np.array_equal(counts, other) for other in others)
        self._demand(Promise.SAME, same, f"variables of ps:{server} contain different examples")
        exact = limits is not None and 2 * limits[0] * (1 - ROUNDED) > limits[1] * (1 + ROUNDED)
        return counts, max(marks), exact

    def _count(self, server: int, counter: Any, empty: float, limits: tuple[float, float] | None) -> Counts:
        examples = np.abs(counter - empty)[MARK + 1 :]
        if limits is None:
            return (examples > ROUNDED).astype(np.int64)
        least, most = limits[0] * (1 - ROUNDED), limits[1] * (1 + ROUNDED)
        if np.any((examples > ROUNDED) & (examples < least)):
            raise AssertionError(f"ps:{server} has examples in part: {examples}")
        return (examples > ROUNDED).astype(np.int64) + (examples > most)
