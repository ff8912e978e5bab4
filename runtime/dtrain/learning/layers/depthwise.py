"""Convolutions of each channel by itself, and those that are followed by one of all channels of a place."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dtrain.learning.core import activations
from dtrain.learning.core.activations import ActivationLike
from dtrain.learning.core.initializers import InitializerLike
from dtrain.learning.core.regularizers import RegularizerLike
from dtrain.learning.layers.base import Call, Layer, Weight
from dtrain.learning.layers.convolution import Conv1D, Conv2D
from dtrain.learning.layers.windows import Lengths, Windows, require_channels_last, window_counts
from dtrain.types import Array, Arrays, Shape


@dataclass(eq=False)
class _Depthwise(Layer):
    RANK: ClassVar[int]

    kernel_size: Lengths
    strides: Lengths = 1
    padding: str = "valid"
    depth_multiplier: int = 1
    data_format: str | None = None
    dilation_rate: Lengths = 1
    activation: ActivationLike = None
    use_bias: bool = True
    depthwise_initializer: InitializerLike = "glorot_uniform"
    bias_initializer: InitializerLike = "zeros"
    depthwise_regularizer: RegularizerLike = None
    bias_regularizer: RegularizerLike = None

    def __post_init__(self) -> None:
        require_channels_last(self.label, self.data_format)
        self.function = activations.get(self.activation)
        self.windows = Windows.of(
            self.RANK, self.label, self.kernel_size, self.strides, self.padding, self.dilation_rate
        )

    def declare(self, input_shape: Shape) -> Sequence[Weight]:
        """Return kernel [...lengths, channels, depth_multiplier], bias [channels * depth_multiplier]."""
        shape = (*self.windows.size, self.known_length(input_shape), self.depth_multiplier)
        return self._declared(depthwise_kernel=shape, bias=(shape[-2] * shape[-1],))

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return one place for each window, and depth_multiplier times the channels."""
        lengths = window_counts(self, self.windows, input_shape)
        return (*lengths, self.known_length(input_shape) * self.depth_multiplier)

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Sum place times weight over the places of a window."""
        wide = self.windows.padded(x, 0, call)
        lengths = self.windows.lengths_within(wide)
        channels = x.shape[-1]
        z = np.zeros((len(x), *lengths, channels, self.depth_multiplier), np.float32)
        for place, kernel in zip(
            self.windows.places(wide), _by_place(weights["depthwise_kernel"]), strict=True
        ):
            z += place[..., np.newaxis] * kernel
        z = z.reshape(len(x), *lengths, channels * self.depth_multiplier)
        if self.use_bias:
            z += weights["bias"]
        y, kept = self.function.apply(z)
        return y, (wide, x.shape, kept)

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Compute the same sums, by weight and by place."""
        wide, shape, kept = cache
        flat = self.function.apply_back(kept, dy)
        if self.use_bias:
            np.sum(flat, axis=tuple(range(flat.ndim - 1)), out=gradients["bias"])
        dz = flat.reshape(*flat.shape[:-1], shape[-1], self.depth_multiplier)
        dwide = call.scratch("dwide", wide.shape)
        dwide.fill(0)
        kernels = _by_place(weights["depthwise_kernel"])
        dkernels = _by_place(gradients["depthwise_kernel"])
        places = self.windows.places(wide)
        dplaces = self.windows.places(dwide)
        for place, dplace, kernel, dkernel in zip(places, dplaces, kernels, dkernels, strict=True):
            np.einsum("nc,ncm->cm", place.reshape(-1, shape[-1]), dz.reshape(-1, *dz.shape[-2:]), out=dkernel)
            dplace += (dz * kernel).sum(axis=-1)
        return self.windows.unpadded(dwide, shape)


class DepthwiseConv1D(_Depthwise):
    """Each channel of series convolved with `depth_multiplier` filters: output ``c * depth_multiplier + m``.

    Shapes: [batch, length, channels] becomes [batch, new length, channels * depth_multiplier].

    Differs from Keras: channels are the last axis; there is no ``channels_first``.

    Args:
        kernel_size: lengths of the window: one number for all axes, or one each.
        strides: steps of the window: one number for all axes, or one each.
        padding: ``valid``: windows lie within the input; ``same``: margins of zeros are added, so that with
            strides of 1 the lengths stay.
        depth_multiplier: filters for each channel.
        data_format: ``channels_last`` or None, which is the same; others are refused.
        dilation_rate: distance of the places that a window reads: one number for all axes, or one each.
        activation: a name, such as ``relu``, or an `Activation`; None: none.
        use_bias: whether there is a bias.
        depthwise_initializer: first values of the kernel.
        bias_initializer: first values of the bias.
        depthwise_regularizer: penalty on the kernel.
        bias_regularizer: penalty on the bias.
    """

    RANK: ClassVar[int] = 1


class DepthwiseConv2D(_Depthwise):
    """Each channel convolved with `depth_multiplier` filters: output ``c * depth_multiplier + m``.

    Shapes: [batch, height, width, channels] becomes [batch, new height, new width, channels *
    depth_multiplier].

    Differs from Keras: channels are the last axis; there is no ``channels_first``.

    Args:
        kernel_size: lengths of the window: one number for all axes, or one each.
        strides: steps of the window: one number for all axes, or one each.
        padding: ``valid``: windows lie within the input; ``same``: margins of zeros are added, so that with
            strides of 1 the lengths stay.
        depth_multiplier: filters for each channel.
        data_format: ``channels_last`` or None, which is the same; others are refused.
        dilation_rate: distance of the places that a window reads: one number for all axes, or one each.
        activation: a name, such as ``relu``, or an `Activation`; None: none.
        use_bias: whether there is a bias.
        depthwise_initializer: first values of the kernel.
        bias_initializer: first values of the bias.
        depthwise_regularizer: penalty on the kernel.
        bias_regularizer: penalty on the bias.
    """

    RANK: ClassVar[int] = 2


@dataclass(eq=False)
class _Separable(Layer):
    RANK: ClassVar[int]

    filters: int
    kernel_size: Lengths
    strides: Lengths = 1
    padding: str = "valid"
    data_format: str | None = None
    dilation_rate: Lengths = 1
    depth_multiplier: int = 1
    activation: ActivationLike = None
    use_bias: bool = True
    depthwise_initializer: InitializerLike = "glorot_uniform"
    pointwise_initializer: InitializerLike = "glorot_uniform"
    bias_initializer: InitializerLike = "zeros"
    depthwise_regularizer: RegularizerLike = None
    pointwise_regularizer: RegularizerLike = None
    bias_regularizer: RegularizerLike = None

    def __post_init__(self) -> None:
        self.expect_positive(filters=self.filters, depth_multiplier=self.depth_multiplier)
        of_channels, of_pixels = (DepthwiseConv1D, Conv1D) if self.RANK == 1 else (DepthwiseConv2D, Conv2D)
        places = self.kernel_size, self.strides, self.padding, self.depth_multiplier
        self._depthwise = of_channels(
            *places, self.data_format, self.dilation_rate, use_bias=False, name=self.name
        )
        self._pointwise = of_pixels(self.filters, 1, activation=self.activation, use_bias=self.use_bias)

    def declare(self, input_shape: Shape) -> Sequence[Weight]:
        """Return depthwise_kernel, pointwise_kernel [...1, channels * depth_multiplier, filters] and bias."""
        [first] = self._depthwise.declare(input_shape)
        second = self._pointwise.declare(self._depthwise.output_shape(input_shape))[0]
        shapes = {"depthwise_kernel": first.shape, "pointwise_kernel": second.shape}
        return self._declared(**shapes, bias=(self.filters,))

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return one place for each window, and `filters` channels."""
        return (*self._depthwise.output_shape(input_shape)[:-1], self.filters)

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Convolve each channel, then the channels of each place."""
        calls = call.of_part("depthwise"), call.of_part("pointwise")
        inner, kept = self._depthwise.forward(weights, x, calls[0])
        y, cache = self._pointwise.forward(self._of_pixels(weights), inner, calls[1])
        return y, (calls, kept, cache)

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Go back through both."""
        calls, kept, inner = cache
        dinner = self._pointwise.backward(
            self._of_pixels(weights), inner, dy, self._of_pixels(gradients), calls[1]
        )
        return self._depthwise.backward(weights, kept, dinner, gradients, calls[0])

    def _of_pixels(self, arrays: Arrays) -> dict[str, Array]:
        bias = {"bias": arrays["bias"]} if self.use_bias else {}
        return {"kernel": arrays["pointwise_kernel"], **bias}


class SeparableConv1D(_Separable):
    """A convolution of series by two smaller ones: of each channel, then of all channels of each place.

    Shapes: [batch, length, channels] becomes [batch, new length, filters].

    Differs from Keras: channels are the last axis; there is no ``channels_first``.

    Args:
        filters: how many channels the output has.
        kernel_size: lengths of the window: one number for all axes, or one each.
        strides: steps of the window: one number for all axes, or one each.
        padding: ``valid``: windows lie within the input; ``same``: margins of zeros are added, so that with
            strides of 1 the lengths stay.
        data_format: ``channels_last`` or None, which is the same; others are refused.
        dilation_rate: distance of the places that a window reads: one number for all axes, or one each.
        depth_multiplier: filters for each channel of the first one.
        activation: a name, such as ``relu``, or an `Activation`; None: none.
        use_bias: whether there is a bias.
        depthwise_initializer: first values of the first one's kernel.
        pointwise_initializer: first values of the second one's kernel.
        bias_initializer: first values of the bias.
        depthwise_regularizer: penalty on the first one's kernel.
        pointwise_regularizer: penalty on the second one's kernel.
        bias_regularizer: penalty on the bias.
    """

    RANK: ClassVar[int] = 1


class SeparableConv2D(_Separable):
    """A convolution of images by two smaller ones: of each channel, then of all channels of each place.

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
        depth_multiplier: filters for each channel of the first one.
        activation: a name, such as ``relu``, or an `Activation`; None: none.
        use_bias: whether there is a bias.
        depthwise_initializer: first values of the first one's kernel.
        pointwise_initializer: first values of the second one's kernel.
        bias_initializer: first values of the bias.
        depthwise_regularizer: penalty on the first one's kernel.
        pointwise_regularizer: penalty on the second one's kernel.
        bias_regularizer: penalty on the bias.
    """

    RANK: ClassVar[int] = 2


def _by_place(kernel: Array) -> Array:
    return kernel.reshape(-1, *kernel.shape[-2:])
