"""Partitioners take every dtype that TensorFlow's take."""

import pytest
from row_by_row import every_row

from dtrain.errors import SpecError
from dtrain.variables.partitioning import FixedShardsPartitioner, MaxSizePartitioner, MinSizePartitioner

SHAPE = (100, 3)
# Shards of at least and of at most 64 bytes: what tensorflow-cpu 2.15.1 answered.
ANSWERS = {
    **dict.fromkeys(
        ["bool", "int4", "int8", "uint4", "uint8", "qint8", "quint8", "float8_e4m3fn", "float8_e5m2"], (5, 5)
    ),
    **dict.fromkeys(["bfloat16", "float16", "int16", "uint16", "qint16", "quint16"], (10, 10)),
    **dict.fromkeys(["float32", "int32", "uint32", "qint32"], (19, 20)),
    **dict.fromkeys(["complex64", "float64", "int64", "uint64"], (38, 50)),
    **dict.fromkeys(["complex128", "string"], (75, 100)),
}


@every_row("dtype", ANSWERS)
def test_every_dtype_of_tensorflow_has_a_size(dtype):
    at_least, at_most = ANSWERS[dtype]
    assert MinSizePartitioner(64, max_shards=100)(SHAPE, dtype) == [at_least, 1]
    assert MaxSizePartitioner(64)(SHAPE, dtype) == [at_most, 1]
    assert FixedShardsPartitioner(7)(SHAPE, dtype) == [7, 1]


@pytest.mark.parametrize("partitioner", [MinSizePartitioner(64, max_shards=100), MaxSizePartitioner(64)])
def test_a_dtype_that_does_not_exist_is_named(partitioner):
    with pytest.raises(SpecError, match=r"float31.*bfloat16"):
        partitioner(SHAPE, "float31")
