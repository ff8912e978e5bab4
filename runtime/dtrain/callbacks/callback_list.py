"""Several callbacks as one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dtrain.callbacks.callback import Callback, Logs
from dtrain.errors import InputError

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

    def call_batch(self, hook: str, batch: int, logs: Callable[[], Logs]) -> Sequence[Callback]:
        """Call a hook of batches of the callbacks that have it, and return these; `logs` is computed only for
        them.
        """
        listeners = self._listeners.get(hook)
        if listeners is None:
            listeners = self._listeners[hook] = [
                callback for callback in self.callbacks if _has(callback, hook)
            ]
        if listeners:
            numbers = logs()
            for callback in listeners:
                getattr(callback, hook)(batch, numbers)
        return listeners


def _has(callback: Callback, hook: str) -> bool:
    """Return whether a callback overrides a hook."""
    names = (hook, ALIASES.get(hook, hook))
    return any(
        getattr(getattr(callback, name), "__func__", None) is not getattr(Callback, name) for name in names
    )
