"""A call of `fit` that had ended before its program was started again: nothing is trained, and no connection
is made.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dtrain import checkpoints
from dtrain.errors import CheckpointError
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.graphs.passes import OnGradients
from dtrain.messages import Row
from dtrain.protocol.batch_cut import BatchCut
from dtrain.protocol.tally import Open
from dtrain.roles.chief.start import saved_rows
from dtrain.strategies.interface import Array, Contribution, Orders, Problem, StepResult, Strategy


class PassedOverSession:
    """Finished from the beginning; see `Session`.

    Its weights are those of the newest checkpoint of that call of `fit` that is still there, else of a later
    one of the same model; without either they are the model's own.
    """

    def __init__(self, problem: Problem, fit: int, directory: Path, strategy: Strategy) -> None:
        found = _weights(problem, fit, directory)
        self.weights: dict[str, Array] = {
            name: np.array(value) for name, value in (found or problem.initial_values()).items()
        }
        self.arriving: Mapping[str, Array] = self.weights
        self.complete: OnGradients | None = None
        self.gradients: dict[str, Array] = {}
        self.row_gradients: dict[str, SparseRows] = {}
        self.updates: dict[str, Array] = {}
        self.rank = strategy.rank
        self.global_step = self.entered_step = problem.max_steps
        self.first_step = 0
        self.part = -1
        self.repairs = False
        self.cut = BatchCut()
        self.weighs_examples = False
        self.tally: Open = ()
        self.rows: Mapping[int, Row] = saved_rows(directory, fit)
        self.optimizer = problem.optimizer
        self.finished = True

    def step(self, contribution: Contribution) -> StepResult:
        """Never called: there is nothing to do."""
        raise AssertionError("a finished session takes no step")

    def pass_over(self, empty: int) -> StepResult:
        """Never called, as `step`."""
        raise AssertionError("a finished session takes no step")

    def record(self, epoch: int, rows: Mapping[int, Row]) -> None:
        """Keep nothing: its epochs are recorded."""

    def arrive(self) -> None:
        """They are there."""

    def conclude(self) -> bool:
        """It is saved."""
        return True

    def wait(self, step: int) -> None:
        """See `Session.wait`."""

    def control(self, orders: Orders) -> None:
        """See `Session`; it does nothing: training has ended."""

    def checkpoint(self) -> None:
        """See `Session.checkpoint`."""

    def save(self, directory: Path) -> None:
        """There is nothing to go on from."""

    def close(self, error: BaseException | None = None) -> None:
        """See `Session.close`."""


def _weights(problem: Problem, fit: int, directory: Path) -> Mapping[str, Array] | None:
    """The last of that call of `fit`; else the newest of it; else the newest that fits."""
    expected = {spec.name: spec.shape for spec in problem.variables}
    newest: Mapping[str, Array] | None = None
    kept = checkpoints.final_of(directory, fit)
    for found in (*([kept] if kept else []), *reversed(checkpoints.list_checkpoints(directory))):
        try:
            with checkpoints.open_checkpoint(found.path) as checkpoint:
                of_this_fit = checkpoint.manifest.extra.get("generation") == fit
                fits = {name: stored.shape for name, stored in checkpoint.variables.items()} == expected
                if fits and (of_this_fit or newest is None):
                    newest = {name: checkpoint.read(name) for name in expected}
        except (CheckpointError, FileNotFoundError):
            continue
        if fits and of_this_fit:
            break
    return newest
