"""Models and variables whose values may lie on servers: their numbers, and the interfaces to such values.

Every task runs the same program and numbers what it makes in the order in which it makes it, so the same
number means the same model or variable in all of them. Values lie on servers in a program with a
coordinator.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol
from weakref import WeakValueDictionary

from dtrain.learning.optimizers.applied import Application
from dtrain.types import Array

Owner = Any
"""A model, a `Variable`, or a metric."""


class SharedValues(Protocol):
    """The values of all models and variables of a program that has a coordinator."""

    def holds(self, owner: Owner) -> bool:
        """Return whether the values of a model or variable lie on the servers."""

    def weights(self, owner: Owner) -> dict[str, Array]:
        """Return the newest values of every variable of an owner, by name.

        Within a closure they are as new as the closure, or its last change. The arrays may be used until the
        next call; nothing may be written to them.
        """

    def assign(self, owner: Owner, values: Mapping[str, Array], *, add: bool = False) -> dict[str, Array]:
        """Let variables take these values, or grow by them; return their new values."""

    def apply_gradients(self, optimizer: Any, gradients: Sequence[tuple[Owner, str, Any]]) -> None:
        """Let a compiled model's or a module's optimizer update variables: one update of its iterations."""

    def iterations(self, optimizer: Any) -> int:
        """Return how many updates an optimizer has made in all workers."""


class Home(Protocol):
    """The owner of the values of variables."""

    def read(self, variable: Any) -> Array:
        """Return the newest value."""

    def change(self, variable: Any, value: Array, *, add: bool) -> None:
        """Let the variable take a value, or grow by it."""

    def application_of(self, optimizer: Any) -> Application:
        """Return where an optimizer is applied to variables there."""


_numbers = itertools.count()
_registered: WeakValueDictionary[int, Any] = WeakValueDictionary()


def register_owner(owner: object) -> None:
    """Give a model or variable, which is being made, the next number."""
    _registered[next(_numbers)] = owner


def registered_owners() -> Iterator[tuple[int, Any]]:
    """Yield every model and variable that is still used, with its number, in their order."""
    yield from sorted(_registered.items(), key=lambda item: item[0])
