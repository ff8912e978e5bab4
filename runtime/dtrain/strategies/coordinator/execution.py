"""Closures in a worker: from names and plain data to a call of the program's own function, and back."""

import signal
import traceback

from dtrain.errors import OutOfRangeError, ProgramError
from dtrain.messages import Closure, Failure
from dtrain.roles.coordinator.access import Access
from dtrain.runs.self_report.activity import NO_ACTIVITY, Activity
from dtrain.strategies.coordinator.functions import ProgramNames
from dtrain.strategies.coordinator.per_worker import OwnValues
from dtrain.strategies.coordinator.plain_data import decode, encode, has_none

TRACE_CHARACTERS = 20_000
TOLD_TO_STOP = 128 + signal.SIGTERM
"""The exit code of a task that leaves because of a SIGTERM, also in the midst of a closure."""


class Execution:
    """Runs the closures of one session in a worker."""

    def __init__(self, names: ProgramNames, access: Access, activity: Activity = NO_ACTIVITY) -> None:
        """Begin; `access` is told in which closure the program is, `activity` of each batch that is read."""
        self._names = names
        self._access = access
        self._own = OwnValues(names, activity)

    def run(self, closure: Closure, arguments: bytes) -> bytes | Failure:
        """Run a closure; see `roles.coordinator.attendant.Run`. Every exception is the closure's own."""
        self._access.within(closure.number, closure.settled)
        try:
            args, kwargs = decode(arguments, self._own.resolve)
            result = self._names.find(closure.module, closure.function)(*args, **kwargs)
            result = None if has_none(result) else result
            return encode(result, f"the result of {closure.function}")
        except StopIteration as end:
            error = OutOfRangeError("an iterator of this worker is at its end")
            error.__cause__ = end
            return failure_of(error)
        except SystemExit as end:
            if end.code == TOLD_TO_STOP:
                raise
            what = f"{closure.function} called sys.exit({end.code!r}); a closure returns or raises an error"
            return failure_of(ProgramError(what))
        except Exception as error:
            return failure_of(error)
        finally:
            self._access.within(0, closure.settled)


def failure_of(error: Exception) -> Failure:
    """Return an exception as it travels."""
    trace = "".join(traceback.format_exception(error))
    return Failure(kind=type(error).__name__, message=str(error), trace=trace[-TRACE_CHARACTERS:])
