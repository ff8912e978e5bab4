"""Where layers get random numbers from: a generator, or what makes one, which costs as much as a small step and is rarely needed."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

Chance: TypeAlias = np.random.Generator | Callable[[], np.random.Generator]


def generator_of(chance: Chance) -> np.random.Generator:
    """Return the generator that is meant, or made."""
    return chance if isinstance(chance, np.random.Generator) else chance()
