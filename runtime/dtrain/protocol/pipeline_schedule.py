"""The order in which a stage of a pipeline computes: rule *Stages* (docs/design/pipelines.md#the-order).

1. A batch is cut into microbatches. Every stage passes each of them forward and back once, in their order.
2. gpipe: a stage passes all forward, then all back. Its memory grows with the number of microbatches.
3. 1f1b: stage s of S passes S - 1 - s forward, then alternates one forward and one back, then passes back
   what is left. So at most S - s are in flight there.
4. Both wait for all of a batch before the variables change: the gradients are added up in the order of the
   microbatches, so that both give the same bits.
"""

from collections.abc import Iterator
from typing import NamedTuple

from dtrain.config.choices import Schedule


class Work(NamedTuple):
    """One microbatch passes through a stage, forward or back."""

    back: bool
    microbatch: int


def order(schedule: Schedule, stages: int, stage: int, microbatches: int) -> Iterator[Work]:
    """Yield what a stage does in one step, in its order."""
    ahead = microbatches if schedule is Schedule.GPIPE else min(microbatches, stages - 1 - stage)
    for each in range(microbatches + ahead):
        if each < microbatches:
            yield Work(False, each)
        if each >= ahead:
            yield Work(True, each - ahead)


def in_flight(schedule: Schedule, stages: int, stage: int, microbatches: int) -> int:
    """Return of how many microbatches a stage keeps the activations at most."""
    return microbatches if schedule is Schedule.GPIPE else min(microbatches, stages - stage)


def bubble(stages: int, microbatches: int) -> float:
    """Return the share of a step in which a stage waits, where all stages take equally long."""
    return (stages - 1) / (microbatches + stages - 1)
