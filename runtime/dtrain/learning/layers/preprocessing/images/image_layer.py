"""The bases of layers of images: batches in a model, batches or single images outside; and their chance."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dtrain.data.steps.chance import element_chance
from dtrain.errors import SpecError
from dtrain.learning.layers.base import Call
from dtrain.learning.layers.preprocessing.preparing_layer import OUTPUTS_MAX, PreparingLayer
from dtrain.types import Array, Arrays, Shape

Range = float | Sequence[float]
_OUTSIDE = 1
"""The last word of seeds elsewhere: numpy takes a shorter seed for one that ends in zeros."""


class ImageLayer(PreparingLayer):
    """Base of layers of images [batch, height, width, channels]."""

    def output_shape(self, input_shape: Shape) -> Shape:
        """Return the same shape."""
        self.expect(len(input_shape) == 3, "4 axes: batch, height, width, channels", input_shape)
        return input_shape

    def at_once(self, inputs: Array, training: bool | None) -> Array:
        """Return the output for a batch of images, or for one image."""
        self.expect(inputs.ndim in (3, 4), "an image or a batch of them", f"shape {inputs.shape}")
        found: Array = self.of_batch(inputs if inputs.ndim == 4 else inputs[np.newaxis], training)
        return found if inputs.ndim == 4 else found[0]

    def of_batch(self, x: Array, training: bool | None) -> Array:
        """Return the output for a batch outside of a model."""
        found: Array = self.forward({}, x, Call(bool(training)))[0]
        return found

    def expect_image_size(self, height: Any, width: Any) -> None:
        """Raise a `SpecError` unless these may be an image's height and width."""
        self.expect_positive(height=height, width=width)
        if height * width > OUTPUTS_MAX:
            found = f"{height:.6g} * {width:.6g}"
            raise SpecError(f"{self.label}: height * width: expected at most {OUTPUTS_MAX}, found {found}")

    def range_of(self, name: str, value: Range, least: float, most: float) -> tuple[float, float]:
        """Return the lower and upper end of what is drawn: two numbers, or one and its negative."""
        ends = list(value) if isinstance(value, Sequence) else [-value, value]
        if len(ends) != 2 or not least <= ends[0] <= ends[1] <= most:
            raise SpecError(
                f"{self.label}: {name}: expected a number, or a lower and an upper one, from {least:g} to "
                f"{most:g}, found {value!r}"
            )
        return float(ends[0]), float(ends[1])


class RandomImageLayer(ImageLayer):
    """Base of layers that change images at random while training, and hand them on otherwise.

    Draws follow from where the layer is used, so that they are the same in whichever replica, and after a
    resume. In a model: from the run's seed, the batch and its part. In `Dataset.map`: from the map's seed,
    the iteration and the element's number. Elsewhere: from how often the layer was called. A layer with a
    `seed` draws from that in place of the run's or the map's, and layers of equal seeds draw the same.
    """

    seed: int | None
    _calls = 0

    def changed(self, x: Array, rng: np.random.Generator) -> tuple[Array, Any]:
        """Return changed images, and a cache for `back`."""
        raise NotImplementedError

    def unchanged(self, x: Array) -> tuple[Array, Any]:
        """Return images outside of training, and a cache for `back`; None: they are the same."""
        return x, None

    def back(self, cache: Any, dy: Array) -> Array:
        """Return the gradient by the images."""
        raise NotImplementedError

    def forward(self, weights: Arrays, x: Array, call: Call) -> tuple[Array, Any]:
        """Return changed images in training."""
        if not call.training:
            return self.unchanged(x)
        if call.rng is None:
            raise SpecError(f"{self.label}: training needs a random generator")
        return self.changed(x, self._own(call.rng))

    def backward(self, weights: Arrays, cache: Any, dy: Array, gradients: Arrays, call: Call) -> Any:
        """Return the gradient by the images."""
        return dy if cache is None else self.back(cache, dy)

    def of_batch(self, x: Array, training: bool | None) -> Array:
        """Return changed images, unless `training` is False, as Keras does."""
        if training is False:
            return self.unchanged(x)[0]
        element = element_chance()
        if element is not None:
            return self.changed(x, element.generator(self, self.seed))[0]
        self._calls += 1
        words = [(self.seed or 0) % 2**32, self._calls, _OUTSIDE]
        return self.changed(x, np.random.default_rng(words))[0]

    def _own(self, rng: np.random.Generator) -> np.random.Generator:
        """Return a generator of the same address, but of this layer's seed if it has one."""
        if self.seed is None:
            return rng
        address = rng.bit_generator.seed_seq.entropy  # type: ignore[attr-defined]
        words = address if isinstance(address, Sequence) else [address]
        return np.random.default_rng([self.seed % 2**32, *words])
