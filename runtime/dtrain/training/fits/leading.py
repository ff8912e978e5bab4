"""The leader's part of the training loop: epochs with their numbers, callbacks, validation, changes.

A task has it from the beginning, or from the step at which the leader before it has died (`Training.leader`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dtrain.callbacks import Callback, CallbackList
from dtrain.messages import Row
from dtrain.runs.self_report.activity import Activity
from dtrain.strategies.interface import Replica, Training
from dtrain.training.fits.epoch_log import EpochLog
from dtrain.training.fits.epochs import Epochs
from dtrain.training.fits.handover import Handover, HookProgress
from dtrain.training.fits.steering import Steering

Validate = Callable[[range], Mapping[str, float | None]]


@dataclass
class Leading:
    """The work of the leader of a call of `fit` beside making steps.

    Attributes:
        log: the numbers of epochs.
        steering: the changes that callbacks make.
        handover: what is kept for the next leader, and was kept by the one before.
        validate: numbers to add to those of epochs that end together; None stands for one that comes later.
        open: whether an epoch has begun that has not ended.
    """

    training: Training
    epochs: Epochs
    activity: Activity
    log: EpochLog
    callbacks: CallbackList
    steering: Steering
    handover: Handover
    validate: Validate | None = None
    open: bool = False

    def __post_init__(self) -> None:
        self._left_at = self.handover.place

    # The beginning, of training or in the midst of it

    def begin(self) -> None:
        """Let callbacks begin; after another leader they begin as its callbacks did, and then get their
        states.
        """
        with self.activity.busy("callbacks"):
            if self.handover.follows:
                with self.steering.without_effect():
                    self._begin_again()
                self.handover.restore()
            else:
                self.callbacks.call("on_train_begin", {})
        self.handover.keep(self.handover.place, self.callbacks.callbacks)

    def _begin_again(self) -> None:
        """Call the hooks that the callbacks of the leader before had seen, and that have not ended since."""
        self.callbacks.call("on_train_begin", {})
        if (place := self._left_at) is not None:
            for callback in self.callbacks.callbacks:
                if (self.handover.name(callback) in place.done) is not place.ends:
                    callback.on_epoch_begin(place.epoch, {})

    def go_on(self) -> int:
        """Begin an epoch, or go on in the hooks in whose midst the leader before has died; return the epoch
        under way.
        """
        place = self._left_at
        if place is None:
            epoch = self._first_epoch()
            self.begin_epoch(epoch)
            return epoch
        if not place.ends:
            self.begin_epoch(place.epoch)
            return place.epoch
        self.end_epochs(place.epoch, place.epoch + 1)
        return place.epoch + 1

    def _first_epoch(self) -> int:
        """Return the epoch under way; in a restarted leader the first that its predecessor did not end."""
        clock = self.training.clock
        epoch = self.epochs.epoch_at(clock.global_step, clock)
        ended = max(self.log.rows, default=self.epochs.initial_epoch - 1)
        return min(epoch, ended + 1)

    # Epochs

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch; no step of it starts before the leader releases it (`Leader.control`)."""
        if epoch >= self.epochs.epochs:
            return
        self.open = True
        self._call_each(epoch, False, lambda callback: callback.on_epoch_begin(epoch, {}))
        self.steering.begin_epoch(self.epochs.last_step(epoch, self.training.clock))
        self.handover.told()

    def end_epochs(self, epoch: int, reached: int) -> None:
        """Close every epoch from `epoch` on that ended before `reached`, which may be several."""
        ended = range(epoch, min(reached, self.epochs.epochs))
        if not ended:
            return
        self.open = False
        rows = self._rows_of(ended)
        for each in ended:
            self._end(each, rows[each])
            if self.log.lost is not None:
                return
            if self.steering.stopped or each + 1 == self.epochs.epochs:
                self.steering.tell_changes()
                self.handover.told()
                return
            self.begin_epoch(each + 1)

    def _rows_of(self, ended: range) -> dict[int, Row]:
        """Return the numbers of epochs; those that the leader before has recorded stay."""
        known = {each: self.log.rows[each] for each in ended if each in self.log.rows}
        numbers = {each: self.log.results(each) for each in ended if each not in known}
        validated: Mapping[str, Any] = {}
        if self.validate is not None and numbers:
            with self.activity.busy("validation"):
                validated = self.validate(ended)
        return known | {each: {**numbers[each], **validated} for each in numbers}

    def _end(self, epoch: int, row: Row) -> None:
        log = self.log
        log.record(epoch, row)
        # without None: callbacks expect numbers
        log.ended = {name: value for name, value in row.items() if value is not None}

        def end(callback: Callback) -> None:
            callback.on_epoch_end(epoch, log.ended)
            log.record(epoch, row | log.ended)  # what it has added, for the next one, which may save

        self._call_each(epoch, True, end)

    def _call_each(self, epoch: int, ends: bool, call: Callable[[Callback], None]) -> None:
        """Call a hook of an epoch of every callback, and keep after each of them what the next leader would
        need; leave out those that the leader before had called.
        """
        place = self._left_at
        self._left_at = None
        if place is None or (place.epoch, place.ends) != (epoch, ends):
            place = HookProgress(epoch, ends)
        # Hooks of batches and of validations come before the end of an epoch, and may have changed any state.
        self.handover.keep(place, self.callbacks.callbacks if ends else ())
        for callback in self.callbacks.callbacks:
            if (name := self.handover.name(callback)) not in place.done:
                with self.activity.busy(name):
                    call(callback)
                place = replace(place, done=(*place.done, name))
                self.handover.keep(place, [callback])

    def go_back_to(self, epoch: int) -> None:
        """Begin an epoch again whose end the servers have lost."""
        self.log.go_back_to(epoch)
        self.steering.goes_back()
        self.begin_epoch(epoch)

    def conclude(self) -> bool:
        """Return whether the last step is saved; see `Leader.conclude`."""
        with self.activity.busy("the last checkpoint"):
            return self.training.leader is not None and self.training.leader.conclude()

    # Batches

    def begin_batch(self, replica: Replica, number: int) -> bool:
        """Call the hooks of a batch that begins; return False if a callback has stopped training."""
        clock = self.training.clock
        self.call_batch("on_train_batch_begin", clock.global_step + 1, {})
        return not clock.finished and replica.next_batch() == number

    def refuse_batch(self, loss: float) -> None:
        """Call the hook of a batch whose gradient was refused, with its own loss beside the epoch's means."""
        step = self.training.clock.global_step + 1
        means = self.log.results(self.epochs.number(step, self.training.clock))
        self.call_batch("on_train_batch_end", step, {**means, "loss": loss})

    def call_batch(self, hook: str, step: int, numbers: dict[str, float] | None = None) -> None:
        """Call a hook of batches for a global step; by default with the epoch's means so far."""
        clock = self.training.clock
        epoch = self.epochs.number(step, clock)

        def logs() -> dict[str, float]:  # called only for a listener, which may read the weights
            return self.log.results(epoch) if numbers is None else numbers

        with self.activity.busy(hook):
            called = self.callbacks.call_batch(hook, self.epochs.step_in_epoch(step, clock), logs)
        self.steering.tell_changes()
        self.handover.keep_states(called)
