"""`null` and `none` mean the same in every source of settings; a field's type says which one it takes."""

from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from dtrain.config.plain_data.kinds import is_section, keys_of, words_of

NONE = "none"


def is_none(value: Any) -> bool:
    """Whether a value means nothing: null, or `none` in a spelling that YAML takes for `null` too."""
    return value is None or (isinstance(value, str) and value in (NONE, "None", "NONE"))


def with_nulls(value: Any, kind: Any) -> Any:
    """Write `none` as null wherever a field can be null, and null as `none` wherever that is one of a field's
    choices.

    Args:
        value: plain data, not yet checked: what has another form than `kind` stays as it is.
        kind: the type of the field or section.
    """
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if is_none(value):
        if NoneType in members or is_section(kind) or get_origin(kind) is dict:
            return None
        return NONE if any(NONE in words_of(member) for member in members) else value
    if isinstance(value, dict):
        return _mapping_with_nulls(value, members)
    if isinstance(value, list):
        items = next((get_args(member) for member in members if get_origin(member) is tuple), ())
        kinds = [items[0]] * len(value) if items[1:] == (...,) else items
        return (
            [with_nulls(item, each) for item, each in zip(value, kinds, strict=True)]
            if len(kinds) == len(value)
            else value
        )
    return value


def _mapping_with_nulls(value: dict[str, Any], members: tuple[Any, ...]) -> dict[str, Any]:
    section = next((member for member in members if is_section(member)), None)
    if section is not None:
        kinds = keys_of(section)
        return {key: with_nulls(item, kinds.get(key, object)) for key, item in value.items()}
    items = next((get_args(member)[1] for member in members if get_origin(member) is dict), object)
    return {key: with_nulls(item, items) for key, item in value.items()}
