"""Objects as data: a class name and its constructor arguments in JSON types, there and back.

Layers, losses, metrics, optimizers, schedules, initializers and regularizers are such objects. Every
constructor argument must be kept in an attribute of the same name. Nothing is pickled or evaluated: a name
that is neither in the table of known classes nor among the caller's custom objects is an error.
"""

import inspect
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from math import isfinite
from typing import Any, Self, TypeAlias, TypeVar

import numpy as np

from dtrain.absent_names import instead
from dtrain.errors import ProgramError, SpecError

T = TypeVar("T")

CustomObjects: TypeAlias = Mapping[str, Any]
"""A program's own classes (and `Activation`s) by the names under which data mention them."""

NO_OBJECTS: CustomObjects = {}

REGISTERED: dict[str, Any] = {}
"""Custom objects of every reading, by name; see `dt.utils.register_keras_serializable`."""


class Configurable:
    """An object that its constructor arguments describe."""

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Raise a `SpecError` for an argument of Keras that absent_names.txt lists."""
        made: type = cls
        for name in sorted(named.keys() - argument_names(made)):
            if use := instead().get(("arguments", name)):
                raise SpecError(f"{cls.__name__}: has no argument {name}; {use}")
        configurable = super().__new__(cls)
        configurable._begin_life()
        return configurable

    def _begin_life(self) -> None:
        """Remember what surrounds the place where the object is made; its arguments come later."""

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments as JSON types."""
        cls: type = type(self)
        names = argument_names(cls)
        # a get_config of the program's own calls this one, and adds its arguments
        if "get_config" in vars(cls):
            names = tuple(name for name in names if hasattr(self, name) and is_data(getattr(self, name)))
        if lost := [name for name in names if not hasattr(self, name)]:
            raise SpecError(
                f"{cls.__name__}: its argument {lost[0]} is kept in no attribute of that name; write "
                f"self.{lost[0]} = {lost[0]} in __init__, or a get_config"
            )
        return {name: to_data(getattr(self, name)) for name in names}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return an equal object from the result of `get_config`."""
        return cls(**config)

    def copy(self) -> Self:
        """Return a new object with the same arguments."""
        return self.from_config(self.get_config())


class OfBaseClass:
    """An attribute that `__init__` of a base class sets; a `ProgramError` if a class has not called it."""

    def __get__(self, owner: Any, kind: type) -> Any:
        if owner is None:
            return self
        raise ProgramError(f"{kind.__name__}: expected its __init__ to call super().__init__() first")


def to_data(value: Any) -> Any:
    """Return `value` in JSON types: a Configurable by class and config, a named object as its name."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return _finite(value)
    if isinstance(value, np.ndarray | np.generic):
        return to_data(value.tolist())
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, Mapping):
        return {str(key): to_data(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_data(each) for each in value]
    if isinstance(value, type) and issubclass(value, Configurable):
        value = value()
    if isinstance(value, Configurable):
        return {"class_name": type(value).__name__, "config": to_data(value.get_config())}
    if isinstance(getattr(value, "name", None), str):
        return value.name
    raise SpecError(
        f"{value!r} cannot be written as data; expected JSON types, or an object with get_config()"
    )


def _finite(number: float) -> float:
    if not isfinite(number):
        raise SpecError(f"{number} cannot be written as data; expected a finite number")
    return float(number)


def is_data(value: Any) -> bool:
    """Return whether `to_data` can write a value."""
    try:
        to_data(value)
    except SpecError:
        return False
    return True


def from_data(
    identifier: str | Mapping[str, Any] | T,
    kind: str,
    classes: Mapping[str, type[T]],
    custom_objects: CustomObjects = NO_OBJECTS,
) -> T:
    """Return the object that a name (with default arguments) or the result of `to_data` stands for.

    Args:
        kind: the kind of object, for the message of an error.
        custom_objects: classes that come before `classes`; they are also looked up for the arguments.

    Raises:
        SpecError: no class has that name, or the arguments are wrong.
    """
    if isinstance(identifier, Configurable):
        return identifier
    if isinstance(identifier, type):
        raise SpecError(
            f"{kind}: expected an object, found the class {identifier.__name__}; write "
            f"{identifier.__name__}(...)"
        )
    custom_objects = {**REGISTERED, **custom_objects}
    name: Any = identifier
    arguments: Any = {}
    if isinstance(identifier, Mapping):
        name = identifier.get("class_name")
        arguments = identifier.get("config", {})
    known = {**classes, **{key: each for key, each in custom_objects.items() if isinstance(each, type)}}
    if not isinstance(name, str) or name not in known:
        raise SpecError(
            unknown_name(name, kind, known, dict.fromkeys(each.__name__ for each in known.values()))
        )
    if not isinstance(arguments, Mapping):
        raise SpecError(f"{kind} {name}: expected its arguments by name, found {arguments!r}")
    cls: Any = known[name]
    try:
        built: T = cls.from_config(
            {key: _argument(key, value, custom_objects) for key, value in arguments.items()}
        )
    except TypeError as error:
        raise SpecError(f"{kind} {name}: its arguments do not fit: {error}") from error
    return built


def unknown_name(name: object, kind: str, known: Iterable[str], shown: Iterable[str]) -> str:
    """Return the message about an unknown name: the nearest known one, else all of `shown`."""
    by_lower = {each.lower(): each for each in known}
    lower = str(name).lower()
    near = get_close_matches(lower, by_lower)
    # letters in the wrong order come first: adma is adam, not adamax
    near.sort(key=lambda each: sorted(each) != sorted(lower))
    return f"unknown {kind} {name!r}; " + (
        f"do you mean {by_lower[near[0]]}?" if near else f"known are {', '.join(shown)}"
    )


def _argument(name: str, value: Any, custom_objects: CustomObjects) -> Any:
    """Return an argument, custom objects in the place of the data that name them."""
    if isinstance(value, str) and name.endswith(("activation", "function")):
        return custom_objects.get(value, value)
    if isinstance(value, Mapping) and value.get("class_name") in custom_objects:
        return from_data(value, name, {}, custom_objects)
    return value


@cache
def snake_case(class_name: str) -> str:
    """Return Keras's name of a layer class: ``max_pooling2d`` for ``MaxPooling2D``, ``lstm`` for ``LSTM``."""
    words = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", class_name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", words).lower()


@cache
def argument_names(cls: type) -> tuple[str, ...]:
    names: list[str] = []
    for each in cls.__mro__:
        if "__init__" not in vars(each):
            continue
        parameters = list(inspect.signature(vars(each)["__init__"]).parameters.values())[1:]
        names += [
            p.name
            for p in parameters
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in names
        ]
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            break
    return tuple(names)
