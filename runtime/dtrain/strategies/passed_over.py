"""A call of `fit` that had ended before its program was started again: nothing is trained, and no connection
is made.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dtrain import checkpoints
from dtrain.checkpoints import OptimizerState
from dtrain.errors import CheckpointError
from dtrain.messages import Row
from dtrain.parameters import placement
from dtrain.roles.chief.start import restored, saved_rows
from dtrain.state.fit_state import FitState
from dtrain.strategies.interface import Compute, Problem, Stepped, Training
from dtrain.types import Array


class PassedOverTraining(Training):
    """A training that is finished from the beginning.

    Its weights are those of the newest checkpoint of that call of `fit` that is still there, else of a later
    one of the same model; without either they are the model's own. Of the first the leader reads the
    optimizer's state, too.
    """

    replicas = ()
    global_step = 0
    leads = True
    finished = True

    def __init__(self, problem: Problem, fit: int, directory: Path, *, leads: bool = True) -> None:
        self.leads = leads
        path, found = _newest(problem, fit, directory)
        self._state = _state(problem, path) if path is not None and leads and problem.rounds is None else None
        self.weights: dict[str, Array] = {
            name: np.array(value) for name, value in (found or problem.initial_values()).items()
        }
        self.global_step = problem.max_steps
        self._rows = saved_rows(directory, fit)
        self._optimizer = problem.optimizer

    @property
    def optimizer_state(self) -> OptimizerState | None:
        return self._state

    @property
    def recorded(self) -> Mapping[int, Row]:
        return self._rows

    @property
    def optimizer(self) -> dict[str, Any]:
        return self._optimizer

    def step(self, compute: Compute) -> Stepped:
        return Stepped.ENDED


def _newest(problem: Problem, fit: int, directory: Path) -> tuple[Path | None, Mapping[str, Array] | None]:
    """Return the last checkpoint of that call of `fit`, else its newest, with its weights; else the newest
    weights that fit.
    """
    expected = {spec.name: spec.shape for spec in problem.variables}
    newest: Mapping[str, Array] | None = None
    kept = checkpoints.final_of(directory, fit)
    for found in (*([kept] if kept else []), *reversed(checkpoints.list_checkpoints(directory))):
        try:
            with checkpoints.open_checkpoint(found.path) as checkpoint:
                of_this_fit = checkpoint.state.generation == fit
                fits = {name: stored.shape for name, stored in checkpoint.variables.items()} == expected
                if fits and (of_this_fit or newest is None):
                    newest = {name: checkpoint.read(name) for name in expected}
        except (CheckpointError, FileNotFoundError):
            continue
        if fits and of_this_fit:
            return found.path, newest
    return None, newest


def _state(problem: Problem, path: Path) -> OptimizerState | None:
    """Return the state of the optimizer in a checkpoint; None: it is another optimizer's."""
    try:
        plan = placement.plan(problem.variables, servers=1)
        asked = FitState(compiled=problem.optimizer, optimizer=problem.optimizer)
        return restored(path, plan, asked).optimizer_state
    except CheckpointError:
        return None
