"""The `environment` and `secrets` of a spec: variables that every task gets besides those of dtrain."""

import re
from collections.abc import Iterator, Mapping, Sequence

from dtrain.config.problems import Problem

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWN = ("DTRAIN_", "TF_CONFIG")
"""Beginnings of names that dtrain itself sets."""
VALUE_MAX = 100_000
"""Characters: Linux takes variables of at most 128 KiB."""


def problems(environment: Mapping[str, str], secrets: Sequence[str]) -> Iterator[Problem]:
    """Yield the mistakes that types do not exclude."""
    for name, value in environment.items():
        if reason := _misnamed(name):
            yield ("environment", name), reason
        if "\0" in value or len(value) > VALUE_MAX:
            yield ("environment", name), f"expected a text without NUL, of at most {VALUE_MAX} characters"
    for index, name in enumerate(secrets):
        if reason := _misnamed(name):
            yield ("secrets", index), reason
        elif name in environment:
            yield ("secrets", index), f"{name} stands in environment, too, where everybody may read it"


def missing(secrets: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return why tasks cannot get the secrets of a spec from this environment; None if they can."""
    absent = [name for name in secrets if name not in environment]
    if not absent:
        return None
    are = "is" if len(absent) == 1 else "are"
    return f"secrets: {', '.join(absent)} {are} not set in the environment here"


def _misnamed(name: str) -> str | None:
    if not _NAME.fullmatch(name):
        return f"expected the name of a variable, of letters, digits and _, found {name[:80]!r}"
    if name.startswith(_OWN):
        return f"{name} is a variable that dtrain sets itself"
    return None
