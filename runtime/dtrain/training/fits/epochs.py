"""Epochs in global steps, which mean the same in every strategy and for any number of replicas."""

from dataclasses import dataclass
from math import ceil
from numbers import Integral

from dtrain.errors import InputError
from dtrain.strategies.interface import StepClock
from dtrain.training.batches import Batches


@dataclass(frozen=True)
class Epochs:
    """The length of training, in global steps."""

    steps_per_epoch: int
    epochs: int
    initial_epoch: int = 0

    @classmethod
    def of(
        cls, batches: Batches, steps_per_epoch: float | None, epochs: int, initial_epoch: int, parts: int
    ) -> "Epochs":
        """Take the user's numbers; by default an epoch sees every batch once, over all replicas.

        A step consumes one batch; if batches are one replica's, as those of its own pipeline, it consumes
        `parts`.

        Raises:
            InputError: the data are endless and the length of an epoch is not given, or a number is out of
                range.
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

    @property
    def max_steps(self) -> int:
        """The global step at which this call of fit ends."""
        return (self.epochs - self.initial_epoch) * self.steps_per_epoch

    def epoch_at(self, step: int, clock: StepClock) -> int:
        """Return the epoch of the step after this one."""
        return self.initial_epoch + (step - clock.first_step) // self.steps_per_epoch

    def last_step(self, epoch: int, clock: StepClock) -> int:
        """Return the global step at which an epoch ends."""
        return clock.first_step + (epoch + 1 - self.initial_epoch) * self.steps_per_epoch

    def number(self, step: int, clock: StepClock) -> int:
        """Return the epoch of a global step, which is counted from 1."""
        return self.epoch_at(step - 1, clock)

    def step_in_epoch(self, step: int, clock: StepClock) -> int:
        """Return the number within its epoch, from 0, of a global step, which is counted from 1."""
        return (step - clock.first_step - 1) % self.steps_per_epoch
