"""The values that replicas reduce among themselves, and how. Compare `tf.distribute.ReduceOp`."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypeAlias

from dtrain.types import Array

Nest: TypeAlias = "float | Array | Sequence[Nest] | Mapping[str, Nest]"
"""A number, an array, or lists and mappings of them: the same form in every replica."""


class ReduceOp(StrEnum):
    """How the values of several replicas become one."""

    SUM = "SUM"
    MEAN = "MEAN"
