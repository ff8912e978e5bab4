"""Random numbers of a training step: for layers that drop values, and `step.rng`.

They follow from the seed, the call of `fit`, the batch and its part, and from nothing else. A part thus has
the same gradient whichever replica computes it, however often, after any restart, rollback or resume.
"""

import numpy as np

from dtrain.strategies.interface import Session

STEPS = 1
"""The last word of the seeds of steps: numpy takes a shorter seed for one that ends in zeros."""


def chance_of(seed: int, session: Session) -> np.random.Generator:
    """Make the generator of the part that a session computes next; asynchronous training has one part a
    batch.
    """
    batch, part = divmod(session.part, session.cut.parts)
    return np.random.default_rng([seed, batch, part, session.first_step, STEPS])
