"""The training loop: one replica's part of a call of `fit`, from the first batch to the last global step.

It reads top to bottom: take a batch, compute a gradient, give it to the session, note what came of it. Epochs are counted in
global steps, so they mean the same in every strategy and for any number of replicas.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from dtrain.callbacks import CallbackList
from dtrain.errors import InputError
from dtrain.learning.losses import Loss
from dtrain.learning.metrics import Mean, Metric
from dtrain.learning.networks import Network
from dtrain.messages import Verdict
from dtrain.strategy import Session
from dtrain.training.batches import Batch, Batches

Validate = Callable[[], dict[str, float]]


@dataclass(frozen=True)
class Epochs:
    """How long training goes on, in global steps."""

    steps_per_epoch: int
    epochs: int
    initial_epoch: int = 0

    @classmethod
    def of(cls, batches: Batches, steps_per_epoch: int | None, epochs: int, initial_epoch: int, batches_per_step: int) -> "Epochs":
        """As the user said; by default an epoch sees every batch once, over all replicas.

        Raises:
            InputError: the data are endless and nobody said how long an epoch is, or a number is out of range.
        """
        if steps_per_epoch is None:
            if batches.count is None:
                raise InputError("fit: the dataset's length is unknown or infinite; expected steps_per_epoch")
            steps_per_epoch = ceil(batches.count / batches_per_step)
        if steps_per_epoch < 1 or not 0 <= initial_epoch <= epochs:
            raise InputError(
                "fit: expected steps_per_epoch >= 1 and 0 <= initial_epoch <= epochs, found "
                f"steps_per_epoch {steps_per_epoch}, initial_epoch {initial_epoch}, epochs {epochs}"
            )
        return cls(steps_per_epoch, epochs, initial_epoch)

    @property
    def max_steps(self) -> int:
        """The global step at which this call of fit ends."""
        return (self.epochs - self.initial_epoch) * self.steps_per_epoch

    def epoch_of(self, session: Session) -> int:
        """The epoch that the session's next step belongs to."""
        return self.initial_epoch + (session.global_step - session.first_step) // self.steps_per_epoch

    def step_in_epoch(self, session: Session) -> int:
        """The number within its epoch of the step just made, from 0."""
        return (session.global_step - session.first_step - 1) % self.steps_per_epoch


@dataclass
class EpochLog:
    """The leader's account of the epoch under way."""

    metrics: list[Metric]
    loss: Mean = field(default_factory=lambda: Mean(name="loss"))
    started_s: float = field(default_factory=time.monotonic)

    def add(self, batch: Batch, loss: float, outputs: object) -> None:
        """A batch was contributed."""
        self.loss.update_state(loss, sample_weight=batch.size)
        for metric in self.metrics:
            metric.update_state(batch.y, outputs)

    def results(self) -> dict[str, float]:
        """The means so far."""
        return {"loss": float(self.loss.result()), **{str(metric.name): float(metric.result()) for metric in self.metrics}}

    def restart(self) -> None:
        """A new epoch begins."""
        self.started_s = time.monotonic()
        for metric in (self.loss, *self.metrics):
            metric.reset_state()


@dataclass
class TrainingLoop:
    """Everything that one replica needs; `run` is the loop."""

    network: Network
    loss: Loss
    session: Session
    epochs: Epochs
    rng: np.random.Generator
    log: EpochLog | None = None
    callbacks: CallbackList | None = None
    validate: Validate | None = None
    verbose: bool = True

    def run(self, batches: Iterator[Batch]) -> None:
        """Train until the session is finished; the leader (who has a log) also accounts for every epoch."""
        session = self.session
        epoch = self.epochs.epoch_of(session)
        self._call("on_epoch_begin", epoch)
        while not session.finished:
            batch = next(batches)
            self._contribute(batch)
            reached = self.epochs.epoch_of(session)
            if reached != epoch:
                self._end_epochs(epoch, reached)
                epoch = reached

    def _contribute(self, batch: Batch) -> None:
        """One batch: a gradient, a verdict; tried again on new weights where the session says so."""
        session, retry = self.session, True
        while retry and not session.finished:
            result = self.network.loss_and_gradients(
                session.weights, batch.x, batch.y, self.loss, session.gradients, sample_weight=batch.sample_weight, rng=self.rng
            )
            for name, value in result.state_updates.items():
                session.updates[name][...] = value
            answer = session.step(result.loss, batch.size)
            retry = answer.retry
        if self.log is not None and answer.verdict is not Verdict.REFUSED:
            self.log.add(batch, result.loss, result.outputs)
            if self.callbacks is not None:
                self.callbacks.call("on_train_batch_end", self.epochs.step_in_epoch(session), {"loss": result.loss})

    def _end_epochs(self, epoch: int, reached: int) -> None:
        """Close every epoch from `epoch` on that ended before `reached`; others' steps may end several at once."""
        if self.log is None:
            return
        results = self.log.results()
        if self.validate is not None:
            results.update({f"val_{name}": value for name, value in self.validate().items()})
        for ended in range(epoch, min(reached, self.epochs.epochs)):
            if self.verbose:
                numbers = " - ".join(f"{name}: {value:.4f}" for name, value in results.items())
                elapsed_s = time.monotonic() - self.log.started_s
                print(f"epoch {ended + 1}/{self.epochs.epochs} - {elapsed_s:.1f} s - {numbers}", flush=True)
            self._call("on_epoch_end", ended, results)
            if ended + 1 < self.epochs.epochs:
                self._call("on_epoch_begin", ended + 1)
        self.log.restart()

    def _call(self, method: str, *arguments: object) -> None:
        if self.callbacks is not None:
            self.callbacks.call(method, *arguments)
