"""Examples that are computed together."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dtrain.errors import InputError

NESTED = (dict, list, tuple)


@dataclass(frozen=True)
class Batch:
    """Examples that are computed together; `x` and `y` are arrays, or lists or dicts of arrays."""

    x: Any
    y: Any = None
    sample_weight: Any = None

    @classmethod
    def of(cls, element: Any) -> "Batch":
        """Return a dataset's element: ``x``, ``(x, y)`` or ``(x, y, sample_weight)``."""
        if not isinstance(element, tuple):
            return cls(element)
        if not 1 <= len(element) <= 3:
            raise InputError(
                f"data: expected elements x, (x, y) or (x, y, sample_weight), found a tuple of {len(element)}"
            )
        return cls(*element)

    @cached_property
    def size(self) -> int:
        """The number of examples."""
        first = self.x
        while isinstance(first, NESTED):
            first = next(iter(first.values())) if isinstance(first, dict) else first[0]
        return len(first)

    @property
    def input_shape(self) -> Any:
        """The shape of one example, for `Network.build`."""
        if isinstance(self.x, dict):
            return [np.shape(value)[1:] for value in self.x.values()]
        if isinstance(self.x, list | tuple):
            return [np.shape(value)[1:] for value in self.x]
        return np.shape(self.x)[1:]

    def weighted(self, class_weight: Mapping[int, float]) -> "Batch":
        """Return the same examples, their weights multiplied by those of their classes.

        Raises:
            InputError: the targets are not classes 0 to n - 1 (or one-hot vectors) of which each has a
                weight, or belong to several outputs.
        """
        if isinstance(self.y, Mapping | list | tuple) or self.y is None:
            raise InputError("class_weight: expected the targets of one output; give sample_weight by output")
        y = np.asarray(self.y)
        classes = y.argmax(axis=-1) if y.ndim > 1 and y.shape[-1] > 1 else y.reshape(len(y)).astype(np.int64)
        if unknown := set(classes.tolist()) - set(class_weight):
            raise InputError(
                f"class_weight: expected a weight for each class; found class {min(unknown)}, not in "
                f"{class_weight}"
            )
        weights = np.array([class_weight[each] for each in classes.tolist()], np.float32)
        return replace(
            self,
            sample_weight=weights
            if self.sample_weight is None
            else weights * np.reshape(self.sample_weight, -1),
        )
