"""Layers by Keras's names. `base` defines a layer; the other files hold one family each."""

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from dtrain.absent_names import absent_from
from dtrain.learning.layers.base import Call, Input, InputLayer, Layer, SymbolicTensor, Weight
from dtrain.learning.layers.dense import ELU, Activation, Dense, LeakyReLU, PReLU, ReLU, Softmax

if TYPE_CHECKING:
    from dtrain.learning.layers.cells import GRUCell, LSTMCell, SimpleRNNCell, StackedRNNCells
    from dtrain.learning.layers.convolution import Conv1D, Conv2D, Conv2DTranspose, DepthwiseConv2D
    from dtrain.learning.layers.embedding import Embedding
    from dtrain.learning.layers.merging import (
        Add,
        Average,
        Concatenate,
        Maximum,
        Minimum,
        Multiply,
        Subtract,
        add,
        average,
        concatenate,
        maximum,
        minimum,
        multiply,
        subtract,
    )
    from dtrain.learning.layers.normalization import BatchNormalization, LayerNormalization
    from dtrain.learning.layers.pooling import (
        AveragePooling1D,
        AveragePooling2D,
        GlobalAveragePooling1D,
        GlobalAveragePooling2D,
        GlobalMaxPooling1D,
        GlobalMaxPooling2D,
        MaxPooling1D,
        MaxPooling2D,
    )
    from dtrain.learning.layers.preprocessing.categories import (
        CategoryEncoding,
        Discretization,
        HashedCrossing,
        Hashing,
    )
    from dtrain.learning.layers.preprocessing.images import (
        CenterCrop,
        RandomBrightness,
        RandomContrast,
        RandomCrop,
        RandomFlip,
        RandomRotation,
        RandomTranslation,
        RandomZoom,
        Resizing,
    )
    from dtrain.learning.layers.preprocessing.lookups import IntegerLookup, StringLookup
    from dtrain.learning.layers.preprocessing.numeric import Normalization, Rescaling
    from dtrain.learning.layers.preprocessing.text_vectorization import TextVectorization
    from dtrain.learning.layers.recurrent import GRU, LSTM, RNN, SimpleRNN
    from dtrain.learning.layers.shaping import (
        Dropout,
        Flatten,
        Masking,
        Permute,
        RepeatVector,
        Reshape,
        UpSampling2D,
        ZeroPadding2D,
    )
    from dtrain.learning.layers.wrapping import Bidirectional, TimeDistributed

__all__ = [
    "ELU",
    "GRU",
    "LSTM",
    "RNN",
    "Activation",
    "Add",
    "Average",
    "AveragePooling1D",
    "AveragePooling2D",
    "BatchNormalization",
    "Bidirectional",
    "Call",
    "CategoryEncoding",
    "CenterCrop",
    "Concatenate",
    "Conv1D",
    "Conv2D",
    "Conv2DTranspose",
    "Dense",
    "DepthwiseConv2D",
    "Discretization",
    "Dropout",
    "Embedding",
    "Flatten",
    "GRUCell",
    "GlobalAveragePooling1D",
    "GlobalAveragePooling2D",
    "GlobalMaxPooling1D",
    "GlobalMaxPooling2D",
    "HashedCrossing",
    "Hashing",
    "Input",
    "InputLayer",
    "IntegerLookup",
    "LSTMCell",
    "Layer",
    "LayerNormalization",
    "LeakyReLU",
    "Masking",
    "MaxPooling1D",
    "MaxPooling2D",
    "Maximum",
    "Minimum",
    "Multiply",
    "Normalization",
    "PReLU",
    "Permute",
    "RandomBrightness",
    "RandomContrast",
    "RandomCrop",
    "RandomFlip",
    "RandomRotation",
    "RandomTranslation",
    "RandomZoom",
    "ReLU",
    "RepeatVector",
    "Rescaling",
    "Reshape",
    "Resizing",
    "SimpleRNN",
    "SimpleRNNCell",
    "Softmax",
    "StackedRNNCells",
    "StringLookup",
    "Subtract",
    "SymbolicTensor",
    "TextVectorization",
    "TimeDistributed",
    "UpSampling2D",
    "Weight",
    "ZeroPadding2D",
    "add",
    "average",
    "concatenate",
    "maximum",
    "minimum",
    "multiply",
    "subtract",
]

if not TYPE_CHECKING:
    _FAMILIES = (
        "shaping",
        "embedding",
        "normalization",
        "convolution",
        "pooling",
        "merging",
        "recurrent",
        "wrapping",
    )
    _PREPARING = ("numeric", "categories", "lookups", "text_vectorization", "images")
    __getattr__ = absent_from(
        "dtrain.layers",
        __all__,
        [f"{__name__}.{each}" for each in (*_FAMILIES, *(f"preprocessing.{each}" for each in _PREPARING))],
    )


@cache
def classes() -> dict[str, type[Layer]]:
    """Return every layer class by its name: what a model's config may name."""
    here = import_module(__name__)
    found = {name: getattr(here, name) for name in __all__}
    return {name: each for name, each in found.items() if isinstance(each, type) and issubclass(each, Layer)}
