"""Loss and metrics of epochs, as they must be: sums over what counted. Rule 14."""

from collections.abc import Mapping

import numpy as np
from simulation.data import NAMES, Row, row_of, sums_of
from simulation.scenario import Scenario
from simulation.truth import Term

from dtrain.messages import Sums
from dtrain.roles.parameter_server.held import Held


class Accounts:
    """The judge of one call of `fit`. Every method raises AssertionError where a rule is broken.

    Attributes:
        examples: of every gradient, by its number.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.examples: dict[int, int] = {}
        self._told: Mapping[int, Row] | None = None

    def _by_epoch(self, term: Term) -> dict[int, list[Sums]]:
        epochs: dict[int, list[Sums]] = {}
        for version, numbers in term.counted.items():
            epoch = (version - term.first_step) // self._scenario.steps_per_epoch
            epochs.setdefault(epoch, []).extend([sums_of(number, self.examples[number]) for number in numbers])
        return epochs

    def check(self, term: Term, held: Held) -> None:
        """ps:0 has the sums of the epochs that are not recorded, and the numbers of those that are."""
        assert held.tally is not None
        rows = held.tally.rows
        epochs = self._by_epoch(term)
        assert list(rows) == list(range(len(rows))), f"epochs {list(rows)} are recorded"
        for epoch, row in rows.items():
            self._check_row(epoch, row, epochs)
        version = held.pushes.version
        reached = (version - term.first_step) // self._scenario.steps_per_epoch
        assert len(rows) <= reached or version == held.max_steps, f"epoch {len(rows) - 1} has not ended"
        truth = {epoch: row_of(sums) for epoch, sums in epochs.items() if epoch not in rows}
        assert {names for _, names in held.tally.sums} <= {NAMES}
        found = {epoch: row_of([sums]) for epoch, sums in held.tally.open()}
        assert found == truth, f"the sums of epochs are {found} at ps:0, and should be {truth}"

    def _check_row(self, epoch: int, row: Row, epochs: Mapping[int, list[Sums]]) -> None:
        truth = row_of(epochs.get(epoch, ()))
        assert dict(row) == truth, f"epoch {epoch} is recorded with {row}, and what counted is {truth}"

    def check_end(self, term: Term, rows: Mapping[int, Row]) -> None:
        """A task ends with these numbers of epochs."""
        epochs = self._by_epoch(term)
        assert rows.keys() == epochs.keys(), f"ends with epochs {list(rows)} of {list(epochs)}"
        for epoch, row in rows.items():
            self._check_row(epoch, row, epochs)
        assert all(np.isfinite(value) for row in rows.values() for value in row.values())
