"""The place of a strategy: its task in its run; and the seed that a program sets for all of them."""

import random
from pathlib import Path

import msgspec
import numpy as np

from dtrain.cluster import TaskId
from dtrain.errors import SpecError
from dtrain.runs.ledger import NO_ACTIVITY, Activity
from dtrain.runs.trace import NO_TRACE, Trace

PROGRAM_SEED: list[int] = []
"""The seed that `dt.utils.set_random_seed` has set, used instead of the run's seed; empty: it was not set."""


def set_random_seed(seed: int) -> None:
    """Set the seed of first values, dropout and shuffling, and of Python's and numpy's generators.

    Every task of a run executes the program, so all have the same. See `training.seed` of the spec.

    Args:
        seed: a whole number of at least 0.

    Raises:
        SpecError: it is none.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise SpecError(f"set_random_seed: expected a whole number in [0, 2**32), found {seed!r}")
    random.seed(int(seed))
    np.random.seed(int(seed))
    PROGRAM_SEED[:] = [int(seed)]


class TaskContext(msgspec.Struct, frozen=True):
    """Which task of which run a strategy works in; None and "" stand for a process that trains alone.

    Attributes:
        rank: of its first replica; -1 for a task that does not train.
        num_replicas: how many train at the start (T); those that join later do not count.
        pipelines: how many a function of an InputContext makes; 0: as many as there are replicas, or workers.
        is_leader: whether what it saves counts; callbacks run here.
        may_lead: whether it may lead later, when the task that leads has died.
        has_evaluator: whether some other task is the evaluator.
        weighs_examples: whether a step is the mean over its examples, or that of its parts' means
            (`training.weighting`).
        validates: whether the leader validates at epoch ends, or else the evaluator (`training.validation`).
        directory: of the run, where a launcher keeps one.
        local_steps: how many steps replicas make by themselves in a round; 0: they contribute gradients.
        activity: shows others that this task works.
        trace: where spans of the task's work are kept.
    """

    task: TaskId | None = None
    rank: int = 0
    num_replicas: int = 1
    pipelines: int = 0
    is_leader: bool = True
    may_lead: bool = False
    evaluates: bool = False
    has_evaluator: bool = False
    weighs_examples: bool = False
    validates: bool = True
    directory: Path | None = None
    run_id: str | None = None
    seed: int = 0
    local_steps: int = 0
    activity: Activity = NO_ACTIVITY
    trace: Trace = NO_TRACE


def seed_of(context: TaskContext) -> int:
    """Return the number from which first values, dropout and shuffling follow: the program's or the run's."""
    return PROGRAM_SEED[0] if PROGRAM_SEED else context.seed
