"""Variables of the environment that hold JSON, as engines write them."""

import json
from collections.abc import Mapping
from typing import Any

from dtrain.errors import SpecError


def read_object(environment: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return the object that a variable holds.

    Raises:
        SpecError: the variable holds none.
    """
    value = _read(environment[name], name)
    if not isinstance(value, dict):
        raise SpecError(f"{name} in the environment: expected an object in braces, found {_shown(value)}")
    return value


def read_texts(environment: Mapping[str, str], name: str) -> list[str]:
    """Return the list of texts that a variable holds.

    Raises:
        SpecError: the variable holds none, or an empty one.
    """
    value = _read(environment[name], name)
    if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
        raise SpecError(f"{name} in the environment: expected a list of names, found {_shown(value)}")
    return value


def _read(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{name} in the environment is not JSON: {str(error)[:200]}") from None


def _shown(value: Any) -> str:
    return json.dumps(value)[:80]
