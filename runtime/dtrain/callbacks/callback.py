"""What a callback is."""

from collections.abc import Mapping
from typing import Any

Logs = dict[str, Any]
"""Numbers by name: means over the epoch so far; in `on_epoch_end` also `val_*`. What one callback adds the
later ones see.
"""


class Callback:
    """Base of all callbacks; override what you need. They run on the leader, in every strategy alike.

    A callback steers training as in Keras: it sets ``self.model.stop_training = True`` or
        ``self.model.optimizer.learning_rate``,
    or calls ``self.model.set_weights``. What it has changed is in force for the next step (see
    `dtrain.strategies.interface.Session.control`).

    Attributes:
        model: set before training begins.
        params: ``epochs``, ``steps`` (global steps an epoch), ``verbose``, ``validates`` (whether `val_*`
            numbers will come).
    """

    model: Any = None
    params: Mapping[str, Any] = {}

    def set_model(self, model: Any) -> None:
        """The model is this one."""
        self.model = model

    def set_params(self, params: Mapping[str, Any]) -> None:
        """The parameters are these."""
        self.params = params

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Training begins."""

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Training has ended; the numbers are those of the last epoch."""

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """An epoch, counted from 0, begins."""

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """An epoch has ended."""

    def on_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Another name for `on_train_batch_begin`."""

    def on_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Another name for `on_train_batch_end`."""

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """The leader begins a batch; `batch` is the global step within the epoch, from 0: with several
        replicas it may jump.
        """
        self.on_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """The leader's batch was judged. If its gradient was refused, `logs` holds its loss alone."""
        self.on_batch_end(batch, logs)

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """`evaluate`, or a validation, begins."""

    def on_test_end(self, logs: Logs | None = None) -> None:
        """It has ended."""

    def on_test_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """A batch of it begins."""

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """A batch of it has ended."""

    def on_predict_begin(self, logs: Logs | None = None) -> None:
        """`predict` begins."""

    def on_predict_end(self, logs: Logs | None = None) -> None:
        """It has ended."""

    def on_predict_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """A batch of it begins."""

    def on_predict_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """A batch of it has ended; `logs` holds its ``outputs``."""

    def monitors_validation(self) -> bool:
        """Whether `on_epoch_end` needs `val_*` numbers, even where an evaluator computes them elsewhere."""
        return str(getattr(self, "monitor", "")).startswith("val_")


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
