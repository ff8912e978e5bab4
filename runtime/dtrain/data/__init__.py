"""Input pipelines with tf.data's API: `data.Dataset.from_tensor_slices((x, y)).shuffle(1000).batch(32)`."""

from dtrain.data.dataset import Dataset
from dtrain.data.examples import (
    FixedLenFeature,
    VarLenFeature,
    encode_example,
    parse_example,
    parse_single_example,
)
from dtrain.data.files import TextLineDataset, TFRecordDataset, list_files
from dtrain.data.input_context import InputContext
from dtrain.data.iterator import DatasetIterator
from dtrain.data.node import INFINITE, UNKNOWN
from dtrain.data.structure import TensorSpec
from dtrain.formats.tfrecord import TFRecordWriter

AUTOTUNE = -1
"""Accepted where tf.data takes it; nothing depends on it."""

__all__ = [
    "AUTOTUNE",
    "INFINITE",
    "UNKNOWN",
    "Dataset",
    "DatasetIterator",
    "FixedLenFeature",
    "InputContext",
    "TFRecordDataset",
    "TFRecordWriter",
    "TensorSpec",
    "TextLineDataset",
    "VarLenFeature",
    "encode_example",
    "list_files",
    "parse_example",
    "parse_single_example",
]
