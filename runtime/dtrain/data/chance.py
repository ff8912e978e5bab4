"""Chance in functions of elements: addressed by seed and element, and a warning where it is not.

What a function draws from numpy's global state depends on the process that calls it and on its earlier calls.
Which replica computes an element differs from run to run, so its draws would too.
"""

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

WATCHED_CALLS = 2
"""Calls of a function after which it is taken to leave the global state alone."""


def generator_of(seed: int, iteration: tuple[int, ...], index: int) -> np.random.Generator:
    """Return the generator of one element: the same in every process, and another in each iteration."""
    return np.random.default_rng([seed % 2**32, *iteration, index])


class ElementChance:
    """Generators for layers that a function calls, made when they ask: of one element, in one iteration."""

    __slots__ = ("_address", "_generators", "_seed")

    def __init__(self, seed: int | None, iteration: tuple[int, ...], index: int) -> None:
        self._seed = (seed or 0) % 2**32
        self._address = (*iteration, index, _LAYERS)
        self._generators: dict[int | None, np.random.Generator] = {}

    def generator(self, layer: object, seed: int | None) -> np.random.Generator:
        """Return the generator of a layer: its own by its seed, or one for all layers without a seed."""
        key = None if seed is None else id(layer)
        if key not in self._generators:
            own_seed = self._seed if seed is None else seed % 2**32
            self._generators[key] = np.random.default_rng([own_seed, *self._address])
        return self._generators[key]


_LAYERS = 1
"""The last word of seeds of layers: they draw other numbers than the function's own generator."""
_current: ContextVar[ElementChance | None] = ContextVar("element_chance", default=None)


@contextmanager
def addressed(seed: int | None, iteration: tuple[int, ...], index: int) -> Iterator[None]:
    """Let layers that are called within draw by the address of an element."""
    token = _current.set(ElementChance(seed, iteration, index))
    try:
        yield
    finally:
        _current.reset(token)


def element_chance() -> ElementChance | None:
    return _current.get()


class Watched:
    """A function of elements; warns once if it draws from the global state of numpy or `random`."""

    computed = frozenset({"_left"})

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._left = WATCHED_CALLS

    def __call__(self, *arguments: Any) -> Any:
        if self._left <= 0:
            return self.function(*arguments)
        self._left -= 1
        before = _drawn()
        result = self.function(*arguments)
        if _drawn() != before and self._left >= 0:
            self._left = -1
            name = getattr(self.function, "__name__", type(self.function).__name__)
            warnings.warn(
                f"map: {name} draws from the global state of numpy.random or random, so results depend on "
                "which replica and which thread computes an element; write map(function, seed=0) with "
                "function(element, rng), where rng is a numpy Generator that follows from seed and element",
                stacklevel=2,
            )
        return result


def _drawn() -> Any:
    _, keys, position, _, cached = np.random.get_state(legacy=True)
    return keys[0], keys[-1], position, cached, hash(random.getstate())
