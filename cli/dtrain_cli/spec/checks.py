"""From plain data to a `RunSpec`, or every mistake at once, each with the path of its field.

Types are pydantic's business (in strict mode: `workers: "3"` is a text), ranges and rules are
`RunSpec.problems()`'s. A field whose type is wrong is left out when the rules are looked at, so that one
mistake is not reported as three.
"""

import dataclasses
import difflib
import json
import re
import typing
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dtrain.config import DEFAULT_RESTART, ROLES, Problem, RunSpec, with_nulls
from dtrain_cli.spec.tree import KeyPath

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "a mapping of keys to values",
    "dataclass_type": "a mapping of keys to values",
    "tuple_type": "a list",
}
_ADDRESSES = "a count or a list of addresses such as [machine-a:2222]"
_UNIONS = {
    **{("cluster", role): _ADDRESSES for role in ROLES},
    ("training", "compression"): "none, bf16, fp16 or {top_k: fraction}",
}
_MOMENTS = {
    "at_step": "a step, or [first, last] of which the seed draws one",
    "at_s": "seconds, or [least, most] for the seed to draw",
}
_ANY_CLUSTER = {"chief": 1, "worker": 10**6, "ps": 10**6, "evaluator": 1}
"""Has every task that a spec may name: it stands in for a cluster section that cannot be read."""
_FIELD_DEPTH = {"restart": 3}
"""How many keys lead to a field where they are not two: the section's and the field's."""
_FOUND_LENGTH_MAX = 60
_FOUND_OUT = ("said",)
"""The fields of `RunSpec` that are found out and never written."""


def check_spec(
    data: dict[str, Any], rules: Callable[[RunSpec], Iterable[Problem]]
) -> tuple[RunSpec | None, list[Problem]]:
    """Check a whole spec.

    Args:
        data: the spec as plain data.
        rules: yields what is wrong beyond types.

    Returns:
        The spec, or None if its types are wrong, and everything that is wrong with it (nothing: it can be
        used).
    """
    data = {key: value for key, value in with_nulls(data, RunSpec).items() if value is not None}
    said = _keys_said(data)
    data = _with_rules_of_roles(data)
    adapter = TypeAdapter(RunSpec)
    problems: list[Problem] = [
        ((name,), _unknown_key(name, _valid_names(()))) for name in _FOUND_OUT if name in data
    ]
    try:
        spec = adapter.validate_json(
            json.dumps(_without(data, {(name,) for name in _FOUND_OUT})), strict=True
        )
    except ValidationError as error:
        problems += _type_problems(error, data)
    else:
        return (None if problems else dataclasses.replace(spec, said=said)), [*problems, *rules(spec)]
    broken = {path[: _FIELD_DEPTH.get(str(path[0]), 2)] for path, _ in problems}
    rest = adapter.validate_json(json.dumps(_without(data, broken)), strict=True)
    return None, problems + [problem for problem in rules(rest) if not _follows_from(problem, broken)]


def _keys_said(data: dict[str, Any]) -> tuple[str, ...]:
    """Return the keys that the user gave, as `RunSpec.said` has them."""
    sections = [field.name for field in dataclasses.fields(RunSpec) if isinstance(data.get(field.name), dict)]
    below = [f"{name}.{key}" for name in sections for key in data[name]]
    return tuple(sorted([*(key for key in data if key not in sections), *below]))


def _with_rules_of_roles(data: dict[str, Any]) -> dict[str, Any]:
    """Fill in what a restart rule leaves out: a default may be another for another role."""
    rules = data.get("restart")
    if not isinstance(rules, dict):
        return data
    defaults = {role: dataclasses.asdict(rule) for role, rule in DEFAULT_RESTART.items()}
    filled = {
        role: {**defaults[role], **rule}
        for role, rule in rules.items()
        if role in defaults and isinstance(rule, dict)
    }
    return {**data, "restart": {**rules, **filled}}


def _without(data: dict[str, Any], broken: set[KeyPath]) -> dict[str, Any]:
    """The sound fields of every section; a broken cluster has all tasks instead."""
    sound = _pruned(data, broken)
    if any(path[0] == "cluster" for path in broken):
        sound["cluster"] = {**_ANY_CLUSTER, **sound.get("cluster", {})}
    return sound


def _pruned(data: dict[str, Any], broken: set[KeyPath]) -> dict[str, Any]:
    """Return the data without what lies at these paths."""
    kept = {key: value for key, value in data.items() if (key,) not in broken}
    for key in kept.keys() & {str(path[0]) for path in broken}:
        kept[key] = _pruned(kept[key], {path[1:] for path in broken if path[0] == key})
    return kept


def _follows_from(problem: Problem, broken: set[KeyPath]) -> bool:
    """Whether a rule may be broken only because a field that it speaks of was left out."""
    path, text = problem
    words = re.findall(r"\w+", text)
    if "replicas" in words and any(left_out[0] == "cluster" for left_out in broken):
        return True
    return any(
        left_out[:1] == path[:1] and (len(left_out) == 1 or left_out[-1] in (*path[1:], *words))
        for left_out in broken
    )


def _type_problems(error: ValidationError, data: dict[str, Any]) -> list[Problem]:
    problems: dict[KeyPath, str] = {}
    for row in error.errors(include_url=False):
        path, text = _type_problem(dict(row), data)
        problems.setdefault(path, text)  # a union reports one row for each of its members
    return list(problems.items())


def _type_problem(row: dict[str, Any], data: Any) -> Problem:
    """One row of pydantic's in the words of a spec."""
    path = _written_path(row["loc"], data)
    found = _found(row["input"])
    match row["type"]:
        case "unexpected_keyword_argument":
            return path, _unknown_key(str(path[-1]), _valid_names(path[:-1]))
        case "literal_error" if row["loc"][-1] == "[key]":
            return path, _unknown_key(str(path[-1]), list(ROLES))
        case "missing":
            return row["loc"], "expected a value, found none"
    if moment := next((_MOMENTS[name] for name in path if name in _MOMENTS), None):
        return path, f"expected {moment}, found {found}"
    if path in _UNIONS:
        return path, f"expected {_UNIONS[path]}, found {_found(_value_at(path, data))}"
    if row["type"] == "literal_error":
        return path, f"expected {row['ctx']['expected'].replace(chr(39), '')}, found {found}"
    if row["type"] in _EXPECTED:
        return path, f"expected {_EXPECTED[row['type']]}, found {found}"
    return path, f"{row['msg']}, found {found}"


def _written_path(location: KeyPath, data: Any) -> KeyPath:
    """The part of pydantic's location that is in the data; the rest are its names for members of a union."""
    for length, key in enumerate(location):
        try:
            data = data[key]
        except (KeyError, IndexError, TypeError):
            return location[:length]
    return location


def _value_at(path: KeyPath, data: Any) -> Any:
    for key in path:
        data = data[key]
    return data


def _found(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _FOUND_LENGTH_MAX else f"{text[:_FOUND_LENGTH_MAX]}..."


def _unknown_key(key: str, names: list[str]) -> str:
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    return (
        f"unknown key; did you mean {near[0]}?"
        if near
        else f"unknown key; expected one of {', '.join(names)}"
    )


def _valid_names(path: KeyPath) -> list[str]:
    """The fields of the section at a path."""
    kind: Any = RunSpec
    for key in path:
        arguments = typing.get_args(kind)
        if dataclasses.is_dataclass(kind):
            kind = typing.get_type_hints(kind)[str(key)]
        else:
            kind = arguments[1] if isinstance(key, str) else arguments[0]
    return [
        field.name
        for field in dataclasses.fields(kind)
        if kind is not RunSpec or field.name not in _FOUND_OUT
    ]
