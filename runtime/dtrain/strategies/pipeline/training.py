"""One call of `fit` in one stage of a pipeline: its variables, its part of each step, and going back.

Every stage runs the same loop over the same batches. What differs is that each computes its own layers, and
that the leader alone runs callbacks, saves, and decides.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from msgspec.structs import replace

from dtrain.config import PipelineSection
from dtrain.errors import CheckpointError, DtrainError, PeerError, PeerLostError
from dtrain.learning.graphs.networks import StepResult
from dtrain.learning.graphs.stages import StageNetwork
from dtrain.learning.layers.base import Chance, generator_of
from dtrain.messages import (
    Conclude,
    Control,
    Over,
    PipelineTerm,
    SnapshotReply,
    SnapshotRows,
    StageVerdict,
    StageVote,
    Sums,
)
from dtrain.parameters.means import any_non_finite
from dtrain.parameters.placement import Plan
from dtrain.parameters.updater import Contributions
from dtrain.protocol.contributions import Outcome
from dtrain.protocol.pipeline_schedule import order
from dtrain.roles.chief.machine import Cut
from dtrain.roles.chief.start import Start
from dtrain.roles.stage.driver import LeadingDriver, StageDriver, StageStoppedError, TermOverError
from dtrain.roles.stage.machine import HeldStage, TermShare
from dtrain.runs.reporting import Reporter
from dtrain.state.batch_cut import BatchCut
from dtrain.strategies.in_process.fit_holder import FitHolder
from dtrain.strategies.in_process.training import APPLIED, LocalReplica, LocalTraining
from dtrain.strategies.interface import Compute, FitOrder, Problem, Stepped
from dtrain.strategies.pipeline.planning import hash_of, next_term
from dtrain.types import Array, Blocks
from dtrain.variables import VariableSpec


class StepBoundary:
    """Admits other threads of this process between two steps, each at the next moment that comes.

    Within ``with boundary:`` another thread, or the one that trains between two steps, finds the variables
    at rest.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._steps = False
        self._inside = 0
        self._wanted = 0

    def begin_step(self) -> None:
        """Wait until every thread that waits to be admitted has come and left."""
        with self._changed:
            self._changed.wait_for(lambda: not self._inside and not self._wanted)
            self._steps = True

    def end_step(self) -> None:
        with self._changed:
            self._steps = False
            self._changed.notify_all()

    def __enter__(self) -> None:
        with self._changed:
            self._wanted += 1
            try:
                self._changed.wait_for(lambda: not self._steps)
            finally:
                self._wanted -= 1
                self._changed.notify_all()
            self._inside += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()


@dataclass(frozen=True)
class StageParts:
    """The pieces of one call of `fit` in one stage.

    Attributes:
        number: of the call of `fit`.
        begins: the layers with which the stages begin.
        plan: of all variables; the server of each is its stage.
        plans: of each stage by itself.
        leave_s: how long this task may take to end well when it is told to end.
        cut_at: returns the pieces of the same call where stages begin with other layers.
    """

    number: int
    problem: Problem
    begins: tuple[str, ...]
    plan: Plan
    plans: Sequence[Plan]
    network: StageNetwork
    driver: StageDriver
    section: PipelineSection
    reporter: Reporter
    leave_s: float
    incarnation: Callable[[], int]
    cut_at: "PartsOf"

    @property
    def stage(self) -> int:
        return self.driver.machine.stage

    def start_of(self, stage: int, start: Start) -> Start:
        """Return what a stage begins with, of what all begin with."""
        names = [spec.name for spec in self.plans[stage].variables]
        values = {name: start.values[name] for name in names}
        slots = {
            slot: {name: arrays[name] for name in names if name in arrays}
            for slot, arrays in start.slots.items()
        }
        return replace(start, plan=self.plans[stage], values=values, slots=slots)


PartsOf = Callable[[tuple[str, ...]], StageParts]
"""Cuts the model in front of these layers."""


def share_of(start: Start, begins: tuple[str, ...]) -> TermShare:
    """Return what a stage is told of its start, and of the cut."""
    trained = [spec for spec in start.plan.variables if spec.trainable]
    blocks = [_flat(spec, start.values[spec.name]) for spec in start.plan.variables]
    blocks += [_flat(spec, start.slots[slot][spec.name]) for slot in start.slots for spec in trained]
    return TermShare(start.state.but(plan=None, model=None), tuple(start.slots), blocks, begins)


def start_from(message: PipelineTerm, blocks: Blocks, plan: Plan) -> Start:
    """Return the start of a stage that was told it; raise a ValueError unless it fits the plan."""
    trained = [spec for spec in plan.variables if spec.trainable]
    source = iter(blocks)
    values = {spec.name: next(source).reshape(spec.shape) for spec in plan.variables}
    slots = {
        slot: {spec.name: next(source).reshape(spec.shape) for spec in trained} for slot in message.slots
    }
    return Start(message.state, plan, values, slots)


def _flat(spec: VariableSpec, value: Any) -> Array:
    whole = value if isinstance(value, np.ndarray) or not spec.shape else value[0 : spec.shape[0]]
    return np.ascontiguousarray(whole, spec.dtype).reshape(-1)


class StageWeights(dict[str, Array]):
    """Every variable of a model by name, of which this stage has some; the others are asked for when read."""

    def __init__(self, names: Sequence[str], read: Callable[[str], Array]) -> None:
        super().__init__(dict.fromkeys(names, np.empty(0)))
        self._read = read

    def __getitem__(self, name: str) -> Array:
        return self._read(name) if name in self else super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:  # so that `dict(weights)` asks `__getitem__`
        return super().__iter__()

    def items(self) -> Any:
        return [(name, self[name]) for name in self]

    def values(self) -> Any:
        return [self[name] for name in self]


class StageReplica(LocalReplica):
    """The one replica, as one stage has it: it computes its layers, and all apply a gradient or none does."""

    training: "StageTraining"

    def __init__(self, training: "StageTraining") -> None:
        super().__init__(training)
        self.weights = training.store.variables

    def compute(
        self,
        weights: Mapping[str, Array],
        x: Any,
        y: Any,
        loss: Any,
        *,
        gradients: dict[str, Array],
        sample_weight: Any = None,
        rng: Chance,
        **_: Any,
    ) -> StepResult:
        """Compute this stage's part of a step; see `Network.loss_and_gradients`."""
        parts, batch = self.training.parts, self.next_batch()
        network, driver, section = parts.network, parts.driver, parts.section
        self.training.boundary.begin_step()
        cut = BatchCut(section.microbatches)
        size = _size(x)
        entropy: Any = generator_of(rng).bit_generator.seed_seq.entropy  # type: ignore[attr-defined]
        # The leader's orders have come before its first microbatch.
        first = [] if network.is_first else driver.take(batch, 0, back=False)
        step = network.begin(weights, gradients, loss, entropy)
        for back, number in order(section.schedule, driver.stages, parts.stage, cut.filled(size)):
            rows = cut.rows(number, size)
            part = slice(rows.start, rows.stop)
            if not back:
                if network.is_first:
                    entering: Sequence[Any] = [_rows(x, part)]
                else:
                    entering = first if number == 0 else driver.take(batch, number, back=False)
                left = step.forward(number, len(rows) / size, *entering)
                if not network.is_last:
                    driver.send(batch, number, back=False, arrays=left)
                continue
            if network.is_last:
                upstream = step.judged(number, _rows(y, part), _rows(sample_weight, part))
            else:
                upstream = [driver.take(batch, number, back=True)[0]]
            gradient = step.backward(number, upstream)
            if gradient is not None:
                driver.send(batch, number, back=True, arrays=[gradient])
        return step.result()

    def commit(self, loss: float, examples: int, sums: Sums | None, empty: int = 0) -> Outcome:
        part = self.next_batch()
        if not examples:
            return self.training.pass_over(part)
        return self.training.vote(part, self.blocks(), loss, sums, examples)


def _size(x: Any) -> int:
    while isinstance(x, Mapping | list | tuple):
        x = next(iter(x.values())) if isinstance(x, Mapping) else x[0]
    return len(x)


def _rows(given: Any, part: slice) -> Any:
    """Return rows of an array, or of each array of a nest."""
    if isinstance(given, Mapping):
        return {name: _rows(each, part) for name, each in given.items()}
    if isinstance(given, list | tuple):
        return [_rows(each, part) for each in given]
    return None if given is None else np.asarray(given)[part]


class StageTraining(LocalTraining):
    """One call of `fit` in one stage."""

    leads = False
    replicas: Sequence[StageReplica] = ()

    def __init__(self, parts: StageParts, start: Start, term: int) -> None:
        """Begin with the variables of this stage."""
        self.parts = parts
        self.boundary = StepBoundary()
        self._final: dict[str, Array] = {}
        self._given_up = False
        self._voted: tuple[StageVote, Blocks, int] | None = None
        super().__init__(parts.start_of(parts.stage, start), parts.section, parts.reporter)
        self.weights = StageWeights([spec.name for spec in parts.problem.variables], self._read)
        self._compute_here()
        self._begin(term)

    def _compute_here(self) -> None:
        """Let this task compute the stage whose variables are held."""
        constraints, own = self.parts.problem.constraints, self.store.variables
        self.constraints = {name: limit for name, limit in constraints.items() if name in own}
        self.replicas = [StageReplica(self)]
        self.parts.problem.computing.stage = self.replicas[0].compute

    def _begin(self, term: int) -> None:
        """Begin a term with what is held."""
        lineage = self.state.begun.lineage
        reporter = self.parts.reporter
        reporter.status.stage = self.parts.begins[self.parts.stage]
        reporter.status.max_steps = self.state.begun.max_steps
        reporter.status.rolled_back_steps = lineage.rolled_back_steps
        reporter.bytes_moved = lambda: self.parts.driver.bytes_moved
        reporter.progress(self.global_step)
        held = HeldStage(self._values, self._mark, self._rows_of_snapshot, self._obey)
        self.parts.driver.begin(self.parts.number, term, self.global_step, held)

    def _hold_again(self, start: Start) -> None:
        """Hold other variables in the place of those that there are."""
        own = self.parts.start_of(self.parts.stage, start)
        self._voted = None
        with self.lock:
            self.state.go_on_from(own, *self._hold(own))
        for replica in self.replicas:
            replica.weights = self.store.variables

    def _read(self, name: str) -> Array:
        """Return a variable; those of other stages are known here when training has ended, and else zero."""
        own = self.store.variables.get(name)
        if own is not None:
            return own
        spec = next(spec for spec in self.parts.problem.variables if spec.name == name)
        return self._final.get(name, np.zeros(spec.shape, spec.dtype))

    # Steps

    def step(self, compute: Compute) -> Stepped:
        try:
            return super().step(compute)
        except StageStoppedError:
            return Stepped.NOTHING
        except TermOverError:
            self.go_back()
            return Stepped.NOTHING
        finally:
            self.boundary.end_step()

    def vote(self, part: int, gradient: Blocks, loss: float, sums: Sums | None, examples: int) -> Outcome:
        """Apply the gradient of a batch, if that of every stage is finite."""
        driver = self.parts.driver
        finite = not any_non_finite(gradient)
        own = StageVote(term=driver.machine.term, batch=part, finite=finite, loss=loss, sums=sums)
        self._voted = own, gradient, examples
        verdict: StageVerdict
        verdict, sums = driver.vote(own)
        return self._obey_verdict(verdict, sums)

    def _obey_verdict(self, verdict: StageVerdict, sums: Sums | None) -> Outcome:
        """Apply the gradient that this stage has voted on, or leave it out, as all stages do."""
        assert self._voted is not None, "a verdict follows a vote"
        own, gradient, examples = self._voted
        part, outcome = own.batch, APPLIED

        def update() -> None:
            self.state.dealer.settle(part)
            self._make(Contributions.of([gradient], 0, None, self.global_step))

        if verdict.applied:
            # All stages have the same examples: the leader alone reports how many.
            self.advance(update, [sums], verdict.loss, examples if self.leads else 0)
        else:
            with self.lock:
                self.state.dealer.settle(part)
            outcome = self.refuse(verdict.loss)
        self._voted = None
        self.parts.driver.reached(self.global_step)
        return outcome

    def go_back(self) -> None:
        """Enter the next term, in which a leader that was started again may cut the model otherwise."""
        frame = self.parts.driver.enter(self.parts.number, hash_of(self.parts.problem))
        if not isinstance(frame.message, PipelineTerm):
            raise PeerLostError("the leader has ended this call of fit while this stage was away from it")
        if anew := frame.message.begins != self.parts.begins:
            self.parts = self.parts.cut_at(frame.message.begins)
        self._hold_again(start_from(frame.message, frame.blocks, self.parts.plans[self.parts.stage]))
        if anew:
            self._compute_here()
        self._begin(frame.message.term)

    def _conclude(self) -> bool:
        frame = self.parts.driver.await_conclusion()
        assert isinstance(frame.message, Conclude)
        self.state.tally.rows.update(frame.message.rows)
        for spec, block in zip(self.parts.problem.variables, frame.blocks, strict=True):
            self._final[spec.name] = np.array(block).reshape(spec.shape)
        return True

    # For other stages

    def _values(self) -> Blocks:
        with self.lock:
            specs = self.parts.plans[self.parts.stage].variables
            return [np.array(self.store.variables[spec.name]).reshape(-1) for spec in specs]

    def _mark(self) -> SnapshotReply:
        with self.lock:
            return self.state.mark()

    def _rows_of_snapshot(self, question: SnapshotRows) -> Array:
        with self.lock:
            read = self.store.read_snapshot
            return np.array(read(question.part, question.array, question.start, question.stop))

    def _obey(self, message: Control, blocks: Blocks) -> None:
        specs = self.parts.plans[self.parts.stage].variables
        values = {spec.name: block.reshape(spec.shape) for spec, block in zip(specs, blocks, strict=False)}
        super().order(FitOrder(message.optimizer, message.stop, values or None))

    def order(self, order: FitOrder) -> None:
        return

    def close(self, error: BaseException | None = None) -> None:
        """End it; where this task was told to end, the leader may still save what this stage has."""
        self._given_up = error is not None
        if isinstance(error, SystemExit | KeyboardInterrupt):
            self.parts.driver.leaves(self.parts.leave_s)
            with contextlib.suppress(DtrainError):
                self._leave()
        self.parts.reporter.bytes_moved = None
        if error is None:
            self.parts.reporter.fit_ends()

    def _leave(self) -> None:
        driver = self.parts.driver
        if self._voted is not None:
            self._obey_verdict(*driver.vote(self._voted[0]))
        driver.linger()


class StagesHolder(FitHolder):
    """The state of all stages, as the leader saves it.

    Attributes:
        finishing: whether the leader waits for the last checkpoint, and can go back when that fails.
    """

    def __init__(self, training: "LeadingTraining", start: Start) -> None:
        super().__init__(start, training.store, training.state.dealer, training.lock)
        self._training = training
        self._driver = training.driver
        self.plan = training.parts.plan
        self.finishing = False

    def snapshot(self, cut: Cut, newest: int, last: int) -> list[SnapshotReply]:
        """Have every stage remember what it holds, while no step is under way."""
        try:
            with self._training.boundary:
                own = super().snapshot(cut, newest, last)
                return own + self._driver.snapshot(self.global_step)
        except (TermOverError, PeerError) as error:
            if self.finishing:
                return [SnapshotReply(state=self.begun.but(version=-1), slots=())]
            raise CheckpointError(f"a stage has lost its variables: {error}") from None

    def snapshot_rows(self, server: int, question: SnapshotRows) -> Array:
        if not server:
            return super().snapshot_rows(server, question)
        return self._driver.snapshot_rows(server, question)


class LeadingTraining(StageTraining):
    """One call of `fit` in the stage that leads."""

    leads = True

    def __init__(
        self, parts: StageParts, start: Start, restored: Callable[[], Start], begun: Callable[[], None]
    ) -> None:
        """Begin a term in all stages; `restored` reads the newest checkpoint, `begun` tells of each term."""
        assert isinstance(parts.driver, LeadingDriver)
        self.driver = parts.driver
        self._restored = restored
        self._begun = begun
        self._known: tuple[int, int, dict[str, Array]] = (0, 0, {})
        self._told = 0
        term = next_term(self.driver, parts.incarnation())
        self._give(parts, start, term)
        super().__init__(parts, start, term)
        self.state = StagesHolder(self, parts.start_of(parts.stage, start))

    def _give(self, parts: StageParts, start: Start, term: int) -> None:
        """Give every other stage its variables."""
        shares = [share_of(parts.start_of(stage, start), parts.begins) for stage in range(self.driver.stages)]
        self.driver.give(term, shares)

    def go_back(self) -> None:
        """Begin the next term in all stages from the newest checkpoint."""
        parts, reached = self.parts, self.global_step
        lost = [str(self.driver.machine.tasks[stage]) for stage in sorted(self.driver.machine.lost)]
        rolled_back = self.state.begun.lineage.rolled_back_steps
        term = next_term(self.driver, parts.incarnation())
        self.driver.gather(parts.number, hash_of(parts.problem), term, self.driver.patience_s, voids=True)
        start = self._restored()
        version = start.state.version
        lineage = replace(start.state.lineage, rolled_back_steps=rolled_back + max(0, reached - version))
        start = start.but(lineage=lineage)
        self._give(parts, start, term)
        self._hold_again(start)
        if self.saver is not None:
            self.saver.go_back_to(start)
        self._begin(term)
        self._begun()
        parts.reporter.warn(
            f"{', '.join(lost) or 'a stage'} had lost its variables: every stage goes back from step "
            f"{reached} to the checkpoint of step {version}"
        )

    def _read(self, name: str) -> Array:
        if self._given_up or name in self.store.variables:
            return super()._read(name)
        position = (self.driver.machine.term, self.global_step)
        if self._known[:2] != position or name not in self._known[2]:
            self._known = (*position, self._fetched())
        return self._known[2][name]

    def _fetched(self) -> dict[str, Array]:
        """Return the variables of all other stages; after a loss those of the checkpoint."""
        while True:
            try:
                return {
                    spec.name: block.reshape(spec.shape)
                    for stage in self.driver.machine.others
                    for spec, block in zip(
                        self.parts.plans[stage].variables, self.driver.values_of(stage), strict=True
                    )
                }
            except TermOverError:
                self.go_back()

    def _conclude(self) -> bool:
        """Save the last step, and end the call of `fit` in all stages."""
        assert isinstance(self.state, StagesHolder)
        if self.saver is not None:
            self.state.finishing = True
            try:
                saved = self.saver.finish()
            finally:
                self.state.finishing = False
            if not saved:
                self.go_back()
                return False
        variables = self.parts.problem.variables
        self.driver.conclude(
            dict(self.recorded),
            lambda: [np.ascontiguousarray(self.weights[spec.name]).reshape(-1) for spec in variables],
        )
        return True

    def close(self, error: BaseException | None = None) -> None:
        super().close(error)
        if self.saver is not None:
            self.saver.stop()

    def _leave(self) -> None:
        """Write a last checkpoint, if all stages are there; none of them is needed any more then."""
        verdict = None if self._voted is None else self.driver.machine.verdict_on(self._voted[0].batch)
        if verdict is not None:
            self._obey_verdict(verdict, None)
        try:
            if self.saver is not None:
                self.saver.stop(save=True)
        except DtrainError as failed:
            self.parts.reporter.warn(f"no last checkpoint: {failed}")
        self.driver.release()

    def order(self, order: FitOrder) -> None:
        """Carry out an order in all stages; after a loss again, if no step was lost with it."""
        while order.optimizer is not None:
            before = self.global_step
            try:
                self.driver.order(*self._told_others(order))
                break
            except TermOverError:
                self.go_back()
                if self.global_step < before:
                    return
        weights = order.weights
        own = None if weights is None else {name: weights[name] for name in self.store.variables}
        LocalTraining.order(self, replace(order, weights=own))
        self._known = (0, 0, {})

    def _told_others(self, order: FitOrder) -> tuple[Control, list[Blocks]]:
        self._told += 1
        control = Control(
            generation=self.parts.number,
            number=(self.driver.machine.term, self._told),
            term=self.driver.machine.term,
            version=self.global_step,
            optimizer=order.optimizer or {},
            stop=order.stop,
        )
        if order.weights is None:
            return control, []
        plans = self.parts.plans
        weights = order.weights
        return control, [
            [np.ascontiguousarray(weights[spec.name]).reshape(-1) for spec in plan.variables]
            for plan in plans
        ]


def enter(driver: StageDriver, number: int, model_hash: str, parts_of: PartsOf) -> StageTraining | None:
    """Enter a call of `fit` in a stage that does not lead; None: it has ended already."""
    frame = driver.enter(number, model_hash)
    if isinstance(frame.message, Over) or not isinstance(frame.message, PipelineTerm):
        return None
    parts = parts_of(frame.message.begins)
    start = start_from(frame.message, frame.blocks, parts.plans[parts.stage])
    return StageTraining(parts, start, frame.message.term)
