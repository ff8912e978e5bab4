"""The training loop: one replica's part of a call of `fit`, from the first batch to the last global step.

It reads top to bottom: take a batch, compute a gradient, give it to the session, note what came of it.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dtrain.callbacks import CallbackList
from dtrain.learning.losses import Loss
from dtrain.learning.networks import Network
from dtrain.messages import Verdict
from dtrain.strategy import Session
from dtrain.training.batches import Batch
from dtrain.training.epochs import EpochLog, Epochs

Validate = Callable[[], dict[str, float]]


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
