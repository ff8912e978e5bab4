"""The base of all optimizers: numbers, and an update rule that works in place on plain arrays.

- An optimizer holds no state. Its memory of a variable are *slots*, arrays of the variable's shape by name,
  which the caller keeps: beside the weights in one process, on a parameter server's shard, in a checkpoint.
- `update` is element-wise: it may be given one variable, a shard of one, or a flat concatenation of many.
  Clipping by norm needs whole variables and therefore happens before, in `clip` (`apply` does both);
  `elementwise` says whether that is needed.
- `step` counts the updates that were made before.
- An optimizer may be shared by threads: scratch memory belongs to one call.
- Work is done block by block, so that a variable of any size passes through the cache once; numpy releases
  the interpreter lock.

The numbers are those of tf.keras.optimizers in TensorFlow 2.15.
"""

import math
from collections.abc import Mapping
from copy import copy
from dataclasses import KW_ONLY, dataclass, fields, replace
from numbers import Real
from types import NoneType
from typing import Any, ClassVar, Self, get_args

import numpy as np

from dtrain.errors import InputError, SpecError
from dtrain.learning.core import clipping
from dtrain.learning.core.configuration import Configurable, from_data
from dtrain.learning.core.results import RateOf
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.optimizers.applied import Applied
from dtrain.learning.optimizers.schedules import SCHEDULES, LearningRateSchedule, known
from dtrain.types import Array, Arrays

Slots = dict[str, Array]

BLOCK_ELEMENTS = 64 * 1024
"""Elements updated at a time: all arrays then fit in the second-level cache (fastest of 8 Ki to 128 Ki)."""


@dataclass
class Optimizer(Applied, Configurable):
    """Base of all optimizers: everything but the rule.

    Attributes:
        learning_rate: a number, or a schedule; may be changed between updates.
        name: only for the user.
        weight_decay: decoupled: every variable first loses this fraction, times the learning rate.
        clipnorm: limit of each gradient's norm; one of the three limits at most.
        clipvalue: limit of each element's absolute value.
        global_clipnorm: limit of the norm of all gradients together.
        use_ema: keep an exponential moving average of every variable in the slot `average`.
        ema_momentum: the average's momentum.
        ema_overwrite_frequency: every so many updates the variables take the average's values; None: only by
            `finalize`.
        jit_compile: without effect; Keras compiles by XLA.
    """

    learning_rate: float | LearningRateSchedule = 0.001
    _: KW_ONLY
    name: str = ""
    weight_decay: float | None = None
    clipnorm: float | None = None
    clipvalue: float | None = None
    global_clipnorm: float | None = None
    use_ema: bool = False
    ema_momentum: float = 0.99
    ema_overwrite_frequency: int | None = None
    jit_compile: bool = True

    is_legacy_optimizer: ClassVar[bool] = False
    values: ClassVar[bool] = False
    """Whether what it is given in the place of gradients are values, of which the mean is the next version.
    """
    inner: ClassVar[dict[str, Any] | None] = None
    """The optimizer of the replicas, where this one is that of servers in local steps."""
    horizon: ClassVar[int] = 1
    """The number of the last update that a fit will make, for schedules of a program's own."""
    not_numbers: ClassVar[frozenset[str]] = frozenset({"name"})
    scratch_arrays: ClassVar[int] = 1
    """Number of scratch arrays that the rule needs."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let the class's default learning rate be one that can be assigned, too."""
        super().__init_subclass__(**kwargs)
        if "learning_rate" in vars(cls):
            cls.learning_rate = RateOf(vars(cls)["learning_rate"])  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.name = self.name or type(self).__name__
        if isinstance(self.learning_rate, Mapping):
            self.learning_rate = from_data(self.learning_rate, "learning_rate", SCHEDULES)
        rate = self.learning_rate
        if callable(rate) and not isinstance(rate, LearningRateSchedule):
            raise SpecError(
                f"{type(self).__name__}: learning_rate: found the function {rate!r}; take one of "
                "dt.optimizers.schedules, derive a class from its LearningRateSchedule, or use "
                "dt.callbacks.LearningRateScheduler(function)"
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if (
                field.name in self.not_numbers
                or isinstance(value, LearningRateSchedule)
                or (value is None and NoneType in get_args(field.type))
            ):
                continue
            if not isinstance(value, Real) or not math.isfinite(value):
                raise SpecError(
                    f"{type(self).__name__}: expected a finite number for {field.name}, found {value!r}."
                )
        limits = [
            limit
            for limit in ("clipnorm", "clipvalue", "global_clipnorm")
            if getattr(self, limit) is not None
        ]
        if len(limits) > 1:
            raise SpecError(
                f"{type(self).__name__}: expected at most one kind of clipping, found {' and '.join(limits)}."
            )
        for limit in limits:
            if getattr(self, limit) <= 0:
                raise SpecError(f"{type(self).__name__}: expected {limit} > 0, found {getattr(self, limit)}.")

    @property
    def lr(self) -> float | LearningRateSchedule:
        """Keras's other name of `learning_rate`."""
        return self.learning_rate

    @lr.setter
    def lr(self, rate: float | LearningRateSchedule) -> None:
        """Keras's other name of `learning_rate`."""
        self.learning_rate = rate

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of the update after the first `step` updates."""
        rate = vars(self)["learning_rate"]
        return float(rate(step) if isinstance(rate, LearningRateSchedule) else rate)

    def with_known_schedule(self) -> Self:
        """Return one with a schedule that servers know; see `dtrain.learning.optimizers.schedules.known`."""
        rate = vars(self)["learning_rate"]
        same = copy(self)
        same.learning_rate = known(rate, self.horizon) if isinstance(rate, LearningRateSchedule) else rate
        return same

    @property
    def elementwise(self) -> bool:
        """True if `update` is the whole rule; False if `clip` must see norms of whole variables first."""
        return self.clipnorm is None and self.global_clipnorm is None

    def initial_slots(self, value: Array) -> Slots:
        """Return new slots for a variable of this value, a shard of one, or several concatenated."""
        slots = {
            name: np.full(value.shape, initial, value.dtype) for name, initial in self._slot_values().items()
        }
        if self.use_ema:
            slots["average"] = value.copy()
        return slots

    # Updates

    def apply(
        self,
        values: Arrays,
        gradients: Mapping[str, Array | SparseRows],
        slots: Mapping[str, Slots],
        step: int,
    ) -> None:
        """Update a whole model in place: clip, then each variable that has a gradient."""
        for name, gradient in self.clip(gradients).items():
            if isinstance(gradient, SparseRows):
                self.update_rows(values[name], gradient.ids, gradient.rows, slots[name], step)
            else:
                self.update(values[name], gradient, slots[name], step)

    def clip(self, gradients: Mapping[str, Array | SparseRows]) -> dict[str, Array | SparseRows]:
        """Return gradients as the updates want them: norms limited, then sparse ones without duplicates.

        Gradients that stay the same are not copied. `clipvalue` is applied here to sparse gradients only;
        `update` applies it to dense ones.
        """
        clipped: dict[str, Array | SparseRows] = dict(gradients)
        if self.clipnorm is not None:
            clipped = {
                name: clipping.clip_by_norm(gradient, self.clipnorm) for name, gradient in gradients.items()
            }
        elif self.global_clipnorm is not None:
            factor = clipping.global_clip_factor(
                clipping.global_norm(gradients.values()), self.global_clipnorm
            )
            clipped = {name: clipping.scaled(gradient, factor) for name, gradient in gradients.items()}
        for name, gradient in clipped.items():
            if isinstance(gradient, SparseRows):
                rows = gradient.rows
                if self.clipvalue is not None:
                    rows = np.clip(rows, -self.clipvalue, self.clipvalue)
                clipped[name] = SparseRows(gradient.ids, rows).summed()
        return clipped

    def update(
        self,
        value: Array,
        gradient: Array,
        slots: Slots,
        step: int,
        *,
        rate_scale: float = 1.0,
        out: Array | None = None,
    ) -> None:
        """Update a variable, or a flat concatenation of variables, and its slots in place.

        Args:
            value: C-contiguous array of floats; its new value is written into it, or into `out`.
            gradient: same shape; not changed.
            slots: as made by `initial_slots` for this shape; changed in place.
            step: number of updates made before.
            rate_scale: factor of the learning rate, for gradients that come late.
            out: array of the same shape that takes the new value; `value` then stays as it is.
        """
        out = value if out is None else out
        if gradient.shape != value.shape:
            raise InputError(
                f"{self.name}: expected a gradient of shape {value.shape}, found {gradient.shape}."
            )
        if not (value.flags.c_contiguous and out.flags.c_contiguous):
            raise InputError(
                f"{self.name}: expected a C-contiguous variable, found strides {value.strides}; copy it "
                "first."
            )
        rate = self.learning_rate_at(step) * rate_scale
        size = value.size
        scratch = np.empty((self.scratch_arrays + 1, min(size, BLOCK_ELEMENTS)), value.dtype)
        value = value.reshape(-1)
        gradient = gradient.reshape(-1)
        out = out.reshape(-1)
        slots = {name: slot.reshape(-1) for name, slot in slots.items()}
        if size <= BLOCK_ELEMENTS:
            self._update_part(value, gradient, slots, scratch, rate, step, out)
            return
        for start in range(0, size, BLOCK_ELEMENTS):
            part = slice(start, min(start + BLOCK_ELEMENTS, size))
            part_slots = {name: slot[part] for name, slot in slots.items()}
            part_scratch = scratch[:, : part.stop - start]
            self._update_part(value[part], gradient[part], part_slots, part_scratch, rate, step, out[part])

    def update_rows(
        self, value: Array, ids: Array, rows: Array, slots: Slots, step: int, *, rate_scale: float = 1.0
    ) -> None:
        """Update a table in place from the gradients of some of its rows.

        Every row moves if the rule moves variables of zero gradient (momentum, Adam, weight decay, ...);
        otherwise, and with most legacy rules, only the listed rows are touched.

        Args:
            value: the table, C-contiguous.
            ids: ascending row numbers without duplicates, as `clip` returns them.
            rows: their gradients, shape [len(ids), ...row shape].
            slots: as made by `initial_slots` for the table.
            step: number of updates made before.
            rate_scale: factor of the learning rate.
        """
        if len(ids) and (ids[0] < 0 or ids[-1] >= len(value)):
            raise InputError(
                f"{self.name}: expected row numbers in [0, {len(value)}), found {ids[0]} to {ids[-1]}."
            )
        # `clip` has limited the elements
        rule = self if self.clipvalue is None else replace(self, clipvalue=None)
        if self.touches_listed_rows_only:
            listed = value[ids]
            listed_slots = {name: slot[ids] for name, slot in slots.items()}
            rule.update(listed, rows, listed_slots, step, rate_scale=rate_scale)
            value[ids] = listed
            for name, slot in slots.items():
                slot[ids] = listed_slots[name]
            return
        rows_at_a_time = max(1, BLOCK_ELEMENTS // max(1, math.prod(value.shape[1:])))
        for start in range(0, len(value), rows_at_a_time):
            block = slice(start, min(start + rows_at_a_time, len(value)))
            first, last = np.searchsorted(ids, (block.start, block.stop))
            gradient = np.zeros_like(value[block])
            gradient[ids[first:last] - start] = rows[first:last]
            rule.update(
                value[block],
                gradient,
                {name: slot[block] for name, slot in slots.items()},
                step,
                rate_scale=rate_scale,
            )

    def finalize(self, value: Array, slots: Slots) -> None:
        """Give the variable its moving average's value, if one is kept; the last act of training."""
        if self.use_ema:
            value[...] = slots["average"]

    @property
    def touches_listed_rows_only(self) -> bool:
        """True if `update_rows` changes no values or slots of rows that a sparse gradient does not list."""
        return self._moves_listed_rows_only() and not self.weight_decay and not self.use_ema

    # Of each rule

    sparse_differs: ClassVar[bool] = False
    """True if a row that is not listed may change otherwise than a row whose gradient is zero."""

    def _slot_values(self) -> dict[str, float]:
        """Return the slots' names and initial values; `average` (`use_ema`) begins as the variable."""
        raise NotImplementedError

    def _update_block(
        self, value: Array, gradient: Array, slots: Slots, scratch: Array, rate: float, step: int, out: Array
    ) -> None:
        """Apply the rule: write the new value into `out`, which may be `value`; change the slots in place.

        Arrays are one-dimensional and of one length; `scratch[i]` are free to use.
        """
        raise NotImplementedError

    def _moves_listed_rows_only(self) -> bool:
        """Return whether the rule leaves rows of a table alone that a sparse gradient does not list."""
        return False

    # Inner parts

    def _update_part(
        self, value: Array, gradient: Array, slots: Slots, scratch: Array, rate: float, step: int, out: Array
    ) -> None:
        if self.weight_decay:
            value = np.multiply(value, 1.0 - rate * self.weight_decay, out=out)
        if self.clipvalue is not None:
            gradient = np.clip(gradient, -self.clipvalue, self.clipvalue, out=scratch[-1])
        self._update_block(value, gradient, slots, scratch, rate, step, out)
        if self.use_ema:
            self._average(out, slots["average"], scratch[0], step)

    def _average(self, value: Array, average: Array, scratch: Array, step: int) -> None:
        np.multiply(value, 1.0 - self.ema_momentum, out=scratch)
        np.multiply(average, self.ema_momentum, out=average)
        np.add(average, scratch, out=average)
        if self.ema_overwrite_frequency and (step + 1) % self.ema_overwrite_frequency == 0:
            np.copyto(value, average)


Optimizer.learning_rate = RateOf(Optimizer.learning_rate)  # type: ignore[assignment,arg-type]


def move_towards(mean: Array, target: Array, fraction: float, scratch: Array) -> None:
    """Move `mean` by this fraction of the way to `target`, in place; `scratch` may be `target`."""
    np.subtract(target, mean, out=scratch)
    np.multiply(scratch, fraction, out=scratch)
    np.add(mean, scratch, out=mean)


def root_of_sum(values: Array, epsilon: float, out: Array) -> Array:
    np.add(values, epsilon, out=out)
    return np.sqrt(out, out=out)


def root_plus(values: Array, epsilon: float, out: Array) -> Array:
    np.sqrt(values, out=out)
    return np.add(out, epsilon, out=out)
