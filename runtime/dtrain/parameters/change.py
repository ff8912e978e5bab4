"""A change of the optimizer or of values that holds on a server from one version on.

Rule *Configuration changes* (docs/design/protocol.md#configuration-changes).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Values = Sequence[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Change:
    """An order of the leader, as far as it concerns a server's memory.

    Attributes:
        version: the first one for which it holds.
        optimizer: the rule, with the numbers from then on.
        values: `[group or table]`, each flat in its own dtype: all elements of each group, then all rows of
            each table, or an empty array for a table that keeps its rows. Empty: all values stay. The store
            owns the arrays.
        number: of the order that the values came with.
    """

    version: int
    optimizer: dict[str, Any]
    values: Values = ()
    number: tuple[int, int] = (0, 0)


def laid_over(values: Values, earlier: Values) -> Values:
    """Return the values of an order on top of those of the one before it, whose arrays fill empty ones."""
    if not (values and earlier):
        return values or earlier
    return [new if new.size else old for new, old in zip(values, earlier, strict=True)]
