"""What `fit` sees of every way to train: a strategy opens a session, a session turns gradients into new
weights.

    strategy = dt.get_strategy()
    session = strategy.open(problem)             # variables exist, first values are in `session.weights`
    while not session.finished:
        ... write gradients of part session.part into session.gradients ...
        result = session.step(contribution)      # session.weights now hold the next version
    session.close()

Nothing above this file knows parameter servers; a new strategy is one file in `strategies/` that implements
these two classes. Source of the names: `tf.distribute.Strategy`.
"""

import atexit
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from dtrain.checkpoints import EvaluatedCheckpoint, OptimizerState, Pace
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.graphs.passes import OnGradients
from dtrain.messages import Row, Sums, Verdict
from dtrain.protocol.batch_cut import BatchCut
from dtrain.protocol.feed import UNKNOWN, Feed
from dtrain.protocol.tally import Open
from dtrain.variables import VariableSpec

Array = np.ndarray[Any, Any]
Weights = Mapping[str, Array]


@dataclass(frozen=True)
class Problem:
    """What is to be trained, without the data.

    Attributes:
        variables: in the order of creation, which is also the order of placement.
        initial_values: makes the first value of every variable; only the leader calls it.
        optimizer: as `optimizers.serialize` makes it.
        max_steps: how many global steps this call of `fit` makes, counted from `Session.first_step`.
        model: its description, for checkpoints; None if it is no data.
        state: of an optimizer that begins, if it does not begin anew.
        owner: the same for every `fit` of one model with one optimizer: only then the optimizer goes on where
            it was.
        resume_from: a folder of checkpoints to begin from, where the run itself has none.
        steps_per_epoch: global steps; 0 where the numbers of epochs are not kept.
        first_epoch: the number of the first one.
        alone: whether the replica of rank 0 computes every part of every batch.
        feed: what numbers of batches and steps mean, for a later resume.
    """

    variables: tuple[VariableSpec, ...]
    initial_values: Callable[[], Weights]
    optimizer: dict[str, Any]
    max_steps: int
    owner: object = None
    model: Mapping[str, Any] | None = None
    state: OptimizerState | None = None
    resume_from: Path | None = None
    steps_per_epoch: int = 0
    first_epoch: int = 0
    alone: bool = False
    feed: Feed = UNKNOWN


class Contribution(NamedTuple):
    """What a replica says of the gradients that it has computed.

    Attributes:
        loss: for `dtrain status`.
        examples: of how many examples they are the mean; at least one.
        empty: how many of the parts of their batch have no examples.
        sums: loss and metrics of the examples, for the epoch's numbers.
    """

    loss: float
    examples: int
    empty: int = 0
    sums: Sums | None = None


class StepResult(NamedTuple):
    """What became of one gradient.

    Attributes:
        verdict: see `Verdict`.
        global_step: after it.
    """

    verdict: Verdict
    global_step: int


@dataclass(frozen=True)
class Orders:
    """What the leader wants from the next step on; see `Session.control`.

    Attributes:
        optimizer: as `optimizers.serialize` makes it: the same rule, perhaps with other numbers.
        stop: no further step is made.
        weights: new values of all variables; None: they stay.
        until: the last step that may be made before the next orders; None: there is no such limit.
    """

    optimizer: dict[str, Any]
    stop: bool = False
    weights: Weights | None = None
    until: int | None = None


class Session(Protocol):
    """One training run of one model in this task.

    Attributes:
        weights: every variable by name, refreshed in place by `step`; read only, after `arrive`. A sparse one
            may be a `LazyTable`.
        arriving: the same, for a step that reads them in its own order: reading one waits until it is there.
        complete: to be told of variables whose gradients will not change before `step`: they may leave; None
            where they would not.
        gradients: one array for each trainable dense variable, to be written before `step`; they are views of
            memory that travels.
        row_gradients: for each trainable sparse variable gradients of rows, to be put there before `step`:
            ids int64, ascending, each once. A variable without an entry had none of its rows read.
        updates: one array for each dense variable that is not trainable: its new value, to be written before
            `step`.
        rank: of this replica; replicas are numbered from 0, the chief first.
        cut: how every batch is cut into parts.
        weighs_examples: whether a step is the mean over its examples, or that of its parts' means;
            `training.weighting`.
        entered_step: the global step when this task came to the training; others may have gone on since.
    """

    weights: dict[str, Array]
    arriving: Weights
    complete: OnGradients | None
    gradients: dict[str, Array]
    row_gradients: dict[str, SparseRows]
    updates: dict[str, Array]
    rank: int
    entered_step: int
    cut: BatchCut
    weighs_examples: bool

    @property
    def optimizer(self) -> dict[str, Any]:
        """Leader: the rule in force, as `optimizers.serialize` makes it."""

    @property
    def global_step(self) -> int:
        """Versions made so far."""

    @property
    def first_step(self) -> int:
        """The global step at which this call of `fit` began: 0, or where the one before it ended."""

    @property
    def part(self) -> int:
        """The number of the part to compute next; after a step it may be the same again. See
        `protocol.part_dealer`.
        """

    @property
    def repairs(self) -> bool:
        """Whether the part makes no step: it counts already, and may not have reached every server."""

    @property
    def tally(self) -> Open:
        """Leader: the sums of the epochs that it has not recorded, as of `weights`."""

    @property
    def rows(self) -> Mapping[int, Row]:
        """The numbers of every epoch that is recorded, by epoch. Other tasks: when it is finished."""

    @property
    def finished(self) -> bool:
        """Whether the last step is done; `weights` are final unless the leader's callbacks change them."""

    def step(self, contribution: Contribution) -> StepResult:
        """Contribute the gradients, and wait for the next weights, which may not have arrived whole when this
        returns.
        """

    def pass_over(self, empty: int) -> StepResult:
        """Say that the part has no examples, as `empty` parts of its batch have none; wait as `step` does."""

    def record(self, epoch: int, rows: Mapping[int, Row]) -> None:
        """Leader: keep the numbers of epochs that have ended; those from `epoch` on have not (any more)."""

    def arrive(self) -> None:
        """Wait until all `weights` are there."""

    def conclude(self) -> bool:
        """After the last step, and everything that the leader does about it: whether it is saved.

        If not, the servers have gone back to a checkpoint, and training goes on.
        """

    def wait(self, step: int) -> None:
        """A leader that does not train: until this step is made everywhere, or training has ended; `weights`
        are the newest.
        """

    def control(self, orders: Orders) -> None:
        """Leader: change how training goes on, on every server from one version on (rule 13).

        Where the leader has seen the step that was given as `until`, as at the end of an epoch, that is the
        version: no step has been made beyond it. Otherwise, sync: it is the next version that has not been
        made. Async: pushes that are under way, at most one a replica, still count by the old numbers. A
        gradient that was computed from the weights before `orders.weights` and is under way counts.

        With `stop` the last step has been made when this returns.
        """

    def checkpoint(self) -> None:
        """Leader: write one of the run's own checkpoints of this moment, if the run has any."""

    def save(self, directory: Path) -> None:
        """Leader: write a checkpoint of this moment into a folder of its own, in the place of the one
        before.
        """

    def close(self, error: BaseException | None = None) -> None:
        """Training is over; or given up, because of `error`."""


@runtime_checkable
class Strategy(Protocol):
    """How the tasks of a cluster train together, seen from one of them. Compare `tf.distribute.Strategy`.

    Attributes:
        trains: whether this task computes gradients.
        is_leader: whether what it saves counts; callbacks run here.
        evaluates: whether this task is the evaluator.
        has_evaluator: whether some other task is.
        validates: whether the leader validates at epoch ends; else that is left to the evaluator
            (`training.validation`).
        evaluations: leader: by global step, what the evaluator has told of so far.
        directory: of the run, where a launcher keeps one.
        run_id: of the run; None for a process that trains alone.
        seed: of the run.
        rank: of this replica; -1 for a task that does not train.
        num_replicas: how many train at the start (T); those that join later do not count.
        wishes: what the program said in its constructor, by the names of the `training` section.
    """

    trains: bool
    is_leader: bool
    evaluates: bool
    has_evaluator: bool
    validates: bool
    evaluations: Mapping[int, Mapping[str, float]]
    directory: Path | None
    run_id: str | None
    seed: int
    rank: int
    num_replicas: int
    followed_rows: Mapping[int, Row]
    wishes: Mapping[str, Any] = MappingProxyType({})

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas' batches make one global step."""

    def scope(self) -> "AbstractContextManager[Strategy]":
        """Let models that are made within it belong to this strategy."""

    def open(self, problem: Problem) -> Session:
        """Make the variables exist in the cluster and join the training."""

    def optimizer_state(self, owner: object) -> OptimizerState | None:
        """Leader: how far the optimizer of `owner` (see `Problem`) has come; None if the last `fit` was
        another's.
        """

    def checkpoints(self, pace: Pace) -> Iterator[EvaluatedCheckpoint]:
        """Evaluator: each newest checkpoint of the next call of `fit`, at this pace, until it has ended and
        the final one was seen.

        To be called once for every call of `fit`.
        """

    def evaluated(self, global_step: int, metrics: Mapping[str, float]) -> None:
        """Publish the result of an evaluation for `dtrain status`."""

    def close(self, error: BaseException | None = None) -> None:
        """The program is over, or has failed with `error`: let everybody go."""


@dataclass
class _Process:
    """What is true of this process as a whole: its strategy is built once, and the innermost scope rules."""

    used: threading.Event = field(default_factory=threading.Event)
    default: Strategy | None = None
    scopes: list[Strategy] = field(default_factory=list)


_process = _Process()


def mark_used() -> None:
    """The program has called dtrain."""
    _process.used.set()


def was_used() -> bool:
    """Whether the program has ever called dtrain (one that has not gets an error that says so: CONTRACT
    section 4).
    """
    return _process.used.is_set()


def current_strategy(make_default: Callable[[], Strategy]) -> Strategy:
    """The strategy of the innermost `scope`, else this process's own, made at the first call."""
    mark_used()
    if _process.scopes:
        return _process.scopes[-1]
    if _process.default is None:
        _process.default = make_default()
        atexit.register(close_default)
    return _process.default


@contextmanager
def scope_of(strategy: Strategy) -> Iterator[Strategy]:
    """Within it, models belong to this strategy. See `tf.distribute.Strategy.scope`."""
    mark_used()
    _process.scopes.append(strategy)
    try:
        yield strategy
    finally:
        _process.scopes.remove(strategy)


def close_default(error: BaseException | None = None) -> None:
    """The program has ended, or failed with `error`: close the strategy that it got, if any."""
    strategy, _process.default = _process.default, None
    if strategy is not None:
        strategy.close(error or getattr(sys, "last_value", None))  # what plain Python has just shown
