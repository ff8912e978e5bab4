"""Several callbacks as one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dtrain.callbacks.callback import Callback, Logs

ALIASES = {"on_train_batch_begin": "on_batch_begin", "on_train_batch_end": "on_batch_end"}


class CallbackList:
    """Calls several callbacks in order."""

    def __init__(self, callbacks: Sequence[Callback], model: Any, params: Mapping[str, Any]) -> None:
        self.callbacks = list(callbacks)
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                raise TypeError(f"callbacks: expected instances of dtrain.callbacks.Callback, found {type(callback).__name__}")
            callback.set_model(model)
            callback.set_params(params)

    def call(self, hook: str, *arguments: Any) -> None:
        """Call one hook of each."""
        for callback in self.callbacks:
            getattr(callback, hook)(*arguments)

    def call_batch(self, hook: str, batch: int, logs: Callable[[], Logs]) -> None:
        """Call a hook of batches of those that have it; `logs` is computed only for them."""
        if listeners := [callback for callback in self.callbacks if _has(callback, hook)]:
            numbers = logs()
            for callback in listeners:
                getattr(callback, hook)(batch, numbers)


def _has(callback: Callback, hook: str) -> bool:
    """Whether a callback does anything there."""
    names = (hook, ALIASES.get(hook, hook))
    return any(getattr(getattr(callback, name), "__func__", None) is not getattr(Callback, name) for name in names)
