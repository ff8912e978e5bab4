"""Random numbers of layers: a generator, or a function that makes one when the first layer asks (rare)."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

Chance: TypeAlias = np.random.Generator | Callable[[], np.random.Generator]


def generator_of(chance: Chance) -> np.random.Generator:
    """Return the generator, which is made if `chance` is a function."""
    return chance if isinstance(chance, np.random.Generator) else chance()
