"""Input pipelines with tf.data's API: `data.Dataset.from_tensor_slices((x, y)).shuffle(1000).batch(32)`."""

from typing import TYPE_CHECKING

from dtrain.absent_names import absent_from
from dtrain.data.dataset import Dataset
from dtrain.data.input_context import InputContext
from dtrain.data.iterator import DatasetIterator
from dtrain.data.node import INFINITE, UNKNOWN
from dtrain.data.options import Options
from dtrain.data.prefetching.tuning import AUTOTUNE
from dtrain.data.structure import TensorSpec
from dtrain.formats.tfrecord import TFRecordWriter

if TYPE_CHECKING:
    from dtrain.data import experimental
    from dtrain.data.examples import (
        FixedLenFeature,
        VarLenFeature,
        encode_example,
        parse_example,
        parse_single_example,
    )
    from dtrain.data.files import (
        NumpyDataset,
        ParquetDataset,
        TarDataset,
        TextLineDataset,
        TFRecordDataset,
        list_files,
    )

__all__ = [
    "AUTOTUNE",
    "INFINITE",
    "UNKNOWN",
    "Dataset",
    "DatasetIterator",
    "FixedLenFeature",
    "InputContext",
    "NumpyDataset",
    "Options",
    "ParquetDataset",
    "TFRecordDataset",
    "TFRecordWriter",
    "TarDataset",
    "TensorSpec",
    "TextLineDataset",
    "VarLenFeature",
    "encode_example",
    "experimental",
    "list_files",
    "parse_example",
    "parse_single_example",
]

if not TYPE_CHECKING:
    __getattr__ = absent_from("dtrain.data", __all__, ["dtrain.data.files", "dtrain.data.examples"])
