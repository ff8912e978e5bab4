"""An element that may be missing, as at the end of a dataset. Source: `tf.experimental.Optional`."""

from collections.abc import Callable
from typing import Any

from dtrain.data.structure import spec_of
from dtrain.errors import InvalidArgumentError

NO_VALUE = object()
"""Stands for the value that an optional does not have."""


class Optional:
    """A value or none; made by `from_value` and `empty`.

    Args:
        value: the value, or `NO_VALUE`.
        spec: returns the structure of `TensorSpec`s that it fits.
    """

    def __init__(self, value: Any, spec: Callable[[], Any]) -> None:
        """Hold a value, or `NO_VALUE`; `spec` returns the structure of `TensorSpec`s that it fits."""
        self._value = value
        self._spec = spec

    @staticmethod
    def from_value(value: Any) -> "Optional":
        """Return an optional that has a value."""
        return Optional(value, lambda: spec_of(value))

    @staticmethod
    def empty(element_spec: Any) -> "Optional":
        """Return an optional without a value; it would fit the structure of `TensorSpec`s."""
        return Optional(NO_VALUE, lambda: element_spec)

    @property
    def element_spec(self) -> Any:
        """The structure of `TensorSpec`s that the value fits."""
        return self._spec()

    def has_value(self) -> bool:
        """Return whether there is a value."""
        return self._value is not NO_VALUE

    def get_value(self) -> Any:
        """Return the value.

        Raises:
            InvalidArgumentError: there is none.
        """
        if self._value is NO_VALUE:
            raise InvalidArgumentError(
                "get_value: the optional has no value: the iterator is at its end; ask has_value() before"
            )
        return self._value

    def __repr__(self) -> str:
        """Return the value, if there is one."""
        return f"Optional({self._value!r})" if self.has_value() else "Optional(no value)"
