"""The interface of models and variables to values that lie on servers, in a program with a coordinator."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dtrain.types import Array

Owner = Any
"""A model, a `Variable`, or a metric."""


class SharedValues(Protocol):
    """The values of all models and variables of a program; see `strategies.coordinator`."""

    def holds(self, owner: Owner) -> bool:
        """Return whether the values of a model or variable lie on the servers."""

    def weights(self, owner: Owner) -> dict[str, Array]:
        """Return the newest values of every variable of an owner, by name.

        Within a closure they are as new as the closure, or its last change. The arrays may be used until the
        next call; nothing may be written to them.
        """

    def assign(self, owner: Owner, values: Mapping[str, Array], *, add: bool = False) -> dict[str, Array]:
        """Let variables take these values, or grow by them; return what they are then."""

    def apply_gradients(self, optimizer: Any, gradients: Sequence[tuple[Owner, str, Any]]) -> None:
        """Let an optimizer update variables: one update of its iterations.

        Args:
            optimizer: of a compiled model, or one that the program has made at module level.
            gradients: owner, name of a variable, and gradient: an array or `SparseRows`.
        """

    def iterations(self, optimizer: Any) -> int:
        """Return how many updates an optimizer has made in all workers."""
