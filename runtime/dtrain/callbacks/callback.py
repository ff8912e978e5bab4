"""The base of all callbacks, several of them as one, and functions as one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dtrain.errors import InputError
from dtrain.strategies.interface import Training

Logs = dict[str, Any]
"""Means over the epoch by name; in `on_epoch_end` also `val_*`. Later callbacks see what earlier ones add."""


class Callback:
    """Base of all callbacks; override what you need. They run on the leader, in every strategy alike.

    A callback steers training as in Keras: it sets ``self.model.stop_training = True`` or
    ``self.model.optimizer.learning_rate``, or calls ``self.model.set_weights``. Its changes hold from the
    next step on (see `dtrain.strategies.interface.FitOrder`).

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


class StatefulCallback(Callback):
    """A callback that goes on in another task with the attributes that `_handed_over` names: plain data."""

    _handed_over: tuple[str, ...] = ()

    def get_state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._handed_over}

    def set_state(self, state: dict[str, Any]) -> None:
        for name in self._handed_over:
            setattr(self, name, state[name])


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))


ALIASES = {"on_train_batch_begin": "on_batch_begin", "on_train_batch_end": "on_batch_end"}


def as_callbacks(given: Any) -> list[Callback]:
    """Return callbacks (None, one, or nested lists) as a list; raise an `InputError` for others."""
    if given is None:
        return []
    if isinstance(given, list | tuple):
        return [callback for each in given for callback in as_callbacks(each)]
    check_callbacks([given])
    return [given]


def check_callbacks(callbacks: Iterable[object]) -> None:
    """Raise an `InputError` if one of these is no callback, but a class or a name."""
    for found in callbacks:
        if not isinstance(found, Callback):
            raise InputError(f"callbacks: expected instances of dtrain.callbacks.Callback, found {found!r}")


class CallbackList:
    """Calls several callbacks in order.

    Args:
        callbacks: which are called, in order.
        model: is given to the `set_model` of each callback.
        params: are told to each.
    """

    def __init__(self, callbacks: Sequence[Callback], model: Any, params: Mapping[str, Any]) -> None:
        self.callbacks = list(callbacks)
        self._listeners: dict[str, list[Callback]] = {}
        check_callbacks(self.callbacks)
        for callback in self.callbacks:
            callback.set_model(model)
            callback.set_params(params)

    def call(self, hook: str, *arguments: Any) -> None:
        """Call one hook of each callback."""
        for callback in self.callbacks:
            getattr(callback, hook)(*arguments)

    def listeners(self, hook: str) -> Sequence[Callback]:
        """Return the callbacks that have a hook of batches."""
        listeners = self._listeners.get(hook)
        if listeners is None:
            listeners = [callback for callback in self.callbacks if _has(callback, hook)]
            self._listeners[hook] = listeners
        return listeners

    def call_batch(self, hook: str, batch: int, logs: Callable[[], Logs]) -> None:
        """Call a hook of batches of the callbacks that have it; `logs` is computed only for them."""
        if listeners := self.listeners(hook):
            numbers = logs()
            for callback in listeners:
                getattr(callback, hook)(batch, numbers)


def _has(callback: Callback, hook: str) -> bool:
    """Return whether a callback overrides a hook."""
    names = (hook, ALIASES.get(hook, hook))
    return any(
        getattr(getattr(callback, name), "__func__", None) is not getattr(Callback, name) for name in names
    )


class LambdaCallback(Callback):
    """A callback of functions: ``LambdaCallback(on_epoch_end=lambda epoch, logs: print(epoch, logs))``.

    Args:
        on_epoch_begin: ``(epoch, logs)``.
        on_epoch_end: ``(epoch, logs)``.
        on_batch_begin: ``(batch, logs)``.
        on_batch_end: ``(batch, logs)``.
        on_train_begin: ``(logs)``.
        on_train_end: ``(logs)``.
        functions: any other hook of `Callback`, by its name.
    """

    def __init__(
        self,
        on_epoch_begin: Callable[..., object] | None = None,
        on_epoch_end: Callable[..., object] | None = None,
        on_batch_begin: Callable[..., object] | None = None,
        on_batch_end: Callable[..., object] | None = None,
        on_train_begin: Callable[..., object] | None = None,
        on_train_end: Callable[..., object] | None = None,
        **functions: Callable[..., object],
    ) -> None:
        """Take any other hook of `Callback` by its name; raise a `TypeError` if there is none."""
        given = {
            "on_epoch_begin": on_epoch_begin,
            "on_epoch_end": on_epoch_end,
            "on_batch_begin": on_batch_begin,
            "on_batch_end": on_batch_end,
            "on_train_begin": on_train_begin,
            "on_train_end": on_train_end,
            **functions,
        }
        for name, function in given.items():
            if name not in HOOKS:
                raise TypeError(f"LambdaCallback: expected functions among {', '.join(HOOKS)}; found {name}")
            if function is not None:
                setattr(self, name, function)
