"""StringLookup: strings to integers."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.errors import SpecError
from dtrain.learning.layers.preprocessing.hashes.byte_strings import ByteStrings
from dtrain.learning.layers.preprocessing.hashes.farm_hash import fingerprints
from dtrain.learning.layers.preprocessing.lookup import Lookup
from dtrain.types import Array


@dataclass(eq=False)
class StringLookup(Lookup):
    """Strings to integers; of several `num_oov_indices` an unknown one gets that of its FarmHash64.

    See `IntegerLookup` for integers.
    """

    max_tokens: int | None = None
    num_oov_indices: int = 1
    mask_token: Any = None
    oov_token: Any = "[UNK]"
    vocabulary: Sequence[Any] | os.PathLike[str] | None = None
    idf_weights: Sequence[float] | None = None
    encoding: str = "utf-8"
    invert: bool = False
    output_mode: str = "int"
    sparse: bool = False
    pad_to_max_tokens: bool = False

    def __post_init__(self) -> None:
        if self.encoding.lower() not in ("utf-8", "utf8"):
            raise SpecError(f"{self.label}: encoding: expected 'utf-8', found {self.encoding!r}")
        super().__post_init__()

    def _tokens(self, x: Array) -> list[Any]:
        return [each if type(each) is str else self._token(each) for each in x.reshape(-1).tolist()]

    def _token(self, value: Any) -> str:
        return value.decode() if isinstance(value, bytes) else str(value)

    def _buckets(self, tokens: list[Any]) -> Array:
        if self.num_oov_indices == 1:
            return np.zeros(len(tokens), np.int64)
        hashes = fingerprints(ByteStrings.of_list([token.encode() for token in tokens]))
        return (hashes % np.uint64(self.num_oov_indices)).astype(np.int64)
