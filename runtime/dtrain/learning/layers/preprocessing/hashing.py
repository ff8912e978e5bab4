"""Hashing: strings and integers to the numbers of bins, without a vocabulary."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.layers.preprocessing.category_layer import CategoryLayer
from dtrain.learning.layers.preprocessing.hashes.byte_strings import ByteStrings
from dtrain.learning.layers.preprocessing.hashes.farm_hash import fingerprints
from dtrain.learning.layers.preprocessing.hashes.sip_hash import keyed_hashes
from dtrain.types import Array


@dataclass(eq=False)
class Hashing(CategoryLayer):
    """The bin of a string, or of an integer's decimal digits: FarmHash64, with a `salt` SipHash64.

    Attributes:
        num_bins: the number of bins, that of the mask included.
        mask_value: what gets bin 0, which then is for nothing else.
        salt: one integer, or two.
        output_mode: ``int``, ``one_hot``, ``multi_hot`` or ``count``.
        sparse: False alone: arrays are dense.
    """

    num_bins: int
    mask_value: Any = None
    salt: int | Sequence[int] | None = None
    output_mode: str = "int"
    sparse: bool = False

    def __post_init__(self) -> None:
        self.check_encoding()
        self.check_bins(self.num_bins)
        if isinstance(self.salt, int) and not isinstance(self.salt, bool):
            self.salt = [self.salt, self.salt]
        if self.salt is not None and not (
            isinstance(self.salt, list | tuple)
            and len(self.salt) == 2
            and all(isinstance(each, int) and not isinstance(each, bool) for each in self.salt)
        ):
            raise SpecError(f"{self.label}: salt: expected an integer, or two, found {self.salt!r}")

    @property
    def depth(self) -> int:
        """Return the number of bins."""
        return self.num_bins

    def integers(self, x: Array) -> Array:
        """Return the bins."""
        self.expect(x.dtype.kind in "iuOSU", "strings or integers", f"dtype {x.dtype}")
        masks = self.mask_value is not None and self.num_bins > 1
        strings = ByteStrings.of(x.reshape(-1))
        hashes = fingerprints(strings) if self.salt is None else keyed_hashes(strings, self._key)
        bins = (hashes % np.uint64(self.num_bins - masks)).astype(np.int64).reshape(x.shape)
        if masks:
            bins = np.where(self._masked(x), 0, bins + 1)
        return bins

    @property
    def _key(self) -> Sequence[int]:
        assert isinstance(self.salt, Sequence)
        return self.salt

    def _masked(self, x: Array) -> Array:
        if x.dtype.kind in "iu":
            return np.asarray(x == self.mask_value, bool)
        wanted = self.mask_value.encode() if isinstance(self.mask_value, str) else self.mask_value
        found = [
            (each if isinstance(each, bytes) else str(each).encode()) == wanted
            for each in x.reshape(-1).tolist()
        ]
        return np.array(found, bool).reshape(x.shape)
