"""Other inputs of the same kind, and values in the golden files' form."""

import math

import numpy as np


class Draw:
    """Draws what a perturbed copy holds, from a seed."""

    def __init__(self, seed):
        self._rng = np.random.default_rng(seed)

    def normal(self, *shape):
        """An array of float32."""
        return self._rng.normal(0.0, 0.7, shape).astype(np.float32)

    def positive(self, *shape):
        """An array of float32 between 0.5 and 1.5."""
        return self._rng.uniform(0.5, 1.5, shape).astype(np.float32)

    def integers(self, below, *shape):
        """An array of int64 from 0 on."""
        return self._rng.integers(0, below, shape)

    def rows(self, count, *arrays):
        """So many rows of each array, drawn among its own; a scalar stays one.

        What is neither a label nor a distribution over labels is scaled down a little too, which keeps
        probabilities below 1.
        """
        found = []
        for array in arrays:
            picked = array[self._rng.integers(0, len(array), count)] if array.size and array.ndim else array
            label = np.issubdtype(picked.dtype, np.integer) or np.array_equal(picked, np.round(picked))
            distribution = picked.ndim > 1 and np.allclose(picked.sum(-1), 1)
            scale = 1 if label or distribution else self._rng.uniform(0.8, 0.99)
            found.append((picked * scale).astype(picked.dtype))
        return found

    def nudged(self, value):
        """Arguments whose floats, and those of schedules within them, are a little smaller; everything else
        stays.

        1.0 stays as well: it stands for "not at all", for example as the growth of a schedule's periods.
        """
        if isinstance(value, dict):
            return {key: self.nudged(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.nudged(item) for item in value]
        return (
            float(f"{value * self._rng.uniform(0.8, 0.97):.4g}")
            if isinstance(value, float) and value != 1.0
            else value
        )


def plain(value):
    """As the JSON files hold it: floats shortest at their own precision, NaN and infinities as strings."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value] if value.ndim else plain(value[()])
    if hasattr(value, "numpy"):
        return plain(value.numpy())
    if isinstance(value, (np.floating, float)):
        number = float(str(value))
        return number if math.isfinite(number) else str(number)
    return value.item() if isinstance(value, np.generic) else value


def array_of(value):
    """A float32 array of JSON's lists, in which NaN and infinities are strings."""
    return np.array(value, "f8").astype("f4")


def error_of(error):
    """An exception in the files' form."""
    return {"class": type(error).__name__, "message": str(error).splitlines()[0] if str(error) else ""}
