"""A call of `fit` in one task: a training and the loop, in the leader with callbacks and validation.

In the evaluator it is `follow`: every newest checkpoint is evaluated, until training has ended.
"""

import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from weakref import WeakKeyDictionary, ref

import msgspec
import numpy as np
from msgspec.structs import replace

from dtrain.callbacks import Callback, CallbackList, History, ProgressBar
from dtrain.callbacks.recording import numbers
from dtrain.checkpoints import OptimizerState
from dtrain.errors import CheckpointError, InputError
from dtrain.learning import optimizers
from dtrain.learning.optimizers.applied import Iterations
from dtrain.runs.trial_reports import EVALUATED, append_report
from dtrain.state.feed import UNKNOWN, Feed
from dtrain.state.rounds import Rounds
from dtrain.strategies.context import seed_of
from dtrain.strategies.interface import (
    Computing,
    FitStrategy,
    Problem,
    Training,
    Weights,
)
from dtrain.strategies.passed_over import PassedOverTraining
from dtrain.training.architecture import Architecture
from dtrain.training.batches import Batches
from dtrain.training.compiled import Compiled, describe_if_data
from dtrain.training.evaluation import NO_CALLBACKS, Validation
from dtrain.training.fits.handover import Handover
from dtrain.training.fits.leading import EpochLog, Epochs, Leading, Steering, Validate
from dtrain.training.fits.loop import TrainingLoop, why_not_finite
from dtrain.training.parts import Batch, RoundStream, forecasts_of, parts_ahead
from dtrain.training.steps import Logs, StepMaker, Totals, TrainingStep, chance_of
from dtrain.variables import TABLE_BYTES, VariableSpec

INPUT_BOUND = 0.1
"""The share of the time from which a training is said to be bound by its input, if it is also so long:"""
INPUT_BOUND_S = 1.0


class OptimizerOwner(msgspec.Struct, eq=False):
    """The identity of one model compiled once, the same for every `fit`; see `Problem`.

    Attributes:
        state: of the optimizer, where the strategy does not keep it: from a file, or since another model has
            trained. The next `fit` begins with it.
        updates: which the optimizer has made before the next `fit`.
        training: the `fit` that is under way.
    """

    state: OptimizerState | None = None
    updates: int = 0
    training: Training | None = None

    def __post_init__(self) -> None:
        self.updates = self.updates if self.state is None else self.state.step

    def state_in(self, strategy: FitStrategy) -> OptimizerState | None:
        """Return the optimizer's state, from `fit` or from a file; None if it has made no update."""
        own = self.state if self.training is None else self.training.optimizer_state
        return own or strategy.optimizer_state(self)


_trained: WeakKeyDictionary[FitStrategy, OptimizerOwner] = WeakKeyDictionary()
"""The owner for which a strategy keeps the state of an optimizer: that of the newest `fit`."""
_in_fit: WeakKeyDictionary[FitStrategy, threading.RLock] = WeakKeyDictionary()
"""Held by the thread that is in a `fit` of a strategy."""
_models: WeakKeyDictionary[Iterations, ref[Architecture]] = WeakKeyDictionary()
"""The model that an optimizer trains, by the count of its updates."""


class Fit(msgspec.Struct):
    """One call of `fit`.

    Attributes:
        owner: the same for every `fit` of one model with one optimizer; see `Problem`.
        class_weight: factors of the examples' weights, by class.
        alone: whether the replica of rank 0 computes every part.
    """

    model: Architecture
    compiled: Compiled
    owner: OptimizerOwner
    train_step: Callable[[TrainingStep], Logs]
    evaluate: Callable[[Weights, Iterable[Batch], CallbackList], dict[str, float]]
    callbacks: Sequence[Callback] = ()
    validation: Validation | None = None
    class_weight: Mapping[int, float] | None = None
    verbose: int | str = "auto"
    alone: bool = False
    history: History = msgspec.field(default_factory=History)
    _computing: Computing = msgspec.field(default_factory=Computing)

    def __post_init__(self) -> None:
        """Check that the optimizer is this model's, and that the callbacks get the numbers that they want."""
        optimizer = self.compiled.optimizer
        other = _models.get(optimizer.iterations, ref(self.model))()
        if other is not None and other is not self.model:
            raise InputError(
                f"fit: expected an optimizer of its own for {self.model.name}, found the {optimizer.name} of "
                f"{other.name}; compile each model with another object"
            )
        _models[optimizer.iterations] = ref(self.model)
        if self.validation is not None and not self.model.strategy.context.validates:
            for callback in self.callbacks:
                if callback.monitors_validation():
                    raise InputError(
                        f"fit: {type(callback).__name__} monitors a val_* number, which the evaluator "
                        "computes later; monitor another one, or set training.validation: leader"
                    )

    @property
    def strategy(self) -> FitStrategy:
        return self.model.strategy

    def run(self, batches: Batches, epochs: Epochs) -> History:
        """Train to the last step; raise an `InputError` if another thread of this process is in a `fit`."""
        in_fit = _in_fit.setdefault(self.strategy, threading.RLock())  # a callback may call fit
        if not in_fit.acquire(blocking=False):
            raise InputError(
                "fit: another thread of this process is in a fit, and there is one strategy in a process; "
                "call one after the other"
            )
        self._computing.network = self.model.network if self.model.has_layers else None
        try:
            return self._run(batches, epochs)
        finally:
            in_fit.release()

    def _warn_of_places(self) -> None:
        placed = next((each for each in self.model.network.layers if each.placed_on is not None), None)
        if placed is not None:
            warnings.warn(
                f"{placed.label} is placed on {placed.placed_on}, which training.strategy: pipeline alone "
                "heeds: each replica computes the whole model",
                stacklevel=2,
            )

    def _run(self, batches: Batches, epochs: Epochs) -> History:
        model, strategy = self.model, self.strategy
        horizon = int(self.compiled.optimizer.iterations) + epochs.max_steps
        steps_per_epoch, local_steps = epochs.steps_per_epoch, strategy.context.local_steps
        rounds = Rounds(local_steps, steps_per_epoch) if local_steps else None
        epochs = epochs.in_rounds(rounds)
        self.compiled.optimizer.horizon = horizon  # type: ignore[misc]
        values = model.arrays
        leads = strategy.context.is_leader or strategy.context.may_lead
        description = describe_if_data(model, self.compiled) if leads else None
        folders = (
            callback.resume_from() for callback in (self.callbacks if strategy.context.is_leader else ())
        )
        problem = Problem(
            variables=self._variables(),
            initial_values=lambda: values,
            optimizer=optimizers.serialize(self.compiled.optimizer),
            max_steps=epochs.max_steps,
            owner=self.owner,
            model=description,
            state=self.owner.state,
            resume_from=next((folder for folder in folders if folder is not None), None),
            steps_per_epoch=epochs.steps_per_epoch,
            first_epoch=epochs.initial_epoch,
            alone=self.alone,
            feed=UNKNOWN if self.alone else self._feed(batches, steps_per_epoch, with_files=leads),
            constraints=model.network.graph.constraints() if model.has_layers else {},
            rounds=rounds,
            updates=self.owner.updates,
            computing=self._computing,
        )
        if (before := _trained.get(strategy, self.owner)) is not self.owner and before.training is None:
            before.state = before.state_in(strategy)
        training = self.owner.training = strategy.open(problem)
        _trained[strategy] = self.owner
        self.owner.state = training.optimizer_state if isinstance(training, PassedOverTraining) else None
        model.arrays = training.weights
        model.stop_training = False
        # A training that a callback has kept goes on, also if this process has made some of its steps before.
        updates = 0 if problem.resume_from else self.owner.updates

        def updates_made() -> int:
            steps = training.global_step - training.first_step
            return updates + (steps if rounds is None else rounds.steps_before(steps))

        self.compiled.optimizer.iterations.follow(updates_made)
        try:
            loop = self._loop(training, epochs)
            loop.begin()
            ranks = [replica.rank for replica in training.replicas]
            streams = batches.streams(ranks, training.cut, self.class_weight)
            if rounds is not None:
                streams = [RoundStream(stream, rounds, training) for stream in streams]
            trace, activity = strategy.context.trace, strategy.context.activity
            forecasts = forecasts_of(ranks, training.cut, strategy.context.num_replicas, epochs.max_steps)
            read_s, begun_s = activity.input_s, time.monotonic()
            with parts_ahead(streams, batches.tuning, forecasts) as parts:
                loop.run([activity.reading(trace.timed("input", part_of)) for part_of in parts])
            self._say_of_input(activity.input_s - read_s, time.monotonic() - begun_s)
        except BaseException as error:
            training.close(error)
            raise
        finally:
            if _trained[strategy] is not self.owner:  # a callback has trained another model
                self.owner.state = training.optimizer_state
            self.owner.training = None
            self.owner.updates = int(self.compiled.optimizer.iterations)
            self.compiled.optimizer.iterations.assign(self.owner.updates)
            # copies, but tables as they are, whose rows are read where they lie
            model.arrays = {
                spec.name: training.weights[spec.name]
                if spec.sparse
                else np.array(training.weights[spec.name])
                for spec in problem.variables
            }
        training.close()
        if loop.leading is not None:
            loop.leading.callbacks.call("on_train_end", loop.leading.log.ended)
        self.history.take(training.recorded if loop.leading is None else loop.leading.log.rows)
        return self.history

    def _feed(self, batches: Batches, steps_per_epoch: int, *, with_files: bool) -> Feed:
        return Feed(
            batches.batch_size,
            batches.count or 0,
            steps_per_epoch,
            batches.pipelines,
            batches.files if with_files else (),
            self.strategy.context.local_steps,
        )

    def _say_of_input(self, read_s: float, elapsed_s: float) -> None:
        """Print in the leader which share of the training was spent on waiting for batches, if it is much."""
        share = read_s / elapsed_s if elapsed_s else 0.0
        if self.strategy.context.is_leader and share >= INPUT_BOUND and read_s >= INPUT_BOUND_S:
            print(
                f"fit: input-bound: {share:.0%} of each step; dataset.map(..., num_parallel_calls=AUTOTUNE) "
                "and .prefetch(AUTOTUNE) read ahead",
                file=sys.stderr,
                flush=True,
            )

    def _variables(self) -> tuple[VariableSpec, ...]:
        """Return the variables as they are placed.

        A table travels by rows if it is large, or if the optimizer treats rows that are not read apart.
        """
        every = self.compiled.optimizer.sparse_differs
        return tuple(
            replace(v, sparse=v.sparse and (every or v.nbytes >= TABLE_BYTES))
            for v in self.model.created_variables
        )

    def _loop(self, training: Training, epochs: Epochs) -> TrainingLoop:
        context = self.strategy.context
        whole = self._computing.stage is None
        if whole and context.is_leader and context.num_replicas > 1 and self.model.has_layers:
            self._warn_of_places()
        return TrainingLoop(
            training,
            make_step=self._steps(training).make,
            train_step=context.trace.timed("compute", self.train_step),
            explain=lambda step: why_not_finite(self._computing.network if whole else None, step),
            make_totals=partial(Totals, self.compiled),
            lead=partial(self._lead, training, epochs),
            weighs_examples=context.weighs_examples,
            activity=context.activity,
        )

    def _steps(self, training: Training) -> StepMaker:
        model, context = self.model, self.strategy.context
        first_step = self.owner.updates if context.local_steps else training.first_step
        return StepMaker(
            model,
            self.compiled.losses,
            partial(chance_of, seed_of(context), first_step, training.cut.parts),
            of_parts=not context.local_steps,
            weighs_examples=context.weighs_examples,
            sums=model.has_layers and model.network.sums_over_replicas,
            computing=self._computing,
        )

    def _lead(self, training: Training, epochs: Epochs) -> Leading:
        validates = self.validation is not None
        optimizer = self.compiled.optimizer
        callbacks = self._callbacks(training, epochs, validates)
        leading = Leading(
            training,
            epochs,
            self.strategy.context.activity,
            EpochLog(training, Totals(self.compiled), self.history),
            callbacks,
            Steering(self.model, optimizer, training, holds=validates or bool(self.callbacks)),
            Handover(callbacks.callbacks, self.model, optimizer, training),
        )
        if self.validation is not None and self.strategy.context.validates:
            leading.validate = self._validate(training, self.validation, callbacks)
        elif self.validation is not None:
            leading.validate = self._leave_to_evaluator(training, epochs, self.validation, leading.log)
        return leading

    def _callbacks(self, training: Training, epochs: Epochs, validates: bool) -> CallbackList:
        for callback in self.callbacks:
            callback.set_training(training)
        callbacks = [*self.callbacks, self.history]
        if self.verbose:
            bar = ProgressBar(self.verbose)
            callbacks = [bar.clearing(), *callbacks, bar]
        params = {
            "epochs": epochs.epochs,
            "steps": epochs.steps_per_epoch,
            "verbose": self.verbose,
            "validates": validates,
        }
        return CallbackList(callbacks, self.model, params)

    def _validate(self, training: Training, validation: Validation, callbacks: CallbackList) -> Validate:
        def validate(epochs: Iterable[int]) -> dict[str, float]:
            if not validation.is_due(epochs):
                return {}
            results = self.evaluate(training.weights, validation.once(), callbacks)
            return {f"val_{name}": value for name, value in results.items()}

        return validate

    def _leave_to_evaluator(
        self, training: Training, epochs: Epochs, validation: Validation, log: EpochLog
    ) -> Validate:
        """Save each epoch's last step for the evaluator, whose numbers later join the rows of epochs."""
        names = [f"val_{name}" for name in self.compiled.result_names]

        def validate(ended: Iterable[int]) -> dict[str, float | None]:
            for epoch, row in list(log.rows.items()):
                found = self.strategy.evaluations.get(epochs.last_step(epoch, training), {})
                log.record(epoch, row | {f"val_{name}": value for name, value in found.items()})
            if not validation.is_due(ended):
                return {}
            training.save()
            return dict.fromkeys(names)

        return validate

    def follow(self) -> History:
        """Evaluate checkpoints until training has ended, the evaluator's part.

        Without validation data it ends the process with code 0; a checkpoint of another model is a
        `CheckpointError`.
        """
        model = self.model
        if self.validation is None:
            print("the evaluator ends: fit was given no validation_data to evaluate", flush=True)
            raise SystemExit(0)  # else the program would continue with an untrained model
        followed = self.strategy.checkpoints(self.validation.pace, self.history.take)
        model.build_for(self.validation.batches)
        expected = {spec.name: spec.shape for spec in model.variable_specs}
        last: tuple[int, dict[str, float]] | None = None
        for checkpoint in followed:
            found = {name: np.shape(value) for name, value in checkpoint.weights.items()}
            if found != expected:
                raise CheckpointError(
                    f"the checkpoint of step {checkpoint.global_step} holds {found}; this model has "
                    f"{expected}"
                )
            model.arrays = dict(checkpoint.weights)
            self.compiled.optimizer.iterations.assign(checkpoint.updates)
            results = self.evaluate(model.arrays, self.validation.once(), NO_CALLBACKS)
            print(f"evaluation at step {checkpoint.global_step} - {numbers(results)}", flush=True)
            self.strategy.evaluated(checkpoint.global_step, results)
            if checkpoint.global_step:  # what has learned nothing is no result of a trial
                append_report(checkpoint.global_step, results, EVALUATED)
            self.validation.evaluated(checkpoint.global_step, results, False)
            last = checkpoint.global_step, results
        if last is not None:
            self.validation.evaluated(*last, True)
        return self.history
