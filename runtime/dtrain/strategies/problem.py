"""The training that `fit` asks a strategy for: the problem, and the leader's changes to it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtrain.checkpoints import OptimizerState
from dtrain.parameters.placement import Plan
from dtrain.state.batch_cut import BatchCut, Dealt
from dtrain.state.feed import UNKNOWN, Feed
from dtrain.state.fit_state import FitState
from dtrain.types import Array
from dtrain.variables import VariableSpec

Weights = Mapping[str, Array]
"""Every variable by name."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The training of one call of `fit`, without the data.

    Attributes:
        variables: in the order of creation, which is also the order of placement.
        initial_values: makes the first value of every variable; only the leader calls it.
        optimizer: as `optimizers.serialize` makes it.
        max_steps: how many global steps this call of `fit` makes, counted from `StepClock.first_step`.
        model: its description, for checkpoints; None if it is no data.
        state: of an optimizer that begins, if it does not begin anew.
        owner: the same for every `fit` of one model with one optimizer: only then the optimizer goes on where
            it was.
        resume_from: a folder of checkpoints to begin from, where the run itself has none.
        steps_per_epoch: global steps; 0 where the numbers of epochs are not kept.
        first_epoch: the number of the first one.
        alone: whether the replica of rank 0 computes every part of every batch.
        feed: what numbers of batches and steps mean, for a later resume.
    """

    variables: tuple[VariableSpec, ...]
    initial_values: Callable[[], Weights]
    optimizer: dict[str, Any]
    max_steps: int
    owner: object = None
    model: Mapping[str, Any] | None = None
    state: OptimizerState | None = None
    resume_from: Path | None = None
    steps_per_epoch: int = 0
    first_epoch: int = 0
    alone: bool = False
    feed: Feed = UNKNOWN

    def asked(self, generation: int, plan: Plan, cut: BatchCut, *, sync: bool) -> FitState:
        """Return the state with which it would begin at step 0; `max_steps` counts from its beginning.

        Args:
            generation: which call of `fit` of the program it is.
            plan: where its variables lie.
            cut: how every batch is cut into parts.
            sync: whether the contributions of several replicas make a step.
        """
        return FitState(
            generation=generation,
            max_steps=self.max_steps,
            compiled=self.optimizer,
            optimizer=self.optimizer,
            model=None if self.model is None else dict(self.model),
            plan=plan.to_dict(),
            alone=self.alone,
            steps_per_epoch=self.steps_per_epoch,
            first_epoch=self.first_epoch,
            feed=self.feed,
            replicas_in_sync=cut.parts if sync else 0,
            dealt=Dealt(cut.parts, even=cut.even),
        )


@dataclass(frozen=True)
class ConfigChange:
    """The leader's changes from the next step on; see `Leader.control`.

    Attributes:
        optimizer: as `optimizers.serialize` makes it: the same rule, perhaps with other numbers.
        stop: no further step is made.
        weights: new values of all variables; None: they stay.
        until: the last step that may be made before the next change; None: there is no such limit.
    """

    optimizer: dict[str, Any]
    stop: bool = False
    weights: Weights | None = None
    until: int | None = None
