"""The order in which a stage of a pipeline computes: rule *Stages* (docs/design/pipelines.md#the-order).

1. A batch is cut into microbatches. Every stage passes each of them forward and back once, in their order.
2. gpipe: a stage passes all forward, then all back. Its memory grows with the number of microbatches.
3. 1f1b: stage s of S passes S - 1 - s forward, then alternates one forward and one back, then passes back
   what is left. So at most S - s are in flight there.
4. Both wait for all of a batch before the variables change: the gradients are added up in the order of the
   microbatches, so that both give the same bits.
5. pipedream and pipedream_2bw alternate as 1f1b does, and go on with the next batch instead of passing back
   what is left: a stage changes its variables as soon as it has passed all of a batch back. The pipeline
   drains where the leader wants it to, as at the end of an epoch.
6. pipedream: a batch uses the newest version of a stage when its first microbatch comes, forward and back;
   with vertical sync the version that stage 0 has then.
7. pipedream_2bw: the batch that makes version t + 1 uses version t - 1. With m >= S that version is there.
"""

from collections.abc import Iterator
from typing import NamedTuple

from dtrain.config.choices import Schedule

FLUSHES = (Schedule.GPIPE, Schedule.ONE_F_ONE_B)


class Work(NamedTuple):
    """One microbatch passes through a stage, forward or back."""

    back: bool
    microbatch: int


def order(
    schedule: Schedule, stages: int, stage: int, microbatches: int, flying: int = 0, *, drains: bool = True
) -> Iterator[Work]:
    """Yield what a stage does with one batch, in its order.

    Args:
        flying: how many microbatches of earlier batches are in flight; they have negative numbers.
        drains: whether none is in flight at the end.
    """
    ahead = microbatches if schedule is Schedule.GPIPE else stages - 1 - stage
    back = -flying
    for each in range(microbatches):
        yield Work(False, each)
        if each - back >= ahead:
            yield Work(True, back)
            back += 1
    for each in range(back, microbatches if drains else back):
        yield Work(True, each)


def base_version(schedule: Schedule, target: int, newest: int, first: int) -> int:
    """Return the version that the batch uses which makes version `target`.

    Args:
        newest: of the stage, or with vertical sync of stage 0.
        first: the oldest version that may be used, with which the pipeline was filled.
    """
    return max(first, target - 2) if schedule is Schedule.PIPEDREAM_2BW else newest


def in_flight(schedule: Schedule, stages: int, stage: int, microbatches: int) -> int:
    """Return of how many microbatches of one batch a stage keeps the activations at most."""
    return microbatches if schedule is Schedule.GPIPE else min(microbatches, stages - stage)


def versions_kept(schedule: Schedule, stages: int, stage: int) -> int:
    """Return how many versions of its variables a stage keeps at most, where a batch is one microbatch."""
    if schedule is Schedule.PIPEDREAM:
        return stages - stage
    return 1 if schedule in FLUSHES else 2


def bubble(stages: int, microbatches: int) -> float:
    """Return the share of a step in which a stage waits, where all stages take equally long."""
    return (stages - 1) / (microbatches + stages - 1)
