"""Functions as a callback."""

from collections.abc import Callable

from dtrain.callbacks.callback import HOOKS, Callback


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
