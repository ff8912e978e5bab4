"""What is different on a server from one version on. Rule 13."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Change:
    """An order of the leader, as far as it concerns a server's memory.

    Attributes:
        version: the first one that it holds for.
        optimizer: the rule, with the numbers from then on.
        values: one flat array a group, then one with all rows of each table, or with none where they stay; empty: all stay.
    """

    version: int
    optimizer: dict[str, Any]
    values: Sequence[np.ndarray[Any, Any]] = ()
