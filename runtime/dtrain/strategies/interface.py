"""The interface of `fit` to every strategy.

    training = strategy.open(problem)            # one call of `fit` in this task; the variables exist
    while training.step(compute) is not Stepped.ENDED:
        ...                                      # epochs, callbacks
    training.close()

`compute(replica, number)` reads a part of a batch, and returns what computes its gradients and commits them.
The strategy decides which replica computes which part, when, and in which thread; see `Training.step`.

Nothing above this file knows how a strategy does it; a new strategy is one file beside it. `TurnTraining`
has what most trainings have in common, `Strategy` what most strategies have. Source of the names:
`tf.distribute`.
"""

import atexit
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import Enum, auto
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import msgspec

from dtrain.checkpoints import EvaluatedCheckpoint, OptimizerState, Pace
from dtrain.errors import ProgramError, SpecError
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.graphs.networks import Network, StepResult
from dtrain.messages import Row, Sums, Verdict
from dtrain.parameters.placement import Plan
from dtrain.protocol.contributions import Outcome
from dtrain.protocol.part_dealer import NO_PART
from dtrain.state.batch_cut import UNCUT, BatchCut, Dealt
from dtrain.state.feed import UNKNOWN, Feed
from dtrain.state.fit_state import FitState, Open
from dtrain.state.rounds import Rounds
from dtrain.strategies.context import TaskContext, seed_of
from dtrain.strategies.replicas import contexts
from dtrain.strategies.replicas.custom_loops import OwnInput
from dtrain.strategies.replicas.reduction import Nest, ReduceOp
from dtrain.strategies.shared import SharedValues
from dtrain.types import Array
from dtrain.variables import VariableSpec

Weights = Mapping[str, Array]
"""Every variable by name."""


class Computing(msgspec.Struct):
    """The place where a strategy says that this task computes a part of the model.

    Attributes:
        network: of a model that is made of layers; else None.
        stage: stands for `Network.loss_and_gradients`; None: each replica computes the whole model.
    """

    network: Network | None = None
    stage: Callable[..., StepResult] | None = None


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The training of one call of `fit`, without the data.

    Attributes:
        variables: in the order of creation, which is also the order of placement.
        initial_values: makes the first value of every variable; only the leader calls it.
        optimizer: as `optimizers.serialize` makes it.
        max_steps: how many global steps this call of `fit` makes, counted from `Training.first_step`.
        model: its description, for checkpoints; None if it is no data.
        state: of an optimizer that begins, if it does not begin anew.
        owner: the same for every `fit` of one model with one optimizer: only then the optimizer goes on where
            it was.
        resume_from: a folder of checkpoints to begin from, where the run itself has none.
        steps_per_epoch: global steps; 0 where the numbers of epochs are not kept.
        alone: whether the replica of rank 0 computes every part of every batch.
        feed: what numbers of batches and steps mean, for a later resume.
        constraints: functions through which variables pass after each update, by name.
        rounds: which batches make which round, in local steps; None: replicas contribute gradients.
        updates: how many the optimizer has made before.
        computing: what computes, which `Strategy.open` may change.
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
    constraints: Mapping[str, Callable[[Array], Array]] = MappingProxyType({})
    rounds: Rounds | None = None
    updates: int = 0
    computing: Computing = msgspec.field(default_factory=Computing)

    def check_unconstrained(self) -> None:
        """Raise a `SpecError` if there are constraints, for a strategy that updates variables in parts or in
        several tasks.
        """
        if self.constraints:
            raise SpecError(
                f"constraints: found one of {min(self.constraints)}, but here variables are updated in "
                "parts; train in one process (dtrain launch --strategy mirrored), or use a regularizer"
            )

    def asked(self, generation: int, plan: Plan, cut: BatchCut, *, sync: bool) -> FitState:
        """Return the state with which it would begin at step 0; `sync`: several replicas make a step."""
        return FitState(
            generation=generation,
            max_steps=self.max_steps,
            compiled=self.optimizer,
            optimizer=self.optimizer,
            model=None if self.model is None else dict(self.model),
            plan=plan.to_dict(),
            alone=self.alone,
            steps_per_epoch=self.steps_per_epoch,
            first_epoch=self.first_epoch,
            feed=self.feed,
            replicas_in_sync=cut.parts if sync else 0,
            dealt=Dealt(cut.parts, even=cut.even),
        )


class FitOrder(msgspec.Struct, frozen=True):
    """An order of the leader, of any of these kinds.

    Where the leader has seen the step that was given as `until`, as at the end of an epoch, other numbers and
    values hold from that version on: no step has been made beyond it. Otherwise, sync: it is the next version
    that has not been made. Async: pushes that are under way, at most one a replica, still count by the old
    numbers. A gradient that was computed from the weights before `weights` and is under way counts. With
    `stop` the last step has been made when `Training.order` returns.

    Attributes:
        optimizer: as `optimizers.serialize` makes it: the same rule, perhaps with other numbers; None:
            neither they nor what the three next say change.
        stop: no further step is made.
        weights: new values of all variables; None: they stay.
        until: the last step that may be made before the next such order; None: there is no such limit.
        rows: the numbers of epochs that have ended.
        open_from: with `rows`, the epochs from this one on have not ended (any more).
        kept: entries to be kept where the next leader of this call of `fit` finds them; those of other names
            stay. If this task dies meanwhile, either all of them are kept or none.
    """

    optimizer: dict[str, Any] | None = None
    stop: bool = False
    weights: Weights | None = None
    until: int | None = None
    rows: Mapping[int, Row] | None = None
    open_from: int = 0
    kept: Mapping[str, bytes] = MappingProxyType({})


class NoExchangeError(ProgramError):
    """The parts of a step do not meet within it."""


class Replica(Protocol):
    """One source of gradients.

    Attributes:
        rank: replicas are numbered from 0, the leader's first.
        weights: every variable by name, refreshed by `commit`; read only. A sparse one may be a `LazyTable`.
            Memory of the strategy.
        gradients: one array for each trainable dense variable, to be written before `commit`. Memory of the
            strategy, which may travel as it is.
        rows: for each trainable sparse variable gradients of rows, to be put there before `commit`: ids
            int64, ascending, each once. A variable without an entry had none of its rows read.
        updates: one array for each dense variable that is not trainable: its new value, to be written before
            `commit`. Memory of the strategy.
    """

    rank: int
    weights: Weights
    gradients: dict[str, Array]
    rows: dict[str, SparseRows]
    updates: dict[str, Array]

    def commit(self, loss: float, examples: int, sums: Sums | None, empty: int = 0) -> Outcome:
        """Contribute the gradients of the part, and wait for the next weights.

        In local steps it is called for each batch of a round; the outcome is pending until the last one.

        Args:
            loss: for `dtrain status`.
            examples: of how many examples the gradients are the mean; 0: the part has none, and there are no
                gradients.
            sums: loss and metrics of the examples, for the epoch's numbers.
            empty: how many of the parts of the batch have no examples.
        """

    def all_reduce(self, op: ReduceOp, value: Nest) -> Nest:
        """Return the sum or the mean of what all replicas give in the same call, added up in their order.

        Every replica calls it the same number of times; it waits for the others, within a step.

        Args:
            op: the sum or the mean.
            value: of the same form, shapes and dtypes in every replica.

        Raises:
            NoExchangeError: not all parts of a step are computed at the same time.
            ProgramError: the forms differ.
        """
        raise NoExchangeError(
            f"all_reduce: {type(self).__name__} exchanges no values with other replicas; expected a strategy "
            "whose replicas reduce values among themselves"
        )


class Stepped(Enum):
    """The outcome of a call of `Training.step`."""

    MADE = auto()
    """A step was made, and this task is done with its parts of it."""
    PENDING = auto()
    """This task has computed a part, and computes another one of the same step next."""
    REFUSED = auto()
    """A gradient was not finite, and no step was made of it."""
    NOTHING = auto()
    """No step was made, or the part is computed again: the caller looks what has changed."""
    ENDED = auto()
    """Training has ended, and nothing is left to do."""


Compute = Callable[[Replica, int], Callable[[], Outcome] | None]
"""Reads the part of a number, in the program's thread. Returns what computes it in any thread, commits it to
the replica and returns what came of it; None: a callback has changed something, and `Training.step` returns.
"""


class Training(Protocol):
    """One call of `fit` in this task. It counts versions as global steps, made in all calls of `fit`.

    Attributes:
        first_step: the global step at which this call of `fit` began: 0, or where the one before it ended.
        replicas: one on parameter servers, several where one process has several; none for a leader that does
            not train.
        weights: every variable by name, the newest that this task knows; read only.
        cut: how every batch is cut into parts.
        repairs: whether the part dealt next counts already, but may not have reached every server.
    """

    first_step: int = 0
    replicas: Sequence[Replica]
    weights: dict[str, Array]
    cut: BatchCut = UNCUT
    repairs: bool = False

    @property
    def global_step(self) -> int:
        """Versions made so far."""

    @property
    def finished(self) -> bool:
        """Whether the last step is done; weights are final unless the leader's callbacks change them."""

    @property
    def recorded(self) -> Mapping[int, Row]:
        """The numbers of every epoch that is recorded, by epoch. A task that does not lead has them when
        training is finished.
        """

    @property
    def optimizer_state(self) -> OptimizerState | None:
        """How far the optimizer has come, where that is known without the strategy."""
        return None

    def step(self, compute: Compute) -> Stepped:
        """Let the replicas of this task compute their parts of the next step, or wait for others to make it.

        When training is `finished` it waits for what is left to do: the leader saves the last step, others
        wait until it has. If training goes back to a checkpoint meanwhile, or this task leads, it goes on.
        """

    # The leader

    @property
    def leads(self) -> bool:
        """Whether this task leads. It may become true in the midst of `step`: the leader has died. What would
        wait for an act of the leader then returns.
        """
        return True

    @property
    def kept(self) -> Mapping[str, bytes] | None:
        """The entries that earlier leaders of this call of `fit` have kept (`FitOrder.kept`); None where no
        other task may ever lead.
        """
        return None

    @property
    def optimizer(self) -> dict[str, Any]:
        """The rule that was in force when this task began to lead, as `optimizers.serialize` makes it."""
        return {}

    @property
    def tally(self) -> Open:
        """The sums of the epochs that are not recorded, as of this task's weights."""
        return ()

    def order(self, order: FitOrder) -> None:
        """Change how training goes on, everywhere from one version on, or keep something for all tasks."""
        return

    def save(self, directory: Path | None = None) -> None:
        """Write a checkpoint of this moment: one of the run's own, if the run has any; or into a folder of
        its own, in the place of the one before.
        """
        return

    def close(self, error: BaseException | None = None) -> None:
        """End it: training is over; or given up, because of `error`."""
        return


class TurnReplica(Replica, Protocol):
    """A replica that knows which part is its next."""

    def next_batch(self) -> int:
        """Return the number of the part to compute next, or NO_PART, without a wait; after a step it may be
        the same again. See `protocol.part_dealer`.
        """


class TurnTraining(Training, Protocol):
    """A training whose replicas take turns in the program's thread."""

    replicas: Sequence[TurnReplica]

    def step(self, compute: Compute) -> Stepped:
        """Let each replica compute a part."""
        result = Stepped.NOTHING
        if self.finished:
            return Stepped.ENDED if self._conclude() else result
        for replica in self.replicas:
            if not self.finished:
                result = self._compute_part(replica, compute)
        return result

    def _compute_part(self, replica: TurnReplica, compute: Compute) -> Stepped:
        before = self.global_step
        number = replica.next_batch()
        if number == NO_PART:
            if not self.finished:
                self._await_others()
            return Stepped.MADE if self.global_step > before else Stepped.NOTHING
        work = compute(replica, number)
        if work is None or (self.leads and replica.next_batch() != number):  # by what a callback did
            return Stepped.NOTHING
        before = self.global_step
        verdict = work().verdict
        if verdict is Verdict.REFUSED:
            return Stepped.REFUSED
        if verdict is Verdict.PENDING:
            return Stepped.PENDING
        if self.global_step <= before:
            return Stepped.NOTHING
        again = verdict is not Verdict.ACCEPTED and not self.finished and replica.next_batch() == number
        return Stepped.NOTHING if again else Stepped.MADE

    def _await_others(self) -> None:
        """Wait until others have made a step of which this task has no part, or this task leads."""
        return

    def _conclude(self) -> bool:
        """Do what is left to do after the last step; return False if training goes on."""
        return True


Ended = Callable[[Mapping[int, Row]], None]
"""Is given the numbers of every epoch at the end of a call of `fit`."""


def discard_rows(rows: Mapping[int, Row]) -> None:
    """Ignore the numbers of epochs."""


class FitStrategy(Protocol):
    """The part of a strategy that `fit` knows.

    Attributes:
        context: which task of which run this is.
        evaluations: leader: by global step, what the evaluator has told of so far.
    """

    context: TaskContext
    evaluations: Mapping[int, Mapping[str, float]] = MappingProxyType({})

    def open(self, problem: Problem) -> Training:
        """Make the variables exist and join the training.

        Raises:
            SpecError: `problem` has constraints, and variables are updated in parts or in several tasks.
        """

    def optimizer_state(self, owner: object) -> OptimizerState | None:
        """Leader: how far the optimizer of `owner` (see `Problem`) has come; None if the last `fit` was
        another's.
        """
        return None

    def checkpoints(self, pace: Pace, ended: Ended = discard_rows) -> Iterator[EvaluatedCheckpoint]:
        """Yield, in the evaluator, each newest checkpoint of the next `fit` at this pace, and the final one.

        Call it once for every call of `fit`. There is none where no task evaluates. At the end `ended` is
        given the numbers of every epoch.
        """
        return iter(())

    def evaluated(self, global_step: int, metrics: Mapping[str, float]) -> None:
        """Publish the result of an evaluation for `dtrain status`, where that knows this task."""
        return


@runtime_checkable
class Strategy(FitStrategy, OwnInput, Protocol):
    """How the tasks of a cluster train together, seen from one of them. Compare `tf.distribute.Strategy`.

    Attributes:
        wishes: what the program said in its constructor, by the names of the `training` section.
        shared: the values of models and variables, where they lie on servers from the first call of a
            `ClusterCoordinator` on; None before, and without one.
    """

    wishes: Mapping[str, Any] = MappingProxyType({})
    shared: SharedValues | None = None

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas' batches make one global step."""
        return 1

    @property
    def is_leader(self) -> bool:
        """Whether what this task saves counts; callbacks run here."""
        return self.context.is_leader

    @property
    def seed(self) -> int:
        """The number from which first values, dropout and shuffling follow: the program's, else the run's."""
        return seed_of(self.context)

    @property
    def evaluates(self) -> bool:
        """Whether this task is the evaluator."""
        return self.context.evaluates

    @property
    def has_evaluator(self) -> bool:
        """Whether some other task is the evaluator."""
        return self.context.has_evaluator

    @property
    def rank(self) -> int:
        """The number of this task's first replica; -1 for a task that does not train."""
        return self.context.rank

    @property
    def num_replicas(self) -> int:
        """How many replicas train at the start; those that join later do not count."""
        return self.context.num_replicas

    @property
    def directory(self) -> Path | None:
        """Of the run, where a launcher keeps one."""
        return self.context.directory

    def scope(self) -> AbstractContextManager[Self]:
        """Let models that are made within it belong to this strategy."""
        return _scope_of(self)

    def wait_at_most(self, timeout_s: float) -> None:
        """Let a replica give up after so long a wait for the same others, where replicas wait for each
        other.
        """
        return

    def close(self, error: BaseException | None = None) -> None:
        """End the task's part in the run: the program is over, or has failed with `error`."""


class _Process(msgspec.Struct):
    """The strategy of this process, which is built once, and the open scopes; the innermost rules."""

    used: threading.Event = msgspec.field(default_factory=threading.Event)
    default: Strategy | None = None


_process = _Process()


def mark_used() -> None:
    """Record that the program has called dtrain."""
    _process.used.set()


def was_used() -> bool:
    """Return whether the program has ever called dtrain; one that never does has failed."""
    return _process.used.is_set()


def current_strategy(make_default: Callable[[], Strategy]) -> Strategy:
    """Return the strategy of the innermost `scope`, else this process's own, made at the first call."""
    mark_used()
    opened: Strategy | None = contexts.strategy_of_scope()
    if opened is not None:
        return opened
    if _process.default is None:
        return followed_by(make_default)
    return _process.default


def followed_by(make: Callable[[], Strategy]) -> Strategy:
    """Return a new strategy in the place of this process's own, with which its models stay."""
    made = make()
    close_default()
    _process.default = made
    atexit.register(close_default)
    return made


S = TypeVar("S", bound=Strategy)


@contextmanager
def _scope_of(strategy: S) -> Iterator[S]:
    """Let models belong to this strategy; see `tf.distribute.Strategy.scope`."""
    mark_used()
    with contexts.scope_of(strategy):
        yield strategy


def close_default(error: BaseException | None = None) -> None:
    """Close the strategy of a program that has ended, or failed with `error`."""
    strategy = _process.default
    _process.default = None
    if strategy is not None:
        strategy.close(error or getattr(sys, "last_value", None))  # what plain Python has just shown
