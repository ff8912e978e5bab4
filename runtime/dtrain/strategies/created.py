"""The models and variables of this process, numbered in the order in which the program has made them.

Every task runs the same program, so the same number means the same model or variable in all of them.
"""

import itertools
from collections.abc import Iterator
from typing import Any
from weakref import WeakValueDictionary

_numbers = itertools.count()
_made: WeakValueDictionary[int, Any] = WeakValueDictionary()


def register(owner: object) -> None:
    """Give a model or variable, which is being made, the next number."""
    _made[next(_numbers)] = owner


def made() -> Iterator[tuple[int, Any]]:
    """Yield every model and variable that is still used, with its number, in their order."""
    yield from sorted(_made.items(), key=lambda item: item[0])
