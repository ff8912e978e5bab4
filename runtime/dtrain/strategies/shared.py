"""Models and variables whose values may lie on servers: their numbers, and the interface to such values.

Every task runs the same program and numbers what it makes in the order in which it makes it, so the same
number means the same model or variable in all of them. Values lie on servers in a program with a
coordinator.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Protocol
from weakref import WeakValueDictionary

from dtrain.learning.optimizers.applied import Application
from dtrain.types import Array

Owner = Any
"""A model, a `Variable`, or a metric."""
VALUE = "value"
"""The name of the only variable of a `Variable`."""


class SharedValues(Protocol):
    """The values of all models, variables and metrics of a program that has a coordinator."""

    def holds(self, owner: Owner) -> bool:
        """Return whether the values of a model or variable lie on the servers."""

    def read(self, variable: Any) -> Array:
        """Return the newest value of a variable."""

    def weights(self, owner: Owner) -> dict[str, Array]:
        """Return the newest values of every variable of an owner, by name.

        Within a closure they are as new as the closure, or its last change. The arrays may be used until the
        next call; nothing may be written to them.
        """

    def assign(self, owner: Owner, values: Mapping[str, Any], *, add: bool = False) -> None:
        """Let variables take these values, or grow by them."""

    def application_of(self, optimizer: Any) -> Application:
        """Return where an optimizer is applied to variables on the servers."""


_numbers = itertools.count()
_registered: WeakValueDictionary[int, Any] = WeakValueDictionary()


def register_owner(owner: object) -> None:
    """Give a model or variable, which is being made, the next number."""
    _registered[next(_numbers)] = owner


def registered_owners() -> Iterator[tuple[int, Any]]:
    """Yield every model and variable that is still used, with its number, in their order."""
    yield from sorted(_registered.items(), key=lambda item: item[0])
