"""The leader's part of the training loop: epochs with their numbers, callbacks, validation, changes.

A task has it from the beginning, or from the step at which the leader before it has died
(`Training.leads`). Epochs are counted in global steps, which mean the same in every strategy and for any
number of replicas.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from numbers import Integral
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from dtrain.callbacks import Callback, CallbackList, History
from dtrain.errors import InputError
from dtrain.learning import optimizers
from dtrain.learning.optimizers import Optimizer
from dtrain.messages import Row
from dtrain.runs.ledger import CHECKPOINT, Activity
from dtrain.runs.trial_reports import EVALUATED, TRAINED, append_report, prune_is_ordered
from dtrain.state.rounds import Rounds
from dtrain.strategies.interface import Compute, FitOrder, Stepped, Training
from dtrain.training.architecture import Architecture
from dtrain.training.batches import Batches
from dtrain.training.fits.handover import Handover, HookProgress
from dtrain.training.steps import Totals


class EpochLog(msgspec.Struct):
    """The leader's account of epochs: the sums of all replicas' contributions, as the strategy knows them.

    Attributes:
        rows: by epoch, the numbers of those that have ended.
        ended: those of the epoch that ended last.
    """

    training: Training
    totals: Totals
    history: History
    rows: dict[int, Row] = msgspec.field(default_factory=dict)
    ended: dict[str, float] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Continue where an earlier process of the leader stood."""
        self.rows = dict(self.training.recorded)
        self.history.take(self.rows)

    def results(self, epoch: int) -> dict[str, float]:
        """Return the means over all contributions to an epoch that are known so far."""
        return self.totals.results_of([sums for number, sums in self.training.tally if number == epoch])

    def record(self, epoch: int, results: Mapping[str, Any]) -> None:
        row = {name: _plain(value) for name, value in results.items()}
        if self.rows.get(epoch) != row:
            self.rows[epoch] = row
            self.training.order(FitOrder(rows={epoch: row}, open_from=next(reversed(self.rows)) + 1))

    @property
    def lost(self) -> int | None:
        """The first epoch that has ended here but not on servers, which went back to a checkpoint."""
        kept = self.training.recorded
        if not self.rows or next(reversed(self.rows)) in kept:  # they are kept in their order
            return None
        return min(self.rows.keys() - kept.keys())

    def go_back_to(self, epoch: int) -> None:
        self.rows = {number: row for number, row in self.rows.items() if number < epoch}
        self.history.take(self.rows)


def _plain(value: Any) -> Any:
    """Return a number or an array in the form that travels and is saved."""
    if value is None or isinstance(value, str | bool):
        return value
    return float(value) if np.ndim(value) == 0 else np.asarray(value).tolist()


class Steering(msgspec.Struct):
    """The leader's account of the changes that the strategy knows.

    If it `holds`, callbacks act at the ends of epochs: no replica goes beyond one before they have.
    """

    model: Architecture
    optimizer: Optimizer
    training: Training
    holds: bool
    _told: dict[str, Any] = msgspec.field(default_factory=dict)
    _until: int | None = None
    _stop_told: bool = False

    def __post_init__(self) -> None:
        """Adopt the numbers that are in force, in a leader that was started again."""
        vars(self.optimizer).update(vars(optimizers.from_config(self.training.optimizer)))

    @contextmanager
    def without_effect(self) -> Iterator[None]:
        """Let callbacks call hooks that the previous leader has called: their changes are in force."""
        numbers = dict(vars(self.optimizer))
        yield
        vars(self.optimizer).clear()
        vars(self.optimizer).update(numbers)
        self.goes_back()

    def begin_epoch(self, last_step: int) -> None:
        self._until = last_step if self.holds else None
        self._send_changes()

    def goes_back(self) -> None:
        """Undo unsent changes before an epoch begins again: callbacks will make them again at its end."""
        self.model.arrays = self.training.weights
        self.model.stop_training = self._stop_told

    def tell_changes(self) -> None:
        """Send the changes that callbacks have made, if any; they hold from the next step on."""
        model = self.model
        self.obey()
        if (
            model.stop_training
            or model.arrays is not self.training.weights
            or vars(self.optimizer) != self._told
        ):
            self._send_changes()

    def obey(self) -> None:
        """End training if the study of this trial has ordered that; the last checkpoint is kept."""
        if prune_is_ordered():
            self.model.stop_training = True

    def _send_changes(self) -> None:
        model = self.model
        training = self.training
        assigned = None if model.arrays is training.weights else model.arrays
        if training.finished and assigned is None:
            return
        self._told = dict(vars(self.optimizer))
        self._stop_told = model.stop_training
        training.order(
            FitOrder(optimizers.serialize(self.optimizer), model.stop_training, assigned, self._until)
        )
        model.arrays = training.weights


class Epochs(msgspec.Struct, frozen=True):
    """The length of training, in global steps."""

    steps_per_epoch: int
    epochs: int
    initial_epoch: int = 0

    @classmethod
    def of(
        cls, batches: Batches, steps_per_epoch: float | None, epochs: int, initial_epoch: int, parts: int
    ) -> "Epochs":
        """Convert the user's numbers; by default an epoch sees every batch once, over all replicas.

        A step consumes one batch; if batches are one replica's, as those of a pipeline, it consumes `parts`.

        Raises:
            InputError: the data are endless and an epoch's length is not given, or a number is out of range.
        """
        count = batches.count
        if count == 0:
            raise InputError("fit: expected at least one batch, found an empty dataset")
        if steps_per_epoch is None:
            if count is None:
                raise InputError(
                    "fit: the dataset has no end, or none that is known; expected steps_per_epoch"
                )
            steps_per_epoch = ceil(count / parts) if batches.pipelines or batches.uncut else count
        if isinstance(steps_per_epoch, float) and steps_per_epoch.is_integer():
            steps_per_epoch = int(steps_per_epoch)  # as np.ceil(examples / batch_size) returns it
        found = f"steps_per_epoch {steps_per_epoch}, initial_epoch {initial_epoch}, epochs {epochs}"
        if not all(isinstance(number, Integral) for number in (steps_per_epoch, initial_epoch, epochs)):
            raise InputError(f"fit: expected whole numbers, found {found}")
        if steps_per_epoch < 1 or not 0 <= initial_epoch <= epochs:
            raise InputError(
                f"fit: expected steps_per_epoch >= 1 and 0 <= initial_epoch <= epochs, found {found}"
            )
        return cls(int(steps_per_epoch), epochs, initial_epoch)

    def in_rounds(self, rounds: Rounds | None) -> "Epochs":
        """Return the same epochs where a round is a step."""
        return self if rounds is None else replace(self, steps_per_epoch=rounds.per_epoch)

    @property
    def max_steps(self) -> int:
        return (self.epochs - self.initial_epoch) * self.steps_per_epoch

    def epoch_at(self, step: int, training: Training) -> int:
        """Return the epoch of the step after this one."""
        return self.initial_epoch + (step - training.first_step) // self.steps_per_epoch

    def last_step(self, epoch: int, training: Training) -> int:
        return training.first_step + (epoch + 1 - self.initial_epoch) * self.steps_per_epoch

    def number(self, step: int, training: Training) -> int:
        """Return the epoch of a global step, which is counted from 1."""
        return self.epoch_at(step - 1, training)


Validate = Callable[[range], Mapping[str, float | None]]


@dataclass
class Leading:
    """The work of the leader of a call of `fit` beside making steps.

    Attributes:
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
    _epoch: int | None = None

    def __post_init__(self) -> None:
        self._left_at = self.handover.place

    # The beginning, of training or in the midst of it

    def begin(self) -> None:
        """Call the callbacks' first hooks; after another leader, those it had called; then restore its
        states.
        """
        with self.activity.busy("callbacks"):
            if self.handover.follows:
                with self.steering.without_effect():
                    self._begin_again()
                self.handover.restore()
            else:
                self.callbacks.call("on_train_begin", {})
        self.handover.store(self.handover.place, self.callbacks.callbacks)

    def _begin_again(self) -> None:
        """Call the hooks that the previous leader's callbacks had seen, and that have not ended since."""
        self.callbacks.call("on_train_begin", {})
        if (place := self._left_at) is not None:
            for callback in self.callbacks.callbacks:
                if (self.handover.name(callback) in place.done) is not place.ends:
                    callback.on_epoch_begin(place.epoch, {})

    def goes_on(self) -> bool:
        """Begin, or end the epochs that are over; return False if training may stand elsewhere now."""
        training = self.training
        epoch = self._go_on() if self._epoch is None else self._epoch
        # An epoch has not ended while some server may lack a part of it.
        reached = epoch if training.repairs else self.epochs.epoch_at(training.global_step, training)
        if (lost := self.log.lost) is not None:
            self._epoch = lost
            self._go_back_to(lost)
            return False
        self._epoch = reached
        if training.finished:
            if self.open:  # stopped in the middle of an epoch, perhaps
                self.end_epochs(epoch, max(reached, epoch + 1))
            return self.log.lost is None
        if reached > epoch:
            self.end_epochs(epoch, reached)
        return reached <= epoch

    def _go_on(self) -> int:
        """Begin an epoch, or continue within the hooks where the previous leader died; return the current
        epoch.
        """
        place = self._left_at
        if place is None:
            # In a restarted leader it is the first epoch that its predecessor did not end.
            training = self.training
            ended = max(self.log.rows, default=self.epochs.initial_epoch - 1)
            epoch = min(self.epochs.epoch_at(training.global_step, training), ended + 1)
            self.begin_epoch(epoch)
            return epoch
        if not place.ends:
            self.begin_epoch(place.epoch)
            return place.epoch
        self.end_epochs(place.epoch, place.epoch + 1)
        return place.epoch + 1

    # Epochs

    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch; no step of it starts before the leader releases it (`FitOrder.until`)."""
        if epoch >= self.epochs.epochs:
            return
        self.open = True
        self._call_each(epoch, False, lambda callback: callback.on_epoch_begin(epoch, {}))
        self.steering.begin_epoch(self.epochs.last_step(epoch, self.training))
        self.handover.clear_changes()

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
            if self.steering.model.stop_training or each + 1 == self.epochs.epochs:
                self.steering.tell_changes()
                self.handover.clear_changes()
                return
            self.begin_epoch(each + 1)

    def _rows_of(self, ended: range) -> dict[int, Row]:
        """Return the numbers of epochs; those that the previous leader has recorded stay."""
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
        plain = {name: _plain(value) for name, value in log.ended.items()}
        numbers = {name: value for name, value in plain.items() if isinstance(value, float)}
        trained = {name: value for name, value in numbers.items() if not name.startswith("val_")}
        validated = {name[4:]: value for name, value in numbers.items() if name.startswith("val_")}
        last_step = self.epochs.last_step(epoch, self.training)
        append_report(last_step, trained, TRAINED)
        append_report(last_step, validated, EVALUATED)
        self.steering.obey()

    def _call_each(self, epoch: int, ends: bool, call: Callable[[Callback], None]) -> None:
        """Call a hook of an epoch of every callback, but for those that the previous leader had called.

        After each of them, what the next leader would need is kept.
        """
        place = self._left_at
        self._left_at = None
        if place is None or (place.epoch, place.ends) != (epoch, ends):
            place = HookProgress(epoch, ends)
        # Hooks of batches and of validations come before the end of an epoch, and may have changed any state.
        self.handover.store(place, self.callbacks.callbacks if ends else ())
        for callback in self.callbacks.callbacks:
            if (name := self.handover.name(callback)) not in place.done:
                with self.activity.busy(name):
                    call(callback)
                place = replace(place, done=(*place.done, name))
                self.handover.store(place, [callback])

    def _go_back_to(self, epoch: int) -> None:
        """Begin an epoch again whose end the servers have lost."""
        self.log.go_back_to(epoch)
        self.steering.goes_back()
        self.begin_epoch(epoch)

    def conclude(self, compute: Compute) -> Stepped:
        """Save the last step; unless that has ended training, it has gone back to a checkpoint."""
        before = self.activity.sheet.to(CHECKPOINT)
        with self.activity.busy("the last checkpoint"):
            result = self.training.step(compute)
        self.activity.sheet.to(before)
        return result

    # Batches

    def refuse_batch(self, loss: float) -> None:
        """Call the hook of a batch whose gradient was refused, with its own loss beside the epoch's means."""
        step = self.training.global_step + 1
        means = self.log.results(self.epochs.number(step, self.training))
        self.call_batch("on_train_batch_end", step, {**means, "loss": loss})

    def call_batch(self, hook: str, step: int, numbers: dict[str, float] | None = None) -> None:
        """Call a hook of batches for a global step; by default with the epoch's means so far."""
        if listeners := self.callbacks.listeners(hook):
            training = self.training
            epoch = self.epochs.number(step, training)
            in_epoch = (step - training.first_step - 1) % self.epochs.steps_per_epoch
            with self.activity.busy(hook):
                self.callbacks.call_batch(
                    hook, in_epoch, lambda: self.log.results(epoch) if numbers is None else numbers
                )
        self.steering.tell_changes()
        self.handover.keep_states(listeners)
