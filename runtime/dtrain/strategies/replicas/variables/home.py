"""The place of a variable's value that lies outside of this process: on servers; see `strategies.shared`."""

from typing import Any, Protocol

from dtrain.learning.optimizers.applied import Application
from dtrain.types import Array


class Home(Protocol):
    """The owner of the values of variables."""

    def read(self, variable: Any) -> Array:
        """Return the newest value."""

    def change(self, variable: Any, value: Array, *, add: bool) -> None:
        """Let the variable take a value, or grow by it."""

    def application_of(self, optimizer: Any) -> Application:
        """Return where an optimizer is applied to variables there."""
