"""One call of `fit` in one stage of a pipeline: its variables, its part of each step, and going back.

Every stage runs the same loop over the same batches. What differs is that each computes its own layers, and
that the leader alone runs callbacks, saves, and decides.
"""

import contextlib
import signal
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dtrain.config.choices import Schedule, StaleGradients
from dtrain.data.structure import arrays_of, map_arrays
from dtrain.errors import DtrainError, PeerLostError
from dtrain.learning.graphs.networks import StepResult
from dtrain.learning.graphs.stages import StageStep
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
    Verdict,
)
from dtrain.parameters.replica_memory import any_non_finite
from dtrain.parameters.updater import Contributions
from dtrain.process.clock import SYSTEM
from dtrain.protocol.async_updates import DelayCompensation, StalenessRule
from dtrain.protocol.contributions import Outcome
from dtrain.protocol.pipeline_schedule import FLUSHES, base_version, order
from dtrain.roles.chief.start import Start
from dtrain.roles.stage.driver import StageDriver, StageStoppedError, TermOverError
from dtrain.roles.stage.machine import HeldStage
from dtrain.runs.notices import Notice
from dtrain.state.batch_cut import BatchCut
from dtrain.strategies.in_process.training import APPLIED, LocalReplica, LocalTraining
from dtrain.strategies.interface import Compute, FitOrder, Stepped
from dtrain.strategies.pipeline.flights import Flight, Images, StepBoundary, Travel, result_of
from dtrain.strategies.pipeline.parts import PartsOf, StageParts, StageWeights, start_from
from dtrain.strategies.pipeline.planning import hash_of
from dtrain.types import Array, Blocks

PENDING = Outcome(Verdict.PENDING)


class StageReplica(LocalReplica):
    """The one replica, as one stage has it: it computes its layers.

    Attributes:
        flights: in their order.
        judges: whether this task computes the outputs of the model.
        rests: whether nothing is in flight in any stage, and nothing comes before the leader wants it.
        first_base: the oldest version that a batch may use.
    """

    training: "StageTraining"

    def __init__(self, training: "StageTraining") -> None:
        super().__init__(training)
        section, self.schedule = training.parts.section, training.parts.schedule
        self.flushes = self.schedule in FLUSHES
        self.judges = any(network.is_last for network in training.parts.networks.values())
        self._synced = section.vertical_sync and not training.leads
        self._cut = BatchCut(section.blocks)
        self.forget()

    def forget(self) -> None:
        """Begin anew with the variables that there are now."""
        self.weights = self.training.store.variables
        self.flights: deque[Flight] = deque()
        self.rests = True
        self.first_base = self._named = self.training.global_step
        self._running: dict[str, Array] = {}
        self._outcome = PENDING
        self.training.images.kept.clear()

    @property
    def begun(self) -> int:
        """The version that is made of all that is in flight."""
        return self.training.global_step + sum(flight.examples > 0 for flight in self.flights)

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
        """Compute this stage's part of a step; see `Network.loss_and_gradients`.

        The result is that of the batch in a schedule that flushes, and in the last stage.
        """
        training, batch = self.training, self.next_batch()
        parts, images, layout = training.parts, training.images, training.parts.layout
        size = len(arrays_of(x)[0])
        count, target = self._cut.filled(size), self.begun + 1
        self._outcome = PENDING
        version, marks = self._begin(batch, target, count)
        entropy: Any = generator_of(rng).bit_generator.seed_seq.entropy  # type: ignore[attr-defined]
        if not self.flushes:
            if version == training.global_step:
                images.keep(version, training.store)
            weights = {**images.kept[version][1], **self._running}
        penalises = parts.place not in layout.sums
        steps = {
            segment: StageStep(network, weights, gradients, loss, entropy, penalises=penalises)
            for segment, network in parts.networks.items()
        }
        travel = Travel(parts.driver, layout, batch, None if self.flushes else self._named, marks)
        drains = self.flushes or training.ends_at(target)
        flying, replicas = len(self.flights), layout.replicas_of(parts.place)
        self.rests = self.flushes
        for back, number in order(self.schedule, layout.n_tasks, replicas[0], count, flying, drains=drains):
            if replicas[number % len(replicas)] != parts.place:
                continue
            if back:
                if self.flights:  # fewer fly where a batch has waited for its version
                    self._pass_back()
                continue
            rows = self._cut.rows(number, size)
            targets = _rows(y, rows), _rows(sample_weight, rows)
            for segment, step in steps.items():
                share, entering = len(rows) / size, travel.entering(segment, number, len(rows))
                travel.leave(segment, number, step.forward(number, share, _rows(x, rows), entering))
            ends = size if number == count - 1 else 0
            self.flights.append(Flight(steps, travel, number, version, targets, ends, marks))
        if not self.flushes:
            return self._in_flight(result_of(steps), batch, drains=drains)
        for array in gradients.values() if count <= replicas.index(parts.place) else ():
            array.fill(0)  # of a small batch
        travel.sum_over_replicas(gradients)
        return result_of(steps)

    def _in_flight(self, result: StepResult, batch: int, *, drains: bool) -> StepResult:
        """Go on from a batch that has passed forward; return what is known of it."""
        self.rests = drains
        if not any_non_finite(list(result.state_updates.values())):
            self._running |= result.state_updates
        if self.judges:
            return result
        self.training.state.dealer.pushed(self.rank, batch)
        return StepResult(result.loss, {}, None, {}, {}, [])

    def _begin(self, batch: int, target: int, count: int) -> tuple[int, bool]:
        """Wait until a batch may begin; return the version that it uses, and whether a checkpoint has it."""
        training, driver, layout = self.training, self.training.parts.driver, self.training.parts.layout
        first = training.leads
        if self.rests:
            training.boundary.begin_step()
        elif first and training.told_to_end:
            training.rest()
        training.look_for_end()
        while base_version(self.schedule, target, 0, self.first_base) > training.global_step:
            self._pass_back()
        if not first:  # the leader's orders have come before the first array
            tag = layout.first_of(training.parts.place, batch)
            while tag.microbatch < count and not driver.comes(tag, target - 1, rests=self.rests):
                self.rest()
            if tag.edge in layout.starts.values():
                driver.take(tag)
        newest = training.global_step
        # One mark at a time: a stage remembers one version.
        marks = first and training.boundary.wanted and not any(flight.marks for flight in self.flights)
        self._named, marks = driver.machine.noted.pop(batch, (newest, marks))
        if not self.flushes:
            training.hold_end()
        newest = self._named if self._synced else newest
        return base_version(self.schedule, target, newest, self.first_base), marks

    def _pass_back(self) -> None:
        flight = self.flights.popleft()
        number, travel = flight.microbatch, flight.travel
        for segment in reversed([*flight.steps]):
            step, is_last = flight.steps[segment], self.training.parts.networks[segment].is_last
            upstream = step.judged(number, *flight.targets) if is_last else travel.upstream(segment, number)
            travel.leave_back(segment, number, step.backward(number, upstream))
        if not flight.examples or self.flushes:
            return
        self._passed = flight
        if not self.judges:
            self._make(result_of(flight.steps).loss, None)

    def rest(self) -> None:
        """Pass back all that is in flight."""
        while self.flights:
            self._pass_back()
        self.rests = True
        self.training.stands()

    def commit(self, loss: float, examples: int, sums: Sums | None, empty: int = 0) -> Outcome:
        if not examples:
            return self.training.pass_over(self.next_batch())
        if self.flushes:
            return self.training.vote(self.next_batch(), self.blocks(), loss, sums, examples)
        if self.judges:
            self._make(loss, sums)
        return self._outcome

    def _make(self, loss: float, sums: Sums | None) -> None:
        """Make the version of the batch that has been passed back; `sums` are of the last stage."""
        result = result_of(self._passed.steps)
        for name, update in self.updates.items():
            update[...] = result.state_updates.get(name, self.weights[name])
        self.rows.update(result.row_gradients)
        self._outcome = self.training.make_at_once(self._passed, self.blocks(), loss, sums)

    def needs(self, version: int) -> bool:
        """Return whether a batch uses this version, that is in flight or may come."""
        if any(flight.version == version for flight in self.flights):
            return True
        if self.schedule is Schedule.PIPEDREAM_2BW:
            return version >= self.begun
        return self._synced and version >= self._named


def _rows(given: Any, rows: range) -> Any:
    """Return rows of an array, or of each array of a nest."""
    given = tuple(given) if isinstance(given, list) else given
    return None if given is None else map_arrays(lambda each: np.asarray(each)[rows.start : rows.stop], given)


class StageTraining(LocalTraining):
    """One call of `fit` in one stage."""

    leads = False
    replicas: Sequence[StageReplica] = ()

    def __init__(self, parts: StageParts, start: Start, term: int) -> None:
        """Begin with the variables of this stage."""
        self.parts = parts
        self.boundary = StepBoundary()
        self.images = self.allocator = Images()
        self._notice: Notice | None = None
        self._told_s: float | None = None
        self._staleness: Counter[int] = Counter()
        self._final: dict[str, Array] = {}
        self._given_up = False
        self._voted: tuple[StageVote, Blocks, int] | None = None
        super().__init__(parts.start_of(parts.place, start), parts.section, parts.reporter)
        self.weights = StageWeights([spec.name for spec in parts.problem.variables], self._read)
        parts.driver.look_for_end = self.look_for_end
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
        reporter.status.stage = self.parts.label
        reporter.status.max_steps = self.state.begun.max_steps
        reporter.status.rolled_back_steps = lineage.rolled_back_steps
        reporter.bytes_moved = lambda: self.parts.driver.bytes_moved
        reporter.progress(self.global_step)
        held = HeldStage(self._values, self._mark, self._rows_of_snapshot, self._obey)
        self.parts.driver.begin(self.parts.number, term, self.global_step, held, self.parts.layout.routes)

    def _hold_again(self, start: Start) -> None:
        """Hold other variables in the place of those that there are."""
        own = self.parts.start_of(self.parts.place, start)
        self._voted = None
        with self.lock:
            self.state.go_on_from(own, *self._hold(own))
        for replica in self.replicas:
            replica.forget()

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
            if self.replicas[0].rests:
                self.stands()

    def rest(self) -> None:
        """Let nothing be in flight, as the leader has asked; raise as `StageDriver.take`."""
        self.replicas[0].rest()

    def ends_at(self, version: int) -> bool:
        """Return whether an epoch ends with a version, and so the pipeline drains."""
        made = version - self.first_step
        return made % self.parts.problem.steps_per_epoch == 0 or version >= (self.store.max_steps or 0)

    def stands(self) -> None:
        """Let others see the variables: nothing is in flight."""
        self.boundary.end_step()

    # An order to end waits until the pipeline is at rest, and the leader ends too

    def hold_end(self) -> None:
        self._notice = self._notice or Notice()

    @property
    def told_to_end(self) -> bool:
        return self._notice is not None and self._notice.heard

    def heed_end(self) -> None:
        """End this task if it has been told to end; from now on it does so at once."""
        self._told_s = None
        if (notice := self._notice) is not None:
            self._notice = None
            notice.close()
            if notice.heard:
                signal.raise_signal(signal.SIGTERM)

    def look_for_end(self) -> None:
        """End this task where it has been told to and the leader ends too, or has not for too long."""
        if self.told_to_end:
            now = SYSTEM.now()
            self._told_s = now if self._told_s is None else self._told_s
            ends = self.parts.driver.machine.leaves and self.replicas[0].rests
            if ends or now - self._told_s >= self.parts.leave_s:
                self.heed_end()

    def make_at_once(self, flight: Flight, gradient: Blocks, loss: float, sums: Sums | None) -> Outcome:
        """Make the version of one batch, which this stage has passed back: no other stage is waited for, but
        that the leader hears of all. A gradient that is not finite counts as a version, and changes nothing.
        """
        driver, replica, section = self.parts.driver, self.replicas[0], self.parts.section
        batch, finite = flight.travel.batch, not any_non_finite(gradient)
        told = StageVote(
            term=driver.machine.term, batch=batch, finite=finite, loss=loss, sums=sums, made=True
        )
        if self.leads:
            verdict, sums = driver.vote(told)
            loss = verdict.loss
        base, now = flight.version, self.global_step
        if now > base and section.stale_gradients is StaleGradients.COMPENSATE:
            compensation = DelayCompensation(section.compensation, self.store.trainable)
            compensation.remember(0, base, self.images.kept[base][0])
            gradient = compensation.compensate(0, base, gradient, self.store.values)
        _, scale = StalenessRule(section.stale_gradients).judge(now - base)
        self.images.keep_only(replica.needs)
        if replica.needs(now):
            self.images.keep(now, self.store)

        def update() -> None:
            self.state.dealer.settle(batch)
            if finite:
                self._make(Contributions([gradient], 1, None, now, scale))
                self.store.show_newest()

        self.advance(update, [sums], loss, flight.examples if self.leads else 0)
        self._staleness[now - base] += 1
        self.parts.reporter.status.staleness_counts = self._staleness
        if not self.leads:
            driver.tell(told)
        driver.reached(self.global_step, marks=flight.marks and not self.leads)
        if self.leads and flight.marks:
            self.boundary.end_step()
            self.boundary.begin_step()
        return APPLIED if finite else self.refuse(loss)

    def vote(self, part: int, gradient: Blocks, loss: float, sums: Sums | None, examples: int) -> Outcome:
        """Apply the gradient of a batch, if that of every stage is finite."""
        driver = self.parts.driver
        finite = not any_non_finite(gradient)
        own = StageVote(term=driver.machine.term, batch=part, finite=finite, loss=loss, sums=sums)
        self._voted = own, gradient, examples
        return self._obey_verdict(*driver.vote(own))

    def _obey_verdict(self, verdict: StageVerdict, sums: Sums | None) -> Outcome:
        """Apply the gradient that this stage has voted on, or leave it out, as all stages do."""
        assert self._voted is not None, "a verdict follows a vote"
        own, gradient, examples = self._voted
        examples = examples if self.leads else 0  # all stages have the same ones
        outcome = self.apply([gradient], [own.batch], [sums], verdict.loss, examples, finite=verdict.applied)
        self._voted = None
        self.parts.driver.reached(self.global_step)
        return outcome

    def go_back(self) -> None:
        """Enter the next term, in which a leader that was started again may cut the model otherwise."""
        self.heed_end()
        frame = self.parts.driver.enter(self.parts.number, hash_of(self.parts.problem))
        if not isinstance(frame.message, PipelineTerm):
            raise PeerLostError("the leader has ended this call of fit while this stage was away from it")
        if anew := frame.message.begins != self.parts.begins:
            self.parts = self.parts.cut_at(frame.message.begins)
        self._hold_again(start_from(frame.message, frame.blocks, self.parts.own_plan))
        if anew:
            self._compute_here()
        self._begin(frame.message.term)

    def _conclude(self) -> bool:
        self.heed_end()
        frame = self.parts.driver.await_conclusion()
        assert isinstance(frame.message, Conclude)
        self.state.tally.rows.update(frame.message.rows)
        for spec, block in zip(self.parts.problem.variables, frame.blocks, strict=True):
            self._final[spec.name] = np.array(block).reshape(spec.shape)
        return True

    # For other stages

    def _values(self) -> Blocks:
        with self.lock:
            specs = self.parts.own_plan.variables
            return [np.array(self.store.variables[spec.name]).reshape(-1) for spec in specs]

    def _mark(self) -> SnapshotReply:
        with self.lock:
            return self.state.mark()

    def _rows_of_snapshot(self, question: SnapshotRows) -> Array:
        with self.lock:
            read = self.store.read_snapshot
            return np.array(read(question.part, question.array, question.start, question.stop))

    def _obey(self, message: Control, blocks: Blocks) -> None:
        specs = self.parts.own_plan.variables
        values = {spec.name: block.reshape(spec.shape) for spec, block in zip(specs, blocks, strict=False)}
        super().order(FitOrder(message.optimizer, message.stop, values or None))
        if values:
            self.replicas[0].forget()

    def order(self, order: FitOrder) -> None:
        return

    def close(self, error: BaseException | None = None) -> None:
        """End it; where this task was told to end, the leader may still save what this stage has."""
        self._given_up = error is not None
        if self._notice is not None:
            self._notice.close()
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


def enter(driver: StageDriver, number: int, model_hash: str, parts_of: PartsOf) -> StageTraining | None:
    """Enter a call of `fit` in a stage that does not lead; None: it has ended already."""
    frame = driver.enter(number, model_hash)
    if isinstance(frame.message, Over) or not isinstance(frame.message, PipelineTerm):
        return None
    parts = parts_of(frame.message.begins)
    start = start_from(frame.message, frame.blocks, parts.own_plan)
    return StageTraining(parts, start, frame.message.term)
