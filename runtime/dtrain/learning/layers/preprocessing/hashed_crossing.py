"""HashedCrossing: the bin of what several features have together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dtrain.errors import InputError
from dtrain.learning.layers.preprocessing.category_layer import CategoryLayer
from dtrain.learning.layers.preprocessing.hashes.byte_strings import ByteStrings
from dtrain.learning.layers.preprocessing.hashes.farm_hash import chained, fingerprints
from dtrain.types import Array, Shape

_FIRST = 0xDECAFCAFFE
"""The key with which TensorFlow's crosses begin."""


@dataclass(eq=False)
class HashedCrossing(CategoryLayer):
    """The bin of two or more features' values together, one value an example; strings or integers.

    Args:
        num_bins: how many bins there are.
        output_mode: ``int`` or ``one_hot``.
        sparse: False alone: arrays are dense.
    """

    takes_list: ClassVar[bool] = True
    OUTPUT_MODES: ClassVar[tuple[str, ...]] = ("int", "one_hot")

    num_bins: int
    output_mode: str = "int"
    sparse: bool = False

    def __post_init__(self) -> None:
        self.check_encoding()
        self.check_bins(self.num_bins)

    def __call__(self, inputs: Any, training: bool | None = None) -> Any:
        """Return the bins of a list or tuple of features."""
        if not isinstance(inputs, list | tuple) or len(inputs) < 2:
            raise InputError(f"{self.label}: expected a list of at least two features, found {inputs!r:.60}")
        return super().__call__(inputs, training)

    @property
    def depth(self) -> int:
        """Return the number of bins."""
        return self.num_bins

    def output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        """Return the shape of one feature, or that with the bins as last axis."""
        for shape in input_shape:
            self.expect(shape in ((), (1,)), "features with one value an example", shape)
            self.expect(
                shape == input_shape[0], f"features of one shape, as the first's {input_shape[0]}", shape
            )
        found: Shape = super().output_shape(tuple(input_shape[0]))
        return found

    def integers(self, x: list[Array]) -> Array:
        """Return the bins."""
        shape = x[0].shape
        one_value = len(shape) < 2 or (len(shape) == 2 and shape[1] == 1)
        self.expect(one_value, "features with one value an example", f"an array of shape {shape}")
        result = np.full(x[0].size, _FIRST, np.uint64)
        for feature in x:
            self.expect(feature.shape == shape, f"features of shape {shape}", f"one of {feature.shape}")
            self.expect(feature.dtype.kind in "iuOSU", "strings or integers", f"dtype {feature.dtype}")
            flat = feature.reshape(-1)
            numbers = flat.dtype.kind in "iu"
            result = chained(
                result, flat.astype(np.uint64) if numbers else fingerprints(ByteStrings.of(flat))
            )
        return (result % np.uint64(self.num_bins)).astype(np.int64).reshape(shape)
