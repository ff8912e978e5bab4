"""`dt.data.experimental`: the names of `tf.data.experimental`."""

from typing import TYPE_CHECKING

from dtrain.absent_names import absent_from
from dtrain.data.experimental.cardinality import assert_cardinality
from dtrain.data.experimental.csv_datasets import CsvDataset, make_csv_dataset
from dtrain.data.iterator import Optional
from dtrain.data.options import SHARD_HINT, AutoShardPolicy, DistributeOptions
from dtrain.data.prefetching.tuning import AUTOTUNE

__all__ = [
    "AUTOTUNE",
    "SHARD_HINT",
    "AutoShardPolicy",
    "CsvDataset",
    "DistributeOptions",
    "Optional",
    "assert_cardinality",
    "make_csv_dataset",
]

if not TYPE_CHECKING:
    __getattr__ = absent_from("dtrain.data.experimental", __all__)
