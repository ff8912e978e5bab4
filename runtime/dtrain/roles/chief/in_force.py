"""The orders that a leader has to give again where the servers begin a new term: pure.

Rule *Configuration changes* (docs/design/protocol.md#configuration-changes).
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dtrain.messages import Control
from dtrain.parameters.store import Values, laid_over
from dtrain.roles.chief.order import Order


@dataclass(frozen=True)
class GivenOrder:
    """An order that was given.

    Attributes:
        control: what was ordered.
        values: by server, the values that belong to it; empty if it has none.
        since: the version that it holds for at the earliest.
        epochs: those that had ended before it.
    """

    control: Control
    values: Sequence[Values]
    since: int
    epochs: Set[int]


@dataclass
class OrdersInForce:
    """The last order, and those before it whose values a checkpoint may lack.

    A checkpoint of the version at which values were assigned may have been written before them. One of a
    later version has them.
    """

    _orders: list[GivenOrder] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether any order was given."""
        return bool(self._orders)

    @property
    def last(self) -> GivenOrder:
        """The newest order."""
        return self._orders[-1]

    def given(
        self, control: Control, values: Sequence[Values], since: int, epochs: Set[int], saved: int
    ) -> None:
        """Note an order; its values are copied. The newest checkpoint is of version `saved`."""
        kept: list[Any] = [[np.array(block) for block in blocks] for blocks in values]
        if self._orders and self.last.since == since and self.last.values:
            earlier = self.last.values
            kept = [laid_over(*both) for both in zip(kept or [()] * len(earlier), earlier, strict=True)]
        before = [each for each in self._orders if each.values and saved <= each.since < since]
        self._orders = [*before, GivenOrder(control, kept, since, epochs)]

    def again(
        self, servers: int, generation: int, term: int, rows: Mapping[int, object]
    ) -> Iterator[tuple[Order, Sequence[Values]]]:
        """Yield every order for a new term, in which the epochs of `rows` have ended, without a number."""
        for each in self._orders:
            order = Order(servers, generation, (0, 0), each.control, term, each.since, bool(each.values))
            order.again = True
            order.comes_back = not each.epochs <= rows.keys()
            order.for_its_values = each is not self.last
            yield order, each.values
