"""Types that every room uses."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""An array of any dtype and shape; the docstring beside it says which."""

Blocks: TypeAlias = Sequence[Array]
"""The arrays that travel with a message, in the order that its class says."""

Shape: TypeAlias = tuple[int | None, ...]
"""The lengths of an array's axes; None where a length is not fixed."""
