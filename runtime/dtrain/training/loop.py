"""The training loop: one replica's part of a call of `fit`, from the first batch to the last global step.

It reads top to bottom: take a batch, compute a gradient, give it to the session, note what came of it.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import nan

from dtrain.callbacks import CallbackList
from dtrain.errors import NonFiniteGradientError
from dtrain.messages import Verdict
from dtrain.strategy import Session
from dtrain.training.batches import Batch, BatchStream
from dtrain.training.epochs import Epochs
from dtrain.training.evaluation import Totals
from dtrain.training.steps import Logs, TrainingStep

MAX_REFUSED = 100
"""Gradients in a row that are not finite, after which training has failed: it would never reach its last step."""

Validate = Callable[[range], dict[str, float]]


@dataclass
class EpochLog:
    """The leader's account of the epoch under way; one without a batch of its own shows the numbers of the one before."""

    totals: Totals
    started_s: float = field(default_factory=time.monotonic)
    shown: dict[str, float] = field(default_factory=lambda: {"loss": nan})

    def results(self) -> dict[str, float]:
        """The means so far."""
        if self.totals.examples:
            self.shown = self.totals.results()
        return dict(self.shown)

    def restart(self) -> None:
        """A new epoch begins."""
        self.started_s = time.monotonic()
        self.totals.reset()


@dataclass
class TrainingLoop:
    """Everything that one replica needs; `run` is the loop.

    Attributes:
        make_step: of a batch.
        train_step: computes the gradients of a step and returns numbers, the loss among them.
        explain: why a step's gradients are not finite.
        validate: numbers to add to those of epochs that end together.
        refused: how many gradients in a row were not finite.
        explained: why the first of all was not.
    """

    session: Session
    epochs: Epochs
    make_step: Callable[[Batch], TrainingStep]
    train_step: Callable[[TrainingStep], Logs]
    explain: Callable[[TrainingStep], str]
    log: EpochLog | None = None
    callbacks: CallbackList | None = None
    validate: Validate | None = None
    verbose: bool = True
    refused: int = 0
    explained: str = ""

    def run(self, batches: BatchStream) -> None:
        """Train until the session is finished; the leader (who has a log) also accounts for every epoch."""
        session = self.session
        epoch = self.epochs.epoch_at(session.entered_step, session)
        self._call("on_epoch_begin", epoch)
        while True:
            reached = self.epochs.epoch_at(session.global_step, session)
            if reached < epoch:  # the servers have gone back to a checkpoint
                epoch = reached
            elif reached != epoch:
                self._end_epochs(epoch, reached)
                epoch = reached
            if session.finished:
                return
            self._contribute(batches.at(session.batch))

    def _contribute(self, batch: Batch) -> None:
        """One batch: a gradient, a verdict. The next batch may be the same again, on new weights (`on_stale`)."""
        session, number = self.session, self.session.batch
        step = self.make_step(batch)
        logs = self.train_step(step)
        loss = step.contribute(logs)
        try:
            answer = session.step(loss, batch.size)
        except NonFiniteGradientError as error:
            raise NonFiniteGradientError(f"{error}; {self.explain(step)}") from error
        if answer.verdict is Verdict.REFUSED:
            self._call("on_train_batch_end", self.epochs.step_in_epoch(session), {"loss": loss})
            self._note_refusal(step)
            return
        self.refused = 0
        repeated = session.batch == number and not session.finished
        if self.log is not None and not repeated and answer.verdict is not Verdict.VOID:
            self.log.totals.add(batch, step, logs)
            self._call("on_train_batch_end", self.epochs.step_in_epoch(session), {"loss": loss})

    def _note_refusal(self, step: TrainingStep) -> None:
        """A gradient held NaN or infinity; say why, once, and give up when nothing else comes."""
        self.refused += 1
        if not self.explained:
            self.explained = self.explain(step)
            where = f"step {self.session.global_step + 1}"
            print(f"dtrain: {where}: a gradient was not applied: {self.explained}", file=sys.stderr, flush=True)
        if self.refused == MAX_REFUSED:
            raise NonFiniteGradientError(f"{MAX_REFUSED} gradients in a row held NaN or infinity; the first: {self.explained}")

    def _end_epochs(self, epoch: int, reached: int) -> None:
        """Close every epoch from `epoch` on that ended before `reached`; others' steps may end several at once."""
        if self.log is None:
            return
        results = self.log.results()
        if self.validate is not None:
            results.update(self.validate(range(epoch, reached)))
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
