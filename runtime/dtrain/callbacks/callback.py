"""The base of all callbacks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dtrain.strategies.interface import Training

Logs = dict[str, Any]
"""Means over the epoch by name; in `on_epoch_end` also `val_*`. Later callbacks see what earlier ones add."""


class Callback:
    """Base of all callbacks; override what you need. They run on the leader, in every strategy alike.

    A callback steers training as in Keras: it sets ``self.model.stop_training = True`` or
    ``self.model.optimizer.learning_rate``, or calls ``self.model.set_weights``. Its changes hold from the
    next step on (see `dtrain.strategies.interface.Leader.control`).

    Attributes:
        model: set before training begins.
        params: ``epochs``, ``steps`` (global steps an epoch), ``verbose``, ``validates`` (whether `val_*`
            numbers will come).
    """

    model: Any = None
    params: Mapping[str, Any] = {}

    def set_model(self, model: Any) -> None:
        """Set `model`."""
        self.model = model

    def set_params(self, params: Mapping[str, Any]) -> None:
        """Set `params`."""
        self.params = params

    def set_training(self, training: Training) -> None:
        """Take the training of this call of `fit`: for a callback that asks how far it is, or that saves."""

    def resume_from(self) -> Path | None:
        """Return a folder of checkpoints that the training begins from; None, as most have none."""
        return None

    def get_state(self) -> dict[str, Any] | None:
        """Return what another task needs to go on where this callback stands.

        Where replicas reduce among themselves, the next one leads when the leader dies: it calls
        `on_train_begin`, and `on_epoch_begin` of the epoch under way, of its own callback, and then
        `set_state` with what this method returned after the last hook that had come to its end.

        Returns:
            Plain data: None, truth values, numbers, texts, lists, mappings with texts as keys, and arrays.
            An empty mapping: there is nothing to go on from. None: this callback does not say, and begins
            anew in the next leader, which prints a warning about it.
        """
        return None

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what `get_state` returned in the task that led before; lists are lists, also where there
        were tuples.
        """

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Act when training begins."""

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Act when training has ended; the numbers are those of the last epoch."""

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Act when an epoch, counted from 0, begins."""

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Act when an epoch has ended."""

    def on_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Act as `on_train_batch_begin`, another name of it."""

    def on_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Act as `on_train_batch_end`, another name of it."""

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Act when the leader begins a batch, at this global step of the epoch, from 0; it may jump."""
        self.on_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Act when the leader's batch was judged; ``loss`` is its own if it was refused."""
        self.on_batch_end(batch, logs)

    def on_test_begin(self, logs: Logs | None = None) -> None:
        """Act when `evaluate`, or a validation, begins."""

    def on_test_end(self, logs: Logs | None = None) -> None:
        """Act when an evaluation has ended."""

    def on_test_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Act when a batch of an evaluation begins."""

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Act when a batch of an evaluation has ended."""

    def on_predict_begin(self, logs: Logs | None = None) -> None:
        """Act when `predict` begins."""

    def on_predict_end(self, logs: Logs | None = None) -> None:
        """Act when `predict` has ended."""

    def on_predict_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Act when a batch of `predict` begins."""

    def on_predict_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Act when a batch of `predict` has ended; `logs` holds its ``outputs``."""

    def monitors_validation(self) -> bool:
        """Return whether `on_epoch_end` needs `val_*` numbers, even if an evaluator computes them."""
        return str(getattr(self, "monitor", "")).startswith("val_")


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))
