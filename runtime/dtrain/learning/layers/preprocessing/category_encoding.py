"""CategoryEncoding: integers to 0 and 1, or counts."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dtrain.errors import InputError, SpecError
from dtrain.learning.layers.preprocessing.category_layer import CategoryLayer
from dtrain.types import Array


@dataclass(eq=False)
class CategoryEncoding(CategoryLayer):
    """Integers from 0 to `num_tokens` (not included) as ``one_hot``, ``multi_hot`` or ``count``.

    Shapes: whole numbers [batch, n] become float32 [batch, num_tokens] by ``multi_hot`` and ``count``,
    [batch, n, num_tokens] by ``one_hot``.

    Differs from Keras: encodings may have any number of axes.

    Args:
        num_tokens: how many different numbers there are.
        output_mode: ``one_hot``, ``multi_hot`` or ``count``.
        sparse: False alone: arrays are dense.

    Raises:
        SpecError: `num_tokens` is missing, or is none.
    """

    OUTPUT_MODES: ClassVar[tuple[str, ...]] = ("one_hot", "multi_hot", "count")

    num_tokens: int | None = None
    output_mode: str = "multi_hot"
    sparse: bool = False

    def __post_init__(self) -> None:
        self.check_encoding()
        if self.num_tokens is None:
            raise SpecError(
                f"{self.label}: num_tokens: expected a number, found None; IntegerLookup learns it"
            )
        self.expect_size(num_tokens=self.num_tokens)

    def __call__(self, inputs: Any, training: bool | None = None, count_weights: Any = None) -> Any:
        """Encode; in mode ``count`` each integer may count as much as `count_weights`, of the same shape."""
        if count_weights is None:
            return super().__call__(inputs, training)
        if self.output_mode != "count":
            raise InputError(
                f"{self.label}: count_weights: expected output_mode 'count', found {self.output_mode!r}"
            )
        integers, weights = self.integers(self.as_input(inputs)), np.asarray(count_weights, np.float32)
        self.expect(
            weights.shape == integers.shape, f"count_weights of shape {integers.shape}", f"{weights.shape}"
        )
        return self.encoded(integers, weights)

    @property
    def depth(self) -> int:
        """Return the number of tokens."""
        assert self.num_tokens is not None
        return self.num_tokens

    def integers(self, x: Array) -> Array:
        """Return the integers as they are; an `InputError` if one is out of range."""
        found = self.whole_numbers(x)
        if (outside := found[(found < 0) | (found >= self.depth)]).size:
            raise InputError(
                f"{self.label}: expected integers from 0 to {self.depth - 1}, found {outside[0]}"
            )
        return found
