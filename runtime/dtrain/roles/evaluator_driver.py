"""Runs an `EvaluationSchedule` over a folder of checkpoints. It decides nothing."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dtrain import checkpoints
from dtrain.errors import CheckpointError
from dtrain.reporting import Reporter
from dtrain.roles.evaluator import CheckpointWeights, EvaluationSchedule, Next, Pace
from dtrain.run_files import RunFiles

POLL_S = 0.2


def follow_checkpoints(
    run_dir: Callable[[bool], Path | str | None], training_ended: Callable[[], bool], reporter: Reporter, pace: Pace
) -> Iterator[CheckpointWeights]:
    """Each newest checkpoint that was not yet evaluated, until training has ended and the final one was.

    Args:
        run_dir: the run directory; None until it is known. It is told whether training has ended.
        training_ended: nobody will write another checkpoint.
        reporter: told of the wait.
        pace: how often.
    """
    schedule, start_s = EvaluationSchedule(pace), time.monotonic()
    while True:
        ended = training_ended()  # before the look at the folder: what was written before the end is seen
        known = run_dir(ended)
        directory = RunFiles(Path(known)).checkpoints if known else None
        found = checkpoints.list_checkpoints(directory) if directory else []
        newest = found[-1] if found else None
        final = newest is not None and is_final(newest.path)
        step = schedule.next(newest.step if newest else None, final, ended, time.monotonic() - start_s)
        if step is Next.DONE:
            if not found:
                reporter.warn(f"training has ended and there is no checkpoint in {directory}: is it on this machine?")
            return
        if step is Next.WAIT or directory is None:
            reporter.waiting(f"the next checkpoint in {directory}" if directory else "the leader to say where it saves")
            time.sleep(POLL_S)
            continue
        reporter.waiting(None)
        try:
            with checkpoints.open_checkpoint(directory) as checkpoint:
                if checkpoint.warning:
                    reporter.warn(checkpoint.warning)
                if checkpoint.step != schedule.evaluated:  # else it is the one before a damaged one, evaluated already
                    weights = read_weights(checkpoint)
                    yield CheckpointWeights(checkpoint.step, weights, checkpoint.manifest.final)
                schedule.done(step, checkpoint.manifest.final and checkpoint.step == step)
        except CheckpointError:
            if ended:
                raise
            time.sleep(POLL_S)


def read_weights(checkpoint: checkpoints.Checkpoint) -> dict[str, Any]:
    """Every variable of a checkpoint; of sparse ones the rows are read when they are looked up."""
    plan = checkpoint.manifest.extra.get("plan", {"variables": []})
    sparse = {variable["name"] for variable in plan["variables"] if variable.get("sparse")}
    return {name: checkpoint.look_into(name) if name in sparse else checkpoint.read(name) for name in checkpoint.variables}


def is_final(path: Path) -> bool:
    """Whether a checkpoint says of itself that it is the last one; a damaged or vanished one does not."""
    try:
        return checkpoints.Manifest.decode((path / checkpoints.MANIFEST).read_bytes()).final
    except (OSError, CheckpointError):
        return False
