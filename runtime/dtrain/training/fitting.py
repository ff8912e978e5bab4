"""A call of `fit` in one task: the session that is opened, the loop that is run, what the leader does besides.

In the evaluator it is `follow`: every newest checkpoint is evaluated, until training has ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dtrain.callbacks import Callback, CallbackList, History
from dtrain.errors import CheckpointError
from dtrain.strategy import Problem, Session
from dtrain.training.architecture import Architecture
from dtrain.training.batches import Batches
from dtrain.training.epochs import EpochLog, Epochs
from dtrain.training.evaluation import Compiled, Validation
from dtrain.training.loop import TrainingLoop, Validate


@dataclass
class Fit:
    """One call of `fit`.

    Attributes:
        owner: the same for every `fit` of one model with one optimizer; see `Problem`.
        callbacks: run on the leader.
        validation: None if there is none.
    """

    model: Architecture
    compiled: Compiled
    owner: object
    callbacks: Sequence[Callback] = ()
    validation: Validation | None = None
    verbose: bool = True
    history: History = field(default_factory=History)

    def run(self, batches: Batches, epochs: Epochs) -> History:
        """Train this replica until the last global step."""
        model, strategy = self.model, self.model.strategy
        values = model.weights
        problem = Problem(
            model.network.variables, lambda: values, self.compiled.optimizer.get_config(), epochs.max_steps, self.owner
        )
        session = strategy.open(problem)
        model.weights = session.weights
        try:
            rng = np.random.default_rng([strategy.seed, session.rank + 1])
            loop = TrainingLoop(model.network, self.compiled.loss, session, epochs, rng)
            if strategy.is_leader:
                self._account(loop)
            used = (session.global_step - session.first_step) * session.batches_per_step
            loop.run(batches.forever(session.rank, session.replicas, used))
        except BaseException as error:
            session.close(error)
            raise
        finally:
            model.weights = {name: np.array(value) for name, value in session.weights.items()}
        session.close()
        if loop.callbacks is not None:
            loop.callbacks.call("on_train_end")
        return self.history

    def _account(self, loop: TrainingLoop) -> None:
        """Give the leader's loop its log, its callbacks and its validation."""
        params = {"epochs": loop.epochs.epochs, "steps": loop.epochs.steps_per_epoch}
        loop.log = EpochLog(self.compiled.fresh_metrics())
        loop.callbacks = CallbackList([*self.callbacks, self.history], self.model, params)
        loop.verbose = self.verbose
        if self.validation is not None and (loop.callbacks.monitor_validation or not self.model.strategy.has_evaluator):
            loop.validate = self._validate(loop.session, self.validation)
        loop.callbacks.call("on_train_begin")

    def _validate(self, session: Session, validation: Validation) -> Validate:
        return lambda: self.compiled.evaluate(self.model.network, session.weights, validation.once())

    def follow(self) -> History:
        """The evaluator's part.

        Raises:
            CheckpointError: a checkpoint is of another model.
        """
        model = self.model
        if self.validation is None:
            print("the evaluator has nothing to do: fit was given no validation_data", flush=True)
            return self.history
        model.build_for(self.validation.batches)
        expected = {spec.name: spec.shape for spec in model.network.variables}
        for checkpoint in model.strategy.checkpoints():
            found = {name: np.shape(value) for name, value in checkpoint.weights.items()}
            if found != expected:
                raise CheckpointError(f"the checkpoint of step {checkpoint.global_step} holds {found}; this model has {expected}")
            model.weights = dict(checkpoint.weights)
            results = self.compiled.evaluate(model.network, model.weights, self.validation.once())
            numbers = " - ".join(f"{name}: {value:.4f}" for name, value in results.items())
            print(f"evaluation at step {checkpoint.global_step} - {numbers}", flush=True)
            model.strategy.evaluated(checkpoint.global_step, results)
            self.history.on_epoch_end(checkpoint.global_step, {f"val_{name}": value for name, value in results.items()})
        return self.history
