"""Results of closures that a coordinator has scheduled."""

import builtins
from typing import Any, Protocol

from dtrain import errors
from dtrain.errors import CancelledError, ClosureError, DtrainError
from dtrain.roles.coordinator.service import Scheduled
from dtrain.strategies.coordinator.plain_data import decode


class WaitsFor(Protocol):
    """A queue of closures."""

    def wait_for(self, closure: Scheduled) -> None:
        """Wait until a closure has ended."""


class RemoteValue:
    """The result of a closure, which a worker runs; see `tf.distribute.coordinator.RemoteValue`."""

    def fetch(self) -> Any:
        """Wait for the result and return it.

        Raises:
            CancelledError: the closure was not begun, because an earlier one had failed.
            Exception: what has ended the closure; every time.
        """
        raise NotImplementedError

    def get(self) -> Any:
        """Return the same as `fetch`."""
        return self.fetch()


class RemoteValueImpl(RemoteValue):
    """The result of one closure."""

    def __init__(self, closure: Scheduled, queue: WaitsFor) -> None:
        self._closure = closure
        self._queue = queue

    def fetch(self) -> Any:
        """See `RemoteValue.fetch`."""
        self._queue.wait_for(self._closure)
        if (error := error_of(self._closure)) is not None:
            raise error
        return decode(self._closure.result, lambda reference: None)


def error_of(closure: Scheduled) -> Exception | None:
    """Return the exception of a closure that has ended, as it was in the worker.

    Of Python's own exceptions and dtrain's it is of the same class; of others a `ClosureError`.
    """
    if closure.cancelled:
        return CancelledError(
            f"{closure} was not begun, because an earlier one had failed; schedule it again"
        )
    failure = closure.failure
    if failure is None:
        return None
    kind = getattr(errors, failure.kind, None) or getattr(builtins, failure.kind, None)
    own = isinstance(kind, type) and issubclass(kind, DtrainError | Exception)
    where = f"{closure} on {closure.worker}"
    try:
        error = kind(f"{failure.message} ({where})") if own and kind is not None else None
    except TypeError:  # one of Python's that wants more than a text
        error = None
    if not isinstance(error, Exception):
        error = ClosureError(f"{where} has ended with {failure.kind}: {failure.message}")
    error.add_note(failure.trace)
    return error
