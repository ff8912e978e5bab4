"""Changes that callbacks make while a `fit` runs, for the leader: optimizer's numbers, weights, the end."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dtrain.learning import optimizers
from dtrain.learning.optimizers import Optimizer
from dtrain.strategies.interface import ConfigChange, Leader, Training
from dtrain.training.architecture import Architecture


@dataclass
class Steering:
    """The leader's account of the changes that the strategy knows.

    Attributes:
        holds: whether callbacks act at the ends of epochs: no replica then goes beyond one before they have.
    """

    model: Architecture
    optimizer: Optimizer
    training: Training
    leader: Leader
    holds: bool
    _told: dict[str, Any] = field(default_factory=dict)
    _until: int | None = None
    _stop_told: bool = False

    def __post_init__(self) -> None:
        """Take over the numbers that are in force, in a leader that was started again."""
        vars(self.optimizer).update(vars(optimizers.from_config(self.leader.optimizer)))

    @property
    def stopped(self) -> bool:
        """True if a callback has ended training."""
        return self.model.stop_training

    @contextmanager
    def without_effect(self) -> Iterator[None]:
        """Let callbacks call hooks that the leader before has called: their changes are in force already."""
        numbers = dict(vars(self.optimizer))
        yield
        vars(self.optimizer).clear()
        vars(self.optimizer).update(numbers)
        self.goes_back()

    def begin_epoch(self, last_step: int) -> None:
        """Let training go on, to the epoch's last step."""
        self._until = last_step if self.holds else None
        self._tell()

    def goes_back(self) -> None:
        """Undo unsent changes before an epoch begins again: callbacks will make them again at its end."""
        self.model.weights = self.training.weights
        self.model.stop_training = self._stop_told

    def tell_changes(self) -> None:
        """Send the changes that callbacks have made, if any; they hold from the next step on."""
        model = self.model
        if (
            model.stop_training
            or model.weights is not self.training.weights
            or vars(self.optimizer) != self._told
        ):
            self._tell()

    def _tell(self) -> None:
        model = self.model
        training = self.training
        assigned = None if model.weights is training.weights else model.weights
        if training.clock.finished and assigned is None:
            return
        self._told = dict(vars(self.optimizer))
        self._stop_told = model.stop_training
        self.leader.control(
            ConfigChange(optimizers.serialize(self.optimizer), model.stop_training, assigned, self._until)
        )
        model.weights = training.weights
