"""Rules as data: losses, metrics, optimizers and schedules are dataclasses, whose config names their class and arguments.

Nothing is pickled or evaluated: a config is looked up in the table of known classes.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

from dtrain.errors import SpecError

T = TypeVar("T", bound="Described")


class Described:
    """A dataclass that can be written as JSON."""

    def get_config(self) -> dict[str, Any]:
        """``{"class_name", "config"}``, where config holds the arguments; `from_description` reads it."""
        arguments = {field.name: _as_data(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]
        return {"class_name": type(self).__name__, "config": arguments}


def from_description(identifier: str | Mapping[str, Any] | T, kind: str, classes: Mapping[str, type[T]]) -> T:
    """What a name (with default arguments) or a config describes; an object is returned as it is.

    Args:
        identifier: a key of `classes`, the result of `get_config`, or an object.
        kind: what is looked for, for the message of an error.
        classes: the known classes by name.

    Raises:
        SpecError: there is none of that name, or the arguments are wrong.
    """
    if isinstance(identifier, Described):
        return identifier
    name: Any = identifier
    arguments: Any = {}
    if isinstance(identifier, Mapping):
        name, arguments = identifier.get("class_name"), identifier.get("config", {})
    if not isinstance(name, str) or name not in classes:
        raise SpecError(f"{kind}: none is called {name!r}; there are {', '.join(classes)}.")
    if not isinstance(arguments, Mapping):
        raise SpecError(f"{kind} {name}: expected its arguments by name, found {arguments!r}.")
    try:
        return classes[name](**arguments)
    except TypeError as error:
        raise SpecError(f"{kind}: wrong arguments for {name}: {error}.") from error


def _as_data(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value.get_config() if isinstance(value, Described) else value
