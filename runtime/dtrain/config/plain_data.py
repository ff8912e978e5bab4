"""The form of plain data, as files and options give it: every mistake at once, with its place.

`null` and `none` mean the same in every source of settings; a field's type says which one it takes.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from enum import EnumType
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

NONE = "none"
_Number = TypeVar("_Number")
AtLeast0 = Annotated[_Number, msgspec.Meta(ge=0)]
AtLeast1 = Annotated[_Number, msgspec.Meta(ge=1)]
"""The type of a finite number with a minimum; None is none."""


def is_none(value: Any) -> bool:
    """Whether a value means nothing: null, or `none` in a spelling that YAML takes for `null` too."""
    return value is None or (isinstance(value, str) and value in (NONE, "None", "NONE"))


def with_nulls(value: Any, kind: Any) -> Any:
    """Write `none` as null where `kind` can be null, and null as `none` where that is one of its choices.

    What has another form than `kind` stays as it is.
    """
    members = _union(kind)
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


KeyPath = tuple[str | int, ...]
Problem = tuple[KeyPath, str]
"""The path of keys from the top of the section, and what is wrong and what was expected."""


def below(keys: KeyPath, problems: Iterable[Problem]) -> Iterator[Problem]:
    """Yield the problems of a section that stands below these keys."""
    return (((*keys, *path), text) for path, text in problems)


def too_little(value: float | None, minimum: float) -> str | None:
    """Return what is wrong with a number that may not be less; None is none."""
    if value is None or minimum <= value < math.inf:
        return None
    return f"expected a number of at least {minimum}, found {value}"


NAMES: dict[Any, str] = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_FOUND_LENGTH_MAX = 60
_MOMENT = {
    "at_step": "a step, or [first, last] of which the seed draws one",
    "at_s": "seconds, or [least, most] for the seed to draw",
}
_ADDRESSES = "a count or a list of addresses such as [machine-a:2222]"
_PLACES = "spread, pack, a host or a list of hosts"
_EXPECTED = {
    **_MOMENT,
    **dict.fromkeys(("chief", "worker", "ps", "evaluator"), _ADDRESSES),
    **dict.fromkeys((f"place.{role}" for role in ("chief", "worker", "ps", "evaluator")), _PLACES),
    "between": "a list of two tasks",
    "local_steps": "a number of steps",
    "hosts": "a list such as [h1, h2:4], or a text such as h1,h2:4",
    "place": f"spread, pack, or a mapping of roles to {_PLACES}",
    **dict.fromkeys(("sampler", "pruner"), "a name, or a name with options such as {tpe: {seed: 0}}"),
    "parallel_trial_count": "a number of trials, or auto",
    **dict.fromkeys(("trial", "spec"), "a file with a spec, or the keys of one"),
    "memory": "bytes, or a text such as 2GB",
    "time": "a time such as 2:00:00, or minutes",
}
"""Descriptions of the values that a key takes where its type alone does not say it well."""


def is_section(kind: Any) -> bool:
    return _is_struct(kind) or is_typeddict(kind)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


@cache
def keys_of(section: Any) -> dict[str, Any]:
    """Return the keys of a section, each with its type."""
    hints = get_type_hints(section, include_extras=True)
    return {name: hints[name] for name in section.__struct_fields__} if _is_struct(section) else hints


@cache
def members_of(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the type itself, without None and without ranges."""
    members = (_ranged(member)[0] for member in _union(kind))
    return tuple(member for member in members if member is not NoneType)


def _union(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _ranged(kind: Any) -> tuple[Any, float | None]:
    """Return a type without its range, and the least number that is in it."""
    if get_origin(kind) is not Annotated:
        return kind, None
    plain, meta = get_args(kind)
    return plain, meta.ge


def words_of(kind: Any) -> tuple[str, ...]:
    if isinstance(kind, EnumType):
        return tuple(map(str, kind.__members__.values()))
    return get_args(kind) if get_origin(kind) is Literal else ()


def mistakes(
    value: Any, kind: Any, path: KeyPath = (), show: Callable[[Any], str] = json.dumps
) -> Iterator[Problem]:
    """Yield what of plain data has not the form of a type.

    Args:
        value: mappings with text keys, lists and scalars.
        kind: a section, or the type of a key.
        path: where the value stands.
        show: writes what was found: as JSON in a spec, as Python in a program.
    """
    members = members_of(kind)
    member = members[0] if len(members) == 1 else _of_the_form(value, members)
    if value is None and NoneType in get_args(kind):
        return
    if is_section(member):
        yield from _section_mistakes(value, member, path, show)
    elif get_origin(member) is dict:
        yield from _mapping_mistakes(value, member, path, show)
    elif get_origin(member) is tuple and get_args(member)[1:] == (...,):
        yield from _list_mistakes(value, get_args(member)[0], path, show)
    elif any(_fits(value, each) for each in members):
        ranges = map(_ranged, _union(kind)) if isinstance(value, int | float) else ()
        minima = (minimum for _, minimum in ranges if minimum is not None)
        yield from ((path, text) for minimum in minima if (text := too_little(value, minimum)))
    else:
        expected = _described(path) if len(members) > 1 or get_origin(kind) is tuple else None
        expected = expected or " or ".join(map(_words, members))
        yield path, f"expected {expected}, found {found(value, show)}"


def _of_the_form(value: Any, members: tuple[Any, ...]) -> Any:
    """Return the member of a union whose own mistakes say more than that the value is none of the union."""
    if isinstance(value, dict):
        return next((member for member in members if is_section(member) or _of_known_keys(member)), None)
    if isinstance(value, list):
        lists = [member for member in members if get_args(member)[1:] == (...,)]
        return next((member for member in lists if len(members_of(get_args(member)[0])) > 1), None)
    return None


def _of_known_keys(kind: Any) -> bool:
    return get_origin(kind) is dict and bool(words_of(get_args(kind)[0]))


def _described(path: KeyPath) -> str | None:
    keys = [".".join(map(str, path[-2:])), str(path[-1])]
    return next((_EXPECTED[key] for key in keys if key in _EXPECTED), None)


def _section_mistakes(
    value: Any, section: Any, path: KeyPath, show: Callable[[Any], str]
) -> Iterator[Problem]:
    if not isinstance(value, dict):
        yield path, f"expected a mapping of keys to values, found {found(value, show)}"
        return
    keys = keys_of(section)
    for key, each in value.items():
        if key in keys:
            yield from mistakes(each, keys[key], (*path, key), show)
        else:
            yield (*path, key), _below(key, keys) or unknown_key(key, keys)
    if _is_struct(section):
        needed = (field.name for field in msgspec.structs.fields(section) if field.required)
        yield from (((*path, name), "expected a value, found none") for name in needed if name not in value)


def _below(key: str, keys: dict[str, Any]) -> str | None:
    """Return where a key belongs that stands above its section; None where no section has it."""
    homes = [f"{name}.{key}" for name, kind in keys.items() if is_section(kind) and key in keys_of(kind)]
    return f"unknown key; did you mean {' or '.join(homes)}?" if homes else None


def _mapping_mistakes(value: Any, kind: Any, path: KeyPath, show: Callable[[Any], str]) -> Iterator[Problem]:
    if not isinstance(value, dict):
        yield path, f"expected a mapping of keys to values, found {found(value, show)}"
        return
    names, item = get_args(kind)
    for key, each in value.items():
        if (known := words_of(names)) and key not in known:
            yield (*path, key), unknown_key(key, known)
        else:
            yield from mistakes(each, item, (*path, key), show)


def _list_mistakes(value: Any, item: Any, path: KeyPath, show: Callable[[Any], str]) -> Iterator[Problem]:
    if not isinstance(value, list):
        yield path, f"expected a list, found {found(value, show)}"
        return
    for index, each in enumerate(value):
        yield from mistakes(each, item, (*path, index), show)


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError):
        return False
    return True


def _words(kind: Any) -> str:
    if words := words_of(kind):
        return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
    if get_origin(kind) is tuple:
        return "a list"
    return "a mapping of keys to values" if is_section(kind) else NAMES[kind]


def found(value: Any, show: Callable[[Any], str]) -> str:
    text = show(value)
    return text if len(text) <= _FOUND_LENGTH_MAX else f"{text[:_FOUND_LENGTH_MAX]}..."


def unknown_key(key: str, names: Iterable[str]) -> str:
    """Return what is wrong with a key that is none of the names."""
    import difflib  # only where something is wrong

    known = list(names)
    longer = [name for name in known if key and name.startswith(f"{key}_")]
    near = longer if len(longer) == 1 else difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if near:
        return f"unknown key; did you mean {near[0]}?"
    return f"unknown key; expected one of {', '.join(known)}"
