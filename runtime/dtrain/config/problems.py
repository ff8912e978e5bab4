"""What can be wrong with a section, and where."""

import math
from collections.abc import Iterator
from typing import Any

Problem = tuple[tuple[str | int, ...], str]
"""Where (the path of keys from the top of the section) and what is wrong, what was expected."""
STRICT = {"extra": "forbid"}


def at_least(section: Any, minimum: float, *names: str) -> Iterator[Problem]:
    """Which of the numbers are less than they may be; None is none."""
    for name in names:
        value = getattr(section, name)
        if value is not None and not (math.isfinite(value) and value >= minimum):
            yield (name,), f"expected a number of at least {minimum}, found {value}"
