"""Runs an `EvaluationSchedule` over the checkpoints of a run, wherever they lie. It decides nothing."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dtrain import checkpoints
from dtrain.checkpoints import EvaluatedCheckpoint, Pace
from dtrain.config import CheckpointSection
from dtrain.errors import CheckpointError
from dtrain.messages.membership import NEXT_CHECKPOINT
from dtrain.process.clock import SYSTEM, Clock
from dtrain.roles.evaluator.machine import EvaluationSchedule, Next
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.runs.files import RunFiles
from dtrain.runs.reporting import Reporter

FETCH_S = 2.0
LATE_S = 5.0
"""How late a disk that several machines have may show a new folder."""


class FollowedRun:
    """The leader's run directory; where it is not visible, a copy of the newest from `checkpoint.remote`."""

    def __init__(
        self,
        section: CheckpointSection,
        visible: Callable[[], Path | str | None],
        warn: Callable[[str], None],
        clock: Clock = SYSTEM,
    ) -> None:
        self._remote = checkpoints.remote_copies(section.remote)
        self._visible = visible
        self._clock = clock
        self._warn = warn
        self._own = TemporaryDirectory(prefix="dtrain-evaluator-") if self._remote else None
        self._next_s = 0.0
        self._missed_s: float | None = None
        self._told = False

    def __call__(self, ended: bool) -> Path | str | None:
        """Return the directory of checkpoints; copies from before the end of training are in it."""
        known = self._visible()
        if known is None or RunFiles(Path(known)).checkpoints.is_dir():
            return known
        if self._own is None:
            self._look_for(Path(known))
            return known
        if ended or self._clock.now() >= self._next_s:
            self._next_s = self._clock.now() + FETCH_S
            self._fetch(RunFiles(Path(self._own.name)).checkpoints)
        return Path(self._own.name)

    def _look_for(self, directory: Path) -> None:
        """Warn once that the leader's disk is not this machine's, while there is time to act."""
        now_s = self._clock.now()
        self._missed_s = self._missed_s or now_s
        if not self._told and now_s - self._missed_s >= LATE_S and not directory.is_dir():
            self._told = True
            self._warn(
                f"the leader saves in {directory}, and {directory} is not on this machine: nothing can be "
                "evaluated; set checkpoint.remote to a URL, or let both have one disk"
            )

    def _fetch(self, folder: Path) -> None:
        try:
            if self._remote is not None and self._remote.fetch(folder):
                checkpoints.rotate(folder, keep=1, keep_every_n_hours=None, now=self._clock.wall())
        except CheckpointError as error:
            self._warn(str(error))


POLL_S = 0.2


def follow_checkpoints(
    run_dir: Callable[[bool], Path | str | None],
    training_ended: Callable[[], bool],
    is_last: Callable[[int], bool],
    reporter: Reporter,
    pace: Pace,
    fit: int = 1,
    clock: Clock = SYSTEM,
) -> Iterator[EvaluatedCheckpoint]:
    """Each newest checkpoint of a `fit` that was not yet evaluated, until it has ended and the final one was.

    Args:
        run_dir: the run directory; None until it is known. Its argument says whether training has ended.
        is_last: whether training ends with this step: a resumed one goes on from a checkpoint that was the
            final one.
        fit: which call of `fit` of the program, from 1. It has ended too when there are checkpoints of a
            later one.
    """
    schedule, start_s = EvaluationSchedule(pace), clock.now()
    while True:
        ended = training_ended()  # before the look at the folder: what was written before the end is seen
        known = run_dir(ended)
        directory = RunFiles(Path(known)).checkpoints if known else None
        found = checkpoints.list_checkpoints(directory) if directory else []
        newest, final, over = newest_of(found, fit)
        ended, final = ended or over, final and newest is not None and is_last(newest.step)
        step = schedule.next(newest.step if newest else None, final, ended, clock.now() - start_s)
        if step is Next.DONE:
            if not found:
                reporter.warn(
                    f"training has ended and there is no checkpoint in {directory}: is it on this machine?"
                    if directory
                    else "nothing was evaluated: training has ended, and no task is left that knows where "
                    "the leader has saved; the leader's output names the directory"
                )
            return
        if step is Next.WAIT or directory is None or newest is None:
            reporter.waiting(NEXT_CHECKPOINT if directory else "the leader to say where it saves")
            clock.sleep(POLL_S)
            continue
        reporter.waiting(None)
        try:
            with _opened(newest.path if over else directory, reporter) as checkpoint:
                if checkpoint.state.generation <= fit:  # else it was written since the look
                    # If the newest is damaged, the one before it may have been evaluated already, or be of an
                    # earlier fit.
                    if checkpoint.step != schedule.evaluated and checkpoint.state.generation == fit:
                        updates = checkpoint.step - checkpoint.state.lineage.origin
                        yield EvaluatedCheckpoint(checkpoint.step, read_weights(checkpoint), final, updates)
                    schedule.done(step, final and checkpoint.step == step)
        except CheckpointError:
            if over:  # it made room for those of the next call of `fit`, or is damaged
                return
            if ended:
                raise
            clock.sleep(POLL_S)


def follow_fit(
    link: HeartbeatLink,
    run: FollowedRun,
    reporter: Reporter,
    pace: Pace,
    fit: int,
    clock: Clock = SYSTEM,
) -> Iterator[EvaluatedCheckpoint]:
    """Follow the checkpoints of a `fit` of which ps:0 tells by `link`, as `follow_checkpoints`."""

    def ended() -> bool:
        return link.failure is not None or link.reply.ended or link.reply.generation > fit

    def is_last(step: int) -> bool:
        if ended() or (link.reply.generation == fit and step >= link.reply.max_steps):
            return True
        link.hurry()
        return False

    return follow_checkpoints(run, ended, is_last, reporter, pace, fit, clock)


def _opened(path: Path, reporter: Reporter) -> checkpoints.OpenCheckpoint:
    checkpoint = checkpoints.open_checkpoint(path)
    if checkpoint.warning:
        reporter.warn(checkpoint.warning)
    return checkpoint


def read_weights(checkpoint: checkpoints.OpenCheckpoint) -> dict[str, Any]:
    """Return every variable of a checkpoint; sparse rows are read when they are looked up."""
    variables = (checkpoint.state.plan or {}).get("variables", ())
    sparse = {variable["name"] for variable in variables if variable.get("sparse")}
    return {
        name: checkpoint.look_into(name) if name in sparse else checkpoint.read(name)
        for name in checkpoint.variables
    }


def newest_of(
    found: Sequence[checkpoints.CheckpointPath], fit: int
) -> tuple[checkpoints.CheckpointPath | None, bool, bool]:
    """Return the newest checkpoint of a `fit`, whether it is final, and whether another `fit` has later ones.

    One that is damaged or has vanished is taken for one of this `fit`: opening it tells more.
    """
    over = False
    for each in reversed(found):
        generation, final = _manifest(each.path) or (fit, False)
        if generation == fit:
            return each, final, over
        if generation < fit:
            break
        if kept := checkpoints.final_of(each.path.parent, fit):
            return kept, True, True
        over = True
    return None, False, over


def _manifest(path: Path) -> tuple[int, bool] | None:
    """Return a checkpoint's call of `fit`, and whether it is the final one; None if it cannot be read."""
    try:
        manifest = checkpoints.read_manifest(path)
        return manifest.state.generation, manifest.final
    except (OSError, CheckpointError):
        return None
