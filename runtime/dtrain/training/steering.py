"""What callbacks change while a `fit` runs, told to the session: the optimizer's numbers, the weights, the
end.
"""

from dataclasses import dataclass, field
from typing import Any

from dtrain.learning import optimizers
from dtrain.learning.optimizers import Optimizer
from dtrain.strategies.interface import Orders, Session
from dtrain.training.architecture import Architecture


@dataclass
class Steering:
    """The leader's.

    Attributes:
        holds: whether the ends of epochs are looked at: no replica then goes beyond one before that is done.
    """

    model: Architecture
    optimizer: Optimizer
    session: Session
    holds: bool
    _told: dict[str, Any] = field(default_factory=dict)
    _until: int | None = None
    _stop_told: bool = False

    def __post_init__(self) -> None:
        """A leader that was started again takes over the numbers that are in force."""
        vars(self.optimizer).update(vars(optimizers.from_config(self.session.optimizer)))

    @property
    def stopped(self) -> bool:
        """Whether training has been ended."""
        return self.model.stop_training

    def begin_epoch(self, last_step: int) -> None:
        """Training may go on, to the epoch's last step."""
        self._until = last_step if self.holds else None
        self._tell()

    def goes_back(self) -> None:
        """An epoch begins again: what callbacks changed at its end and was not told they will change
        again.
        """
        self.model.weights = self.session.weights
        self.model.stop_training = self._stop_told

    def tell_changes(self) -> None:
        """Callbacks were called: if they have changed something, it holds from the next step on."""
        model = self.model
        if (
            model.stop_training
            or model.weights is not self.session.weights
            or vars(self.optimizer) != self._told
        ):
            self._tell()

    def _tell(self) -> None:
        model = self.model
        session = self.session
        assigned = None if model.weights is session.weights else model.weights
        if session.finished and assigned is None:
            return
        self._told = dict(vars(self.optimizer))
        self._stop_told = model.stop_training
        session.control(
            Orders(optimizers.serialize(self.optimizer), model.stop_training, assigned, self._until)
        )
        model.weights = session.weights
