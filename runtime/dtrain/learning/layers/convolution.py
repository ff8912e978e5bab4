"""Convolutions over one or two axes, NHWC, as matrix products over windows that are laid out in rows.

The windows of a few examples at a time are copied into one matrix of about a mebibyte, which the processor's
cache still holds when it is multiplied. A last column of ones makes the bias a row of the kernel, so that
neither adding it nor its gradient passes over the output once more. `backward` lays out the windows again
instead of keeping them: they take kernel-size times the memory of the input.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.core import activations
from dtrain.learning.core.activations import ActivationLike
from dtrain.learning.core.constraints import ConstraintLike
from dtrain.learning.core.initializers import InitializerLike
from dtrain.learning.core.regularizers import RegularizerLike
from dtrain.learning.layers.base import ActivatedLayer, Call, Weight
from dtrain.learning.layers.windows import Lengths, Windows, require_channels_last, window_counts
from dtrain.types import Array, Arrays, Shape

_ROWS_BYTES = 1 << 20


@dataclass(eq=False)
class _Convolution(ActivatedLayer):
    RANK: ClassVar[int]

    filters: int
    kernel_size: Lengths
    strides: Lengths = 1
    padding: str = "valid"
    data_format: str | None = None
    dilation_rate: Lengths = 1
    groups: int = 1
    activation: ActivationLike = None
    use_bias: bool = True
    kernel_initializer: InitializerLike = "glorot_uniform"
    bias_initializer: InitializerLike = "zeros"
    kernel_regularizer: RegularizerLike = None
    bias_regularizer: RegularizerLike = None
    activity_regularizer: RegularizerLike = None
    kernel_constraint: ConstraintLike = None
    bias_constraint: ConstraintLike = None

    def __post_init__(self) -> None:
        require_channels_last(self.label, self.data_format)
        self.expect_positive(filters=self.filters, groups=self.groups)
        if self.filters % self.groups:
            raise SpecError(
                f"{self.label}: filters {self.filters} must be a multiple of groups {self.groups}"
            )
        self.function = activations.get(self.activation)
        self.windows = Windows.of(
            self.RANK, self.label, self.kernel_size, self.strides, self.padding, self.dilation_rate
        )

    def declare(self, input_shape: Shape) -> Sequence[Weight]:
        """Return kernel [...lengths, channels / groups, filters] and bias [filters]."""
        channels = self.known_length(input_shape)
        self.expect(channels % self.groups == 0, f"a multiple of {self.groups} channels", input_shape)
        kernel = (*self.windows.size, channels // self.groups, self.filters)
        return self._declared(kernel=kernel, bias=(self.filters,))

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return one place for each window, and `filters` channels."""
        return (*window_counts(self, self.windows, input_shape), self.filters)

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Multiply one matrix for each few examples and each group."""
        wide = self.windows.padded(x, 0, call)
        z = call.scratch("z", (len(x), *self.windows.lengths_within(wide), self.filters))
        for inner, outer in self._groups(x.shape[-1]):
            matrix = self.matrix(weights, outer)
            for part, rows in _rows(self.windows, wide[..., inner], call, self.use_bias):
                np.matmul(rows, matrix, out=z[part].reshape(-1, self.filters)[:, outer])
        y, kept = self.function.apply(z)
        return y, (wide, x.shape, kept)

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Compute dkernel = rowsᵀ dz, and add dz kernelᵀ to the places of each window; dz is dy f'(z)."""
        wide, shape, kept = cache
        dz = self.function.apply_back(kept, dy)
        dwide = call.scratch("dwide", wide.shape if call.needs_input_gradient else ())
        dwide.fill(0)
        for inner, outer in self._groups(shape[-1]):
            matrix = self.matrix(weights, outer)
            dmatrix = np.zeros_like(matrix)
            for part, rows in _rows(self.windows, wide[..., inner], call, self.use_bias):
                dz_rows = dz[part].reshape(-1, self.filters)[:, outer]
                dmatrix += rows.T @ dz_rows
                if call.needs_input_gradient:
                    drows = np.matmul(dz_rows, matrix.T, out=call.scratch("drows", rows.shape))
                    add_rows(self.windows, drows, dwide[part, ..., inner])
            self.take_gradients(dmatrix, gradients, outer)
        return self.windows.unpadded(dwide, shape) if call.needs_input_gradient else None

    def _groups(self, channels: int) -> Iterator[tuple[slice, slice]]:
        """Yield the channels that each group reads, and the filters that it writes."""
        inner = channels // self.groups
        outer = self.filters // self.groups
        for group in range(self.groups):
            yield slice(group * inner, (group + 1) * inner), slice(group * outer, (group + 1) * outer)

    def matrix(self, weights: Arrays, outer: slice = slice(None)) -> Array:
        """Return the kernel of a group as [places * channels, filters], the bias below it."""
        kernel = weights["kernel"][..., outer]
        matrix = kernel.reshape(-1, kernel.shape[-1])
        return np.vstack([matrix, weights["bias"][outer]]) if self.use_bias else matrix

    def take_gradients(self, dmatrix: Array, gradients: Arrays, outer: slice = slice(None)) -> None:
        """Write the gradient of `matrix` to those of kernel and bias."""
        size = len(dmatrix) - self.use_bias
        gradients["kernel"][..., outer] = dmatrix[:size].reshape(*self.windows.size, -1, dmatrix.shape[1])
        if self.use_bias:
            gradients["bias"][outer] = dmatrix[size]


class Conv1D(_Convolution):
    """A convolution along one axis.

    Shapes: [batch, length, channels] becomes [batch, new length, filters].

    Differs from Keras: channels are the last axis; there is no ``channels_first``.

    Args:
        filters: how many channels the output has.
        kernel_size: lengths of the window: one number for all axes, or one each.
        strides: steps of the window: one number for all axes, or one each.
        padding: ``valid``, ``same``, or ``causal``: an output sees no later input.
        data_format: ``channels_last`` or None, which is the same; others are refused.
        dilation_rate: distance of the places that a window reads: one number for all axes, or one each.
        groups: into how many parts channels and filters are divided, each convolved by itself.
        activation: a name, such as ``relu``, or an `Activation`; None: none.
        use_bias: whether there is a bias.
        kernel_initializer: first values of the kernel: a name or an `Initializer`.
        bias_initializer: first values of the bias.
        kernel_regularizer: penalty on the kernel: a name, a `Regularizer` or None.
        bias_regularizer: penalty on the bias.
        activity_regularizer: penalty on the output, divided by the number of examples.
        kernel_constraint: a limit of the kernel, kept after each update: a name or a `Constraint`.
        bias_constraint: a limit of the bias, kept after each update: a name or a `Constraint`.
    """

    RANK: ClassVar[int] = 1


class Conv2D(_Convolution):
    """A convolution of images.

    Shapes: [batch, height, width, channels] becomes [batch, new height, new width, filters].

    Differs from Keras: channels are the last axis; there is no ``channels_first``.

    Args:
        filters: how many channels the output has.
        kernel_size: lengths of the window: one number for all axes, or one each.
        strides: steps of the window: one number for all axes, or one each.
        padding: ``valid``: windows lie within the input; ``same``: margins of zeros are added, so that with
            strides of 1 the lengths stay.
        data_format: ``channels_last`` or None, which is the same; others are refused.
        dilation_rate: distance of the places that a window reads: one number for all axes, or one each.
        groups: into how many parts channels and filters are divided, each convolved by itself.
        activation: a name, such as ``relu``, or an `Activation`; None: none.
        use_bias: whether there is a bias.
        kernel_initializer: first values of the kernel: a name or an `Initializer`.
        bias_initializer: first values of the bias.
        kernel_regularizer: penalty on the kernel: a name, a `Regularizer` or None.
        bias_regularizer: penalty on the bias.
        activity_regularizer: penalty on the output, divided by the number of examples.
        kernel_constraint: a limit of the kernel, kept after each update: a name or a `Constraint`.
        bias_constraint: a limit of the bias, kept after each update: a name or a `Constraint`.
    """

    RANK: ClassVar[int] = 2


class _ConvTranspose(_Convolution):
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups != 1:
            raise SpecError(f"{self.label}: groups: expected 1, found {self.groups}")

    def declare(self, input_shape: Shape) -> Sequence[Weight]:
        """Return kernel [...lengths, filters, channels] and bias [filters]."""
        kernel = (*self.windows.size, self.filters, self.known_length(input_shape))
        return self._declared(kernel=kernel, bias=(self.filters,))

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the lengths that give a window for each input place; with ``same``, length times stride."""
        rank = self.RANK
        self.expect(len(input_shape) == rank + 1, f"{rank + 2} axes, the last of them channels", input_shape)
        geometry = zip(input_shape[:-1], self.windows.extent, self.windows.strides, strict=True)
        beyond = 0 if self.windows.padding == "same" else 1
        return (
            *(None if n is None else n * s + beyond * max(0, e - s) for n, e, s in geometry),
            self.filters,
        )

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Compute as `backward` of a convolution does for its input."""
        shape = (len(x), *(n or 0 for n in self.output_shape(x.shape[1:])))
        margins = self.windows.margins(shape[1:-1])
        wide = np.zeros(
            (len(x), *(n + sum(m) for n, m in zip(shape[1:-1], margins, strict=True)), self.filters),
            np.float32,
        )
        x_rows = np.ascontiguousarray(x).reshape(-1, x.shape[-1])
        add_rows(self.windows, x_rows @ weights["kernel"].reshape(-1, x.shape[-1]).T, wide)
        z = np.ascontiguousarray(self.windows.unpadded(wide, shape))
        if self.use_bias:
            z += weights["bias"]
        y, kept = self.function.apply(z)
        return y, (x_rows, x.shape, kept)

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Compute as `forward` of a convolution does, on dz."""
        x_rows, shape, kept = cache
        dz = self.function.apply_back(kept, dy)
        if self.use_bias:
            np.sum(dz, axis=tuple(range(dz.ndim - 1)), out=gradients["bias"])
        matrix = weights["kernel"].reshape(-1, shape[-1])
        dmatrix = np.zeros_like(matrix)
        dx = np.empty(shape, np.float32)
        for part, rows in _rows(self.windows, self.windows.padded(dz, 0, call), call):
            np.matmul(rows, matrix, out=dx[part].reshape(-1, shape[-1]))
            dmatrix += rows.T @ x_rows.reshape(shape)[part].reshape(-1, shape[-1])
        gradients["kernel"][...] = dmatrix.reshape(weights["kernel"].shape)
        return dx


class Conv1DTranspose(_ConvTranspose):
    """The transpose of a convolution: each input place adds kernel times its value to an output window.

    Shapes: [batch, length, channels] becomes [batch, length * stride, filters] with ``same``.

    Differs from Keras: channels are the last axis; there is no ``channels_first``.

    Args:
        filters: how many channels the output has.
        kernel_size: lengths of the window: one number for all axes, or one each.
        strides: steps of the window: one number for all axes, or one each.
        padding: ``valid``: windows lie within the input; ``same``: margins of zeros are added, so that with
            strides of 1 the lengths stay.
        data_format: ``channels_last`` or None, which is the same; others are refused.
        dilation_rate: distance of the places that a window reads: one number for all axes, or one each.
        groups: 1 alone.
        activation: a name, such as ``relu``, or an `Activation`; None: none.
        use_bias: whether there is a bias.
        kernel_initializer: first values of the kernel: a name or an `Initializer`.
        bias_initializer: first values of the bias.
        kernel_regularizer: penalty on the kernel: a name, a `Regularizer` or None.
        bias_regularizer: penalty on the bias.
        activity_regularizer: penalty on the output, divided by the number of examples.
        kernel_constraint: a limit of the kernel, kept after each update: a name or a `Constraint`.
        bias_constraint: a limit of the bias, kept after each update: a name or a `Constraint`.
    """

    RANK: ClassVar[int] = 1


class Conv2DTranspose(_ConvTranspose):
    """The transpose of a convolution: each input place adds kernel times its value to an output window.

    Shapes: [batch, height, width, channels] becomes [batch, height * stride, width * stride, filters] with
    ``same``.

    Differs from Keras: channels are the last axis; there is no ``channels_first``.

    Args:
        filters: how many channels the output has.
        kernel_size: lengths of the window: one number for all axes, or one each.
        strides: steps of the window: one number for all axes, or one each.
        padding: ``valid``: windows lie within the input; ``same``: margins of zeros are added, so that with
            strides of 1 the lengths stay.
        data_format: ``channels_last`` or None, which is the same; others are refused.
        dilation_rate: distance of the places that a window reads: one number for all axes, or one each.
        groups: 1 alone.
        activation: a name, such as ``relu``, or an `Activation`; None: none.
        use_bias: whether there is a bias.
        kernel_initializer: first values of the kernel: a name or an `Initializer`.
        bias_initializer: first values of the bias.
        kernel_regularizer: penalty on the kernel: a name, a `Regularizer` or None.
        bias_regularizer: penalty on the bias.
        activity_regularizer: penalty on the output, divided by the number of examples.
        kernel_constraint: a limit of the kernel, kept after each update: a name or a `Constraint`.
        bias_constraint: a limit of the bias, kept after each update: a name or a `Constraint`.
    """

    RANK: ClassVar[int] = 2


def _rows(
    windows: Windows, wide: Array, call: Call, with_ones: bool = False
) -> Iterator[tuple[slice, Array]]:
    """Yield all windows of a padded batch as rows, about a mebibyte at a time; see `rows_of`."""
    gathered = windows.gathered(wide)
    example_bytes = 4 * (prod(gathered.shape[1:]) + prod(windows.lengths_within(wide)))
    return rows_of(gathered, len(windows.size), call, with_ones, max(1, _ROWS_BYTES // max(1, example_bytes)))


def rows_of(
    gathered: Array, rank: int, call: Call, with_ones: bool, n_part: int
) -> Iterator[tuple[slice, Array]]:
    """Yield `n_part` examples at a time: their slice, and their windows as rows.

    `gathered` is [examples, ...windows, ...places in a window (`rank` axes), channels]; with `with_ones` rows
    end with 1.
    """
    inner = gathered.shape[-rank - 1 :]
    count = prod(gathered.shape[1 : -rank - 1])
    width = prod(inner)
    for start in range(0, len(gathered), n_part):
        part = slice(start, start + n_part)
        some = gathered[part]
        n_rows = len(some) * count
        n_columns = width + with_ones
        # with one channel a column is a copy of long runs of an image, a row of short ones
        if inner[-1] == 1:
            rows = call.scratch("rows", (n_columns, n_rows)).T
        else:
            rows = call.scratch("rows", (n_rows, n_columns))
        rows[:, :width].reshape(some.shape)[...] = some
        rows[:, width:] = 1
        yield part, rows


def add_rows(windows: Windows, rows: Array, wide: Array) -> None:
    """Add rows to the places of `wide` from which `rows_of` copies them, without a last column of ones."""
    n_places = prod(windows.size)
    channels = wide.shape[-1]
    shape = (len(wide), *windows.lengths_within(wide), n_places, channels)
    by_place = rows[:, : n_places * channels].reshape(shape)
    for index, place in enumerate(windows.places(wide)):
        place += by_place[..., index, :]
