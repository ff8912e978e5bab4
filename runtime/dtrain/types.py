"""Types that every room uses."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""An array of any dtype and shape; the docstring beside it says which."""

Arrays: TypeAlias = Mapping[str, Array]
"""Arrays by the names of their variables, weights or slots."""

Blocks: TypeAlias = Sequence[Array]
"""The arrays that travel with a message, in the order that its class says."""

Shape: TypeAlias = tuple[int | None, ...]
"""The lengths of the axes of one example, without the batch axis; None is known only with the data."""
