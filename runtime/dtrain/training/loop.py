"""The training loop: one replica's part of a call of `fit`, from the first batch to the last global step.

It reads top to bottom: take a batch, compute a gradient, give it to the session, note what came of it.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from math import nan

from dtrain.callbacks import CallbackList
from dtrain.errors import NonFiniteGradientError
from dtrain.messages import Verdict
from dtrain.strategy import Session
from dtrain.training.batches import Batch, BatchStream
from dtrain.training.diagnosis import step_in_work
from dtrain.training.epochs import Epochs
from dtrain.training.evaluation import Totals
from dtrain.training.steering import Steering
from dtrain.training.steps import Logs, TrainingStep

MAX_REFUSED = 100
"""Gradients in a row that are not finite, after which training has failed: it would never reach its last step."""

Validate = Callable[[range], dict[str, float]]


@dataclass
class EpochLog:
    """The leader's account of the epoch under way; one without a batch of its own shows the numbers of the one before.

    Attributes:
        ended: all numbers of the epoch that ended last.
    """

    totals: Totals
    shown: dict[str, float] = field(default_factory=lambda: {"loss": nan})
    ended: dict[str, float] = field(default_factory=dict)

    def results(self) -> dict[str, float]:
        """The means so far."""
        if self.totals.examples:
            self.shown = self.totals.results()
        return dict(self.shown)


@dataclass
class TrainingLoop:
    """Everything that one task needs; `run` is the loop.

    Attributes:
        trains: False for a leader that only looks on.
        make_step: of a batch.
        train_step: computes the gradients of a step and returns numbers, the loss among them.
        explain: why a step's gradients are not finite.
        log, callbacks, steering: the leader's.
        validate: numbers to add to those of epochs that end together.
        open: whether an epoch has begun that has not ended.
        refused: how many gradients in a row were not finite.
        explained: why the first of all was not.
    """

    session: Session
    epochs: Epochs
    make_step: Callable[[Batch], TrainingStep]
    train_step: Callable[[TrainingStep], Logs]
    explain: Callable[[TrainingStep], str]
    trains: bool = True
    log: EpochLog | None = None
    callbacks: CallbackList | None = None
    steering: Steering | None = None
    validate: Validate | None = None
    open: bool = False
    refused: int = 0
    explained: str = ""

    def run(self, batches: BatchStream) -> None:
        """Train until the session is finished; the leader (who has a log) also accounts for every epoch."""
        session = self.session
        epoch = self.epochs.epoch_at(session.entered_step, session)
        self._begin_epoch(epoch)
        while True:
            reached = self.epochs.epoch_at(session.global_step, session)
            if session.finished:
                if self.open:  # it may have been stopped in the middle of an epoch
                    self._end_epochs(epoch, max(reached, epoch + 1))
                if session.conclude():
                    return
            elif reached > epoch:
                self._end_epochs(epoch, reached)
            elif reached < epoch:
                self._begin_epoch(reached)  # the servers went back to a checkpoint
            elif self.trains:
                self._contribute(batches.at(session.batch))
            else:
                session.wait(self.epochs.last_step(epoch, session))
            epoch = reached

    def _contribute(self, batch: Batch) -> None:
        """One batch: a gradient, a verdict. The next batch may be the same again, on new weights (`on_stale`)."""
        session, number = self.session, self.session.batch
        if self.callbacks is not None:
            self._call_batch("on_train_batch_begin", session.global_step + 1, {})
            if session.finished:
                return  # a callback has stopped training
        step = self.make_step(batch)
        logs = self.train_step(step)
        loss = step.contribute(logs)
        try:
            answer = session.step(loss, batch.size)
        except NonFiniteGradientError as error:
            raise NonFiniteGradientError(f"{error}; {self.explain(step)}") from error
        if answer.verdict is Verdict.VOID:
            step.take_back()
        if answer.verdict is Verdict.REFUSED:
            self._call_batch("on_train_batch_end", session.global_step, {"loss": loss})
            self._note_refusal(step)
            return
        self.refused = 0
        if self.log is not None and answer.verdict is not Verdict.VOID and (session.batch != number or session.finished):
            self.log.totals.add(batch, step, logs)
            self._call_batch("on_train_batch_end", session.global_step)

    def _note_refusal(self, step: TrainingStep) -> None:
        """A gradient held NaN or infinity; say why, once, and give up when nothing else comes."""
        self.refused += 1
        if not self.explained:
            self.explained = self.explain(step)
            where = step_in_work(self.session)
            print(f"dtrain: {where}: a gradient was not applied: {self.explained}", file=sys.stderr, flush=True)
        if self.refused == MAX_REFUSED:
            raise NonFiniteGradientError(f"{MAX_REFUSED} gradients in a row held NaN or infinity; the first: {self.explained}")

    def _begin_epoch(self, epoch: int) -> None:
        """Nothing is made of it before the leader has said so; see `Session.control`."""
        if self.steering is not None and epoch < self.epochs.epochs:
            self.open = True
            self._call("on_epoch_begin", epoch)
            self.steering.begin_epoch(self.epochs.last_step(epoch, self.session))

    def _end_epochs(self, epoch: int, reached: int) -> None:
        """Close every epoch from `epoch` on that ended before `reached`; others' steps may end several at once."""
        ended = range(epoch, min(reached, self.epochs.epochs))
        if self.log is None or self.steering is None or not ended:
            return
        self.open = False
        self.session.arrive()
        results = self.log.results()
        if self.validate is not None:
            results.update(self.validate(ended))
        self.log.totals.reset()
        for each in ended:
            self.log.ended = dict(results)
            self._call("on_epoch_end", each, self.log.ended)
            if self.steering.stopped or each + 1 == self.epochs.epochs:
                self.steering.tell_changes()
                return
            self._begin_epoch(each + 1)

    def _call(self, hook: str, *arguments: object) -> None:
        if self.callbacks is not None:
            self.session.arrive()
            self.callbacks.call(hook, *arguments)

    def _call_batch(self, hook: str, step: int, numbers: dict[str, float] | None = None) -> None:
        """A hook of batches, about that of a global step; by default with the epoch's means so far."""
        if self.callbacks is not None and self.log is not None and self.steering is not None:
            batch, log = self.epochs.step_in_epoch(step, self.session), self.log

            def logs() -> dict[str, float]:  # called only if somebody listens, who may read the weights
                self.session.arrive()
                return log.results() if numbers is None else numbers

            self.callbacks.call_batch(hook, batch, logs)
            self.steering.tell_changes()
