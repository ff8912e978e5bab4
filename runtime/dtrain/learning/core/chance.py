"""Where layers get random numbers from: a generator, or what makes one: few ask for any, and making one takes
a while.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

Chance: TypeAlias = np.random.Generator | Callable[[], np.random.Generator]


def generator_of(chance: Chance) -> np.random.Generator:
    """Return the generator that is meant, or made."""
    return chance if isinstance(chance, np.random.Generator) else chance()
