"""Which of two numbers is better: what the callbacks that watch a number have in common."""

import math
import warnings
from collections.abc import Sequence

from dtrain.callbacks.callback import Logs
from dtrain.errors import SpecError

MODES = ("auto", "min", "max")


class Monitor:
    """A number in the logs, and what is better.

    Attributes:
        name: of the number.
        best: the best one so far.
    """

    def __init__(
        self, owner: str, name: str, mode: str, rising: Sequence[str] = ("acc",), min_delta: float = 0.0
    ) -> None:
        """Larger is better where `mode` says so, or is ``auto`` and the name holds one of `rising`.

        Raises:
            SpecError: there is no such mode.
        """
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
        """Anything is better than what has been; or what is better than `best`."""
        self.best = -self._sign * math.inf if best is None else best

    def read(self, logs: Logs | None) -> float | None:
        """The number; None, and a warning, if it is not there."""
        value = (logs or {}).get(self.name)
        if value is None:
            text = (
                f"{self.owner}: there is no number {self.name!r} to watch; there are {', '.join(logs or {})}"
            )
            warnings.warn(text, RuntimeWarning, stacklevel=3)
        return value

    def improves(self, value: float, reference: float | None = None) -> bool:
        """Whether it is better than the best, or than `reference`, by more than min_delta."""
        reference = self.best if reference is None else reference
        return self._sign * value - self._min_delta > self._sign * reference
