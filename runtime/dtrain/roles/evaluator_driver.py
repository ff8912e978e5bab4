"""Runs an `EvaluationSchedule` over a folder of checkpoints. It decides nothing."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dtrain import checkpoints
from dtrain.errors import CheckpointError
from dtrain.reporting import Reporter
from dtrain.roles.evaluator import CheckpointWeights, EvaluationSchedule, Next

POLL_S = 0.2


def follow_checkpoints(directory: Path, training_ended: Callable[[], bool], reporter: Reporter) -> Iterator[CheckpointWeights]:
    """Each newest checkpoint that was not yet evaluated, until training has ended and the final one was."""
    schedule = EvaluationSchedule()
    while True:
        ended = training_ended()  # before the look at the folder: what was written before the end is seen
        found = checkpoints.list_checkpoints(directory)
        step = schedule.next(found[-1].step if found else None, ended)
        if step is Next.DONE:
            return
        if step is Next.WAIT:
            reporter.waiting("the next checkpoint")
            time.sleep(POLL_S)
            continue
        reporter.waiting(None)
        try:
            with checkpoints.open_checkpoint(directory) as checkpoint:
                weights = {name: checkpoint.read(name) for name in checkpoint.variables}
                yield CheckpointWeights(checkpoint.step, weights, checkpoint.manifest.final)
                schedule.done(checkpoint.step, checkpoint.manifest.final)
        except CheckpointError:
            if ended:
                raise
            time.sleep(POLL_S)
