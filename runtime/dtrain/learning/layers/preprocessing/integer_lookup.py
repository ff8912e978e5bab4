"""IntegerLookup: integers to integers."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.errors import InputError, SpecError
from dtrain.learning.layers.preprocessing.lookup import Lookup
from dtrain.types import Array


@dataclass(eq=False)
class IntegerLookup(Lookup):
    """Integers to integers; of several `num_oov_indices` an unknown one gets that of its remainder.

    Differs from Keras: `adapt` of a layer with a given vocabulary learns another one, and encodings are at
    most 10^8 long.

    Args:
        max_tokens: the largest size of the vocabulary, special tokens included; None: no limit.
        num_oov_indices: how many integers stand for unknown tokens.
        mask_token: the token that stands for nothing and becomes 0; None: there is none.
        oov_token: what an unknown integer becomes with `invert`.
        vocabulary: tokens; or the path of a UTF-8 text file with one token a line, which is read at once.
        vocabulary_dtype: ``int64`` or ``int32``: of the tokens.
        idf_weights: for ``tf_idf``, a weight for each token of a given vocabulary.
        invert: whether integers become tokens.
        output_mode: ``int``, ``one_hot``, ``multi_hot``, ``count`` or ``tf_idf``.
        sparse: False alone: arrays are dense.
        pad_to_max_tokens: whether encodings are `max_tokens` long, also where the vocabulary is shorter.
    """

    max_tokens: int | None = None
    num_oov_indices: int = 1
    mask_token: Any = None
    oov_token: Any = -1
    vocabulary: Sequence[Any] | os.PathLike[str] | None = None
    vocabulary_dtype: str = "int64"
    idf_weights: Sequence[float] | None = None
    invert: bool = False
    output_mode: str = "int"
    sparse: bool = False
    pad_to_max_tokens: bool = False

    def __post_init__(self) -> None:
        if self.vocabulary_dtype not in ("int64", "int32"):
            raise SpecError(
                f"{self.label}: vocabulary_dtype: expected 'int64' or 'int32', found "
                f"{self.vocabulary_dtype!r}"
            )
        super().__post_init__()

    def _tokens(self, x: Array) -> list[Any]:
        return self.whole_numbers(x).reshape(-1).tolist()

    def _token(self, value: Any) -> int:
        if value != int(value):
            raise InputError(f"{self.label}: expected integers, found {value!r}")
        return int(value)

    def _token_of(self, line: str) -> int:
        return int(line)

    def _buckets(self, tokens: list[Any]) -> Array:
        return np.array(tokens, np.int64) % self.num_oov_indices
