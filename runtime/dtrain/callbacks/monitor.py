"""The comparison of two values of a number, for the callbacks that watch one."""

import math
import warnings
from collections.abc import Sequence

from dtrain.callbacks.callback import Logs
from dtrain.errors import SpecError

MODES = ("auto", "min", "max")


class Monitor:
    """The number `name` in the logs, the direction in which it improves, and its `best` value so far."""

    def __init__(
        self, owner: str, name: str, mode: str, rising: Sequence[str] = ("acc",), min_delta: float = 0.0
    ) -> None:
        """Take the direction from `mode` (any other: `SpecError`) or, if ``auto``, from the name."""
        if mode not in MODES:
            raise SpecError(f"{owner}: expected a mode among {', '.join(MODES)}, found {mode!r}")
        self.owner = owner
        self.name = name
        self._sign = (
            1.0 if mode == "max" or (mode == "auto" and any(word in name for word in rising)) else -1.0
        )
        self._min_delta = abs(min_delta)
        self.reset()

    def reset(self, best: float | None = None) -> None:
        """Forget the best value, or take `best` for it."""
        self.best = -self._sign * math.inf if best is None else best

    def read(self, logs: Logs | None) -> float | None:
        """Return the number; None, with a warning, if it is missing."""
        value = (logs or {}).get(self.name)
        if value is None:
            text = (
                f"{self.owner}: there is no number {self.name!r} to watch; there are {', '.join(logs or {})}"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=3)
        return value

    def improves(self, value: float, reference: float | None = None) -> bool:
        """Return whether a value is better than the best, or than `reference`, by more than min_delta."""
        reference = self.best if reference is None else reference
        return self._sign * value - self._min_delta > self._sign * reference
