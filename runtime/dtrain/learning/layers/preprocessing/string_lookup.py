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

    Differs from Keras: `adapt` of a layer with a given vocabulary learns another one, and encodings are at
    most 10^8 long.

    Args:
        max_tokens: the largest size of the vocabulary, special tokens included; None: no limit.
        num_oov_indices: how many integers stand for unknown tokens.
        mask_token: the token that stands for nothing and becomes 0; None: there is none.
        oov_token: what an unknown integer becomes with `invert`.
        vocabulary: tokens; or the path of a UTF-8 text file with one token a line, which is read at once.
        idf_weights: for ``tf_idf``, a weight for each token of a given vocabulary.
        encoding: ``utf-8`` alone.
        invert: whether integers become tokens.
        output_mode: ``int``, ``one_hot``, ``multi_hot``, ``count`` or ``tf_idf``.
        sparse: False alone: arrays are dense.
        pad_to_max_tokens: whether encodings are `max_tokens` long, also where the vocabulary is shorter.
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
