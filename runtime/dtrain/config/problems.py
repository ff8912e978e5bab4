"""The mistakes in a section, and their places."""

import math
from collections.abc import Iterator
from typing import Any

Problem = tuple[tuple[str | int, ...], str]
"""The path of keys from the top of the section, and what is wrong and what was expected."""


def at_least(section: Any, minimum: float, *names: str) -> Iterator[Problem]:
    """Yield a problem for each number that is below its minimum; None is no number."""
    for name in names:
        if problem := too_little(getattr(section, name), minimum):
            yield (name,), problem


def too_little(value: float | None, minimum: float) -> str | None:
    """Return what is wrong with a number that may not be less; None is none."""
    if value is None or minimum <= value < math.inf:
        return None
    return f"expected a number of at least {minimum}, found {value}"
