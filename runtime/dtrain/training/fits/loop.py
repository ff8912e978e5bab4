"""The training loop: one task's part of a call of `fit`, from the first batch to the last global step.

It reads top to bottom: take a part of a batch, compute a gradient, commit it, note what came of it. Several
replicas in one task take turns, or have a thread each (`Training.threads`).
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from dtrain.callbacks import CallbackList, History
from dtrain.errors import NonFiniteGradientError
from dtrain.messages import Row, Verdict
from dtrain.strategies.interface import Leader, Replica, Training
from dtrain.training.batches import Batch, Part
from dtrain.training.evaluation import Totals
from dtrain.training.fits.diagnosis import step_in_work
from dtrain.training.fits.epochs import Epochs
from dtrain.training.fits.replica_threads import ReplicaThreads
from dtrain.training.fits.steering import Steering
from dtrain.training.steps import Logs, TrainingStep

MAX_REFUSED = 100
"""Gradients in a row that are not finite, after which training has failed: it would never reach its last
step.
"""

PartOf = Callable[[int], Part]
"""Reads the part of a number."""
Validate = Callable[[range], Mapping[str, float | None]]


@dataclass
class EpochLog:
    """The leader's account of epochs: the sums of all replicas' contributions, as the strategy knows them.

    Attributes:
        rows: by epoch, the numbers of those that have ended.
        ended: those of the epoch that ended last.
    """

    training: Training
    leader: Leader
    totals: Totals
    history: History
    rows: dict[int, Row] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Continue where an earlier process of the leader stood."""
        self.rows = dict(self.training.recorded)
        self.history.take(self.rows)

    def results(self, epoch: int) -> dict[str, float]:
        """Return the means over all contributions to an epoch that are known so far."""
        return self.totals.results_of([sums for number, sums in self.leader.tally if number == epoch])

    def record(self, epoch: int, results: Mapping[str, Any]) -> None:
        """Have the numbers of an epoch kept, unless they are kept already."""
        row = {name: _plain(value) for name, value in results.items()}
        if self.rows.get(epoch) != row:
            self.rows[epoch] = row
            self.leader.record(next(reversed(self.rows)) + 1, {epoch: row})

    @property
    def lost(self) -> int | None:
        """The first epoch that has ended here but not on servers, which went back to a checkpoint."""
        kept = self.training.recorded
        if not self.rows or next(reversed(self.rows)) in kept:  # they are kept in their order
            return None
        return min(self.rows.keys() - kept.keys())

    def go_back_to(self, epoch: int) -> None:
        """Forget this epoch and later ones."""
        self.rows = {number: row for number, row in self.rows.items() if number < epoch}
        self.history.take(self.rows)


def _plain(value: Any) -> Any:
    """Return a number or an array in the form that travels and is saved."""
    if value is None or isinstance(value, str | bool):
        return value
    return float(value) if np.ndim(value) == 0 else np.asarray(value).tolist()


@dataclass
class TrainingLoop:
    """The parts of a task's training; `run` is the loop.

    Attributes:
        make_step: of the part of a number that has examples.
        train_step: computes the gradients of a step and returns numbers, the loss among them.
        explain: names the reason why a step's gradients are not finite.
        make_totals: makes what sums up loss and metrics; each thread has its own.
        log, callbacks, steering: the leader's.
        validate: numbers to add to those of epochs that end together; None stands for one that comes later.
        open: whether an epoch has begun that has not ended.
        refused: how many gradients in a row were not finite.
        explained: the reason why the first of all was not.
        pending: whether this replica is computing another part of the same step.
        warned: whether the warning about parts without examples was printed.
    """

    training: Training
    epochs: Epochs
    make_step: Callable[[Replica, int, Part, Batch], TrainingStep]
    train_step: Callable[[TrainingStep], Logs]
    explain: Callable[[TrainingStep], str]
    make_totals: Callable[[], Totals]
    log: EpochLog | None = None
    callbacks: CallbackList | None = None
    steering: Steering | None = None
    validate: Validate | None = None
    open: bool = False
    refused: int = 0
    explained: str = ""
    pending: bool = False
    warned: bool = False

    def __post_init__(self) -> None:
        self._totals = self.make_totals()

    def run(self, streams: Sequence[PartOf]) -> None:
        """Train until the strategy has finished, each replica on its stream of parts.

        The leader, which has a log, also accounts for every epoch.
        """
        if not (len(streams) > 1 and self.training.threads):
            self._run(self._way_to_advance(streams))
            return
        threads = ReplicaThreads(len(streams), self.training.abort)
        try:
            self._run(self._way_to_advance_together(streams, threads))
        finally:
            threads.close()

    def _run(self, advance: Callable[[], None]) -> None:
        """Train, a step with each call of `advance`, until the strategy has finished."""
        clock = self.training.clock
        epoch = self._first_epoch()
        self._begin_epoch(epoch)
        while True:
            # An epoch has not ended while some server may lack a part of it.
            reached = epoch if clock.repairs else self.epochs.epoch_at(clock.global_step, clock)
            if self.log is not None and (lost := self.log.lost) is not None:
                self._go_back_to(lost)
                reached = lost
            elif clock.finished:
                if self.open:  # training may have been stopped in the middle of an epoch
                    self._end_epochs(epoch, max(reached, epoch + 1))
                if self._is_concluded():
                    return
            elif reached > epoch:
                self._end_epochs(epoch, reached)
            else:
                advance()
            epoch = reached

    def _way_to_advance(self, streams: Sequence[PartOf]) -> Callable[[], None]:
        """Return what makes the next step: the one replica, several by turns, or only waiting for others."""
        turns = [
            partial(self._contribute, replica, part_of)
            for replica, part_of in zip(self.training.replicas, streams, strict=True)
        ]
        if len(turns) == 1:
            return turns[0]
        return partial(self._take_turns, turns) if turns else self._wait

    def _take_turns(self, turns: Sequence[Callable[[], None]]) -> None:
        for contribute in turns:
            if not self.training.clock.finished:
                contribute()

    def _way_to_advance_together(
        self, streams: Sequence[PartOf], threads: ReplicaThreads
    ) -> Callable[[], None]:
        """Return what makes the next step with all replicas at once.

        Callbacks run, and data are read, in this thread.
        """
        replicas = self.training.replicas
        clock = self.training.clock
        read: dict[int, Part] = {}
        loops = [
            replace(self, callbacks=None, log=None, steering=None, warned=number > 0)
            for number in range(len(replicas))
        ]
        contributions = [
            partial(loop._contribute, replica, read.__getitem__)
            for loop, replica in zip(loops, replicas, strict=True)
        ]

        def advance() -> None:
            read.clear()
            for replica, part_of in zip(replicas, streams, strict=True):
                number = replica.next_batch()
                read[number] = part_of(number)
            before = clock.global_step
            if (
                self.callbacks is not None
                and not self.pending
                and not self._begin_batch(replicas[-1], number)
            ):
                return
            threads.run(contributions)
            self.pending = loops[0].pending
            if loops[0].refused or (not self.pending and clock.global_step > before):
                self._call_batch("on_train_batch_end", clock.global_step)

        return advance

    def _wait(self) -> None:
        clock = self.training.clock
        if self.training.leader is not None:
            epoch = self.epochs.epoch_at(clock.global_step, clock)
            self.training.leader.wait(self.epochs.last_step(epoch, clock))

    def _is_concluded(self) -> bool:
        """Return whether nothing is left to do; a leader asks whether the last step is saved."""
        if self.log is not None and self.log.lost is not None:
            return False
        return self.training.leader is None or self.training.leader.conclude()

    def _first_epoch(self) -> int:
        """Return the epoch under way; in a restarted leader the first that its predecessor did not end."""
        epoch = self.epochs.epoch_at(self.training.clock.global_step, self.training.clock)
        if self.log is None:
            return epoch
        ended = max(self.log.rows, default=self.epochs.initial_epoch - 1)
        return min(epoch, ended + 1)

    def _contribute(self, replica: Replica, part_of: PartOf) -> None:
        """Compute one part: a gradient, a verdict. The next part may be the same again (`on_stale`)."""
        clock = self.training.clock
        number = replica.next_batch()
        part = part_of(number)
        hooked = self.callbacks is not None and not clock.repairs
        before = clock.global_step if hooked else 0
        if hooked and not self.pending and not self._begin_batch(replica, number):
            return
        if part.empty and not self.warned:
            self._warn_of_empty_parts(part)
        if part.batch is None:
            self.pending = replica.commit(0.0, 0, None, part.empty).verdict is Verdict.PENDING
            if hooked and clock.global_step > before:
                self._call_batch("on_train_batch_end", clock.global_step)
            return
        step = self.make_step(replica, number, part, part.batch)
        logs = self.train_step(step)
        loss = step.contribute(logs)
        sums = self._totals.of_one(part.batch, step, logs)
        try:
            outcome = replica.commit(loss, part.batch.size, sums, part.empty)
        except NonFiniteGradientError as error:
            raise NonFiniteGradientError(f"{error}; {self.explain(step)}") from error
        self.pending = outcome.verdict is Verdict.PENDING
        if outcome.verdict is Verdict.REFUSED:
            self._call_batch("on_train_batch_end", clock.global_step, {"loss": loss})
            self._note_refusal(step)
            return
        self.refused = 0
        if not hooked or self.pending or clock.global_step <= before:  # no step was made of the batch yet
            return
        if clock.finished or replica.next_batch() != number:
            self._call_batch("on_train_batch_end", clock.global_step)

    def _begin_batch(self, replica: Replica, number: int) -> bool:
        """Call the hooks of a batch that begins; return False if a callback has stopped training."""
        clock = self.training.clock
        self._call_batch("on_train_batch_begin", clock.global_step + 1, {})
        return not clock.finished and replica.next_batch() == number

    def _warn_of_empty_parts(self, part: Part) -> None:
        """Warn once of a batch with fewer examples than parts, if that changes the gradients."""
        if self.training.weighs_examples or all(replica.rank != 0 for replica in self.training.replicas):
            return
        self.warned = True
        share = (part.parts - part.empty) / part.parts
        has = "has" if part.empty == 1 else "have"
        print(
            f"fit: batches of {part.batch_size} over {part.parts} replicas: {part.empty} of {part.parts} "
            f"parts {has} no examples, so gradients are {share:.2f} times those of one process; "
            "see training.weighting",
            file=sys.stderr,
            flush=True,
        )

    def _note_refusal(self, step: TrainingStep) -> None:
        """Print, once, why a gradient held NaN or infinity; give up after too many of them in a row."""
        self.refused += 1
        if not self.explained:
            self.explained = self.explain(step)
            where = step_in_work(self.training.clock)
            print(
                f"dtrain: {where}: a gradient was not applied: {self.explained}", file=sys.stderr, flush=True
            )
        if self.refused == MAX_REFUSED:
            raise NonFiniteGradientError(
                f"{MAX_REFUSED} gradients in a row held NaN or infinity; the first: {self.explained}"
            )

    def _go_back_to(self, epoch: int) -> None:
        """Begin an epoch again whose end the servers have lost."""
        if self.log is not None and self.steering is not None:
            self.log.go_back_to(epoch)
            self.steering.goes_back()
            self._begin_epoch(epoch)

    def _begin_epoch(self, epoch: int) -> None:
        """Begin an epoch; no step of it starts before the leader releases it (`Leader.control`)."""
        if self.steering is not None and epoch < self.epochs.epochs:
            self.open = True
            self._call("on_epoch_begin", epoch)
            self.steering.begin_epoch(self.epochs.last_step(epoch, self.training.clock))

    def _end_epochs(self, epoch: int, reached: int) -> None:
        """Close every epoch from `epoch` on that ended before `reached`, which may be several."""
        ended = range(epoch, min(reached, self.epochs.epochs))
        log = self.log
        steering = self.steering
        if log is None or steering is None or not ended:
            return
        self.open = False
        self._arrive()
        numbers = {each: log.results(each) for each in ended}
        validated: Mapping[str, Any] = {} if self.validate is None else self.validate(ended)
        # without None: callbacks expect numbers
        there = {name: value for name, value in validated.items() if value is not None}
        for each in ended:
            row = {**numbers[each], **validated}
            log.record(each, row)
            log.ended = {**numbers[each], **there}
            for callback in self.callbacks.callbacks if self.callbacks is not None else ():
                self._arrive()
                callback.on_epoch_end(each, log.ended)
                log.record(each, row | log.ended)  # what it has added, for the next one, which may save
            if log.lost is not None:
                return
            if steering.stopped or each + 1 == self.epochs.epochs:
                steering.tell_changes()
                return
            self._begin_epoch(each + 1)

    def _arrive(self) -> None:
        """Wait until the weights are all there, which a callback may read."""
        for replica in self.training.replicas:
            if replica.overlap is not None:
                replica.overlap.arrive()

    def _call(self, hook: str, *arguments: object) -> None:
        if self.callbacks is not None:
            self._arrive()
            self.callbacks.call(hook, *arguments)

    def _call_batch(self, hook: str, step: int, numbers: dict[str, float] | None = None) -> None:
        """Call a hook of batches for a global step; by default with the epoch's means so far."""
        if self.callbacks is not None and self.log is not None and self.steering is not None:
            batch = self.epochs.step_in_epoch(step, self.training.clock)
            epoch = self.epochs.number(step, self.training.clock)
            log = self.log

            def logs() -> dict[str, float]:  # called only for a listener, which may read the weights
                self._arrive()
                return log.results(epoch) if numbers is None else numbers

            self.callbacks.call_batch(hook, batch, logs)
            self.steering.tell_changes()
