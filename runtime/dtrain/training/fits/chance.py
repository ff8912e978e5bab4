"""Random numbers of a training step: for layers that drop values, and `step.rng`.

They follow from the seed, the call of `fit`, the batch and its part, and from nothing else. A part thus has
the same gradient whichever replica computes it, however often, after any restart, rollback or resume.
"""

import numpy as np

STEPS = 1
"""The last word of the seeds of steps: numpy takes a shorter seed for one that ends in zeros."""


def chance_of(seed: int, first_step: int, parts: int, number: int) -> np.random.Generator:
    """Make the generator of a part.

    Args:
        seed: of the run.
        first_step: at which the call of `fit` began.
        parts: into how many every batch is cut.
        number: of the part.
    """
    batch, part = divmod(number, parts)
    return np.random.default_rng([seed, batch, part, first_step, STEPS])
