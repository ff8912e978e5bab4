"""Objects as data: a class name and its constructor arguments in JSON types, there and back.

The one rule: every constructor argument is kept in an attribute of the same name. Nothing is pickled or evaluated; a name that is
not in the table of known classes is an error.
"""

import inspect
import re
from collections.abc import Mapping
from typing import Any, Self, TypeVar

import numpy as np

from dtrain.errors import SpecError

T = TypeVar("T")


class Configurable:
    """An object that its constructor arguments describe."""

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments as JSON types."""
        return {name: to_data(getattr(self, name)) for name in _argument_names(type(self))}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """An equal object from the result of `get_config`."""
        return cls(**config)


def to_data(value: Any) -> Any:
    """`value` in JSON types: a Configurable becomes ``{"class_name", "config"}``; an object with a `name` becomes its name."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return to_data(value.tolist())
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, Mapping):
        return {str(key): to_data(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_data(each) for each in value]
    if isinstance(value, Configurable):
        return {"class_name": type(value).__name__, "config": value.get_config()}
    if isinstance(getattr(value, "name", None), str):
        return value.name
    raise SpecError(f"{value!r} cannot be written as data; expected JSON types, or an object with get_config()")


def from_data(data: Any, kind: str, classes: Mapping[str, type[T]]) -> T:
    """The object that ``{"class_name", "config"}`` describes, looked up in `classes`; `kind` names it in errors."""
    match data:
        case {"class_name": str(class_name), "config": dict(config)}:
            if class_name not in classes:
                raise SpecError(f"unknown {kind} {class_name!r}; known are {', '.join(sorted(classes))}")
            cls: Any = classes[class_name]
            try:
                built: T = cls.from_config(config)
            except TypeError as error:
                raise SpecError(f"{kind} {class_name}: its config does not fit: {error}") from error
            return built
    raise SpecError(f"{kind}: expected {{'class_name': ..., 'config': {{...}}}}, found {data!r}")


def snake_case(class_name: str) -> str:
    """Keras's name of a layer class: ``MaxPooling2D`` is ``max_pooling2d``, ``LSTM`` is ``lstm``."""
    words = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", class_name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", words).lower()


def _argument_names(cls: type) -> list[str]:
    """Names of the constructor's arguments, following ``**kwargs`` up the classes."""
    names: list[str] = []
    for each in cls.__mro__:
        if "__init__" not in vars(each):
            continue
        parameters = list(inspect.signature(vars(each)["__init__"]).parameters.values())[1:]
        names += [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in names]
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            break
    return names
