"""What is different on a server from one version on. Rule 13."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Values = Sequence[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Change:
    """An order of the leader, as far as it concerns a server's memory.

    Attributes:
        version: the first one that it holds for.
        optimizer: the rule, with the numbers from then on.
        values: one flat array a group, then one with all rows of each table, or with none where they stay;
            empty: all stay.
        number: of the order that the values came with.
    """

    version: int
    optimizer: dict[str, Any]
    values: Values = ()
    number: tuple[int, int] = (0, 0)


def laid_over(values: Values, earlier: Values) -> Values:
    """The values of an order that another one follows at the same version: what that leaves as it is, is as
    it was told before.
    """
    if not (values and earlier):
        return values or earlier
    return [new if new.size else old for new, old in zip(values, earlier, strict=True)]
