"""Layers by Keras's names. `base` defines a layer; the other files hold one family each."""

import re
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from dtrain.absent_names import absent_from
from dtrain.learning.layers.base import Call, Input, InputLayer, Layer, SymbolicTensor, Weight
from dtrain.learning.layers.dense import ELU, Activation, Dense, LeakyReLU, PReLU, ReLU, Softmax

if TYPE_CHECKING:
    from dtrain.learning.layers.attention import AdditiveAttention, Attention, MultiHeadAttention
    from dtrain.learning.layers.cells import GRUCell, LSTMCell, SimpleRNNCell, StackedRNNCells
    from dtrain.learning.layers.convolution import (
        Conv1D,
        Conv1DTranspose,
        Conv2D,
        Conv2DTranspose,
    )
    from dtrain.learning.layers.depthwise import (
        DepthwiseConv1D,
        DepthwiseConv2D,
        SeparableConv1D,
        SeparableConv2D,
    )
    from dtrain.learning.layers.embedding import Embedding
    from dtrain.learning.layers.merging import (
        Add,
        Average,
        Concatenate,
        Dot,
        Maximum,
        Minimum,
        Multiply,
        Subtract,
        add,
        average,
        concatenate,
        dot,
        maximum,
        minimum,
        multiply,
        subtract,
    )
    from dtrain.learning.layers.noise import (
        ActivityRegularization,
        AlphaDropout,
        Dropout,
        GaussianDropout,
        GaussianNoise,
        SpatialDropout1D,
        SpatialDropout2D,
    )
    from dtrain.learning.layers.normalization import (
        BatchNormalization,
        GroupNormalization,
        LayerNormalization,
        UnitNormalization,
    )
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
        Cropping1D,
        Cropping2D,
        Flatten,
        Masking,
        Permute,
        RepeatVector,
        Reshape,
        UpSampling1D,
        UpSampling2D,
        ZeroPadding1D,
        ZeroPadding2D,
    )
    from dtrain.learning.layers.tensor_functions import Lambda, TensorFunction
    from dtrain.learning.layers.wrapping import Bidirectional, TimeDistributed

__all__ = [
    "ELU",
    "GRU",
    "LSTM",
    "RNN",
    "Activation",
    "ActivityRegularization",
    "Add",
    "AdditiveAttention",
    "AlphaDropout",
    "Attention",
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
    "Conv1DTranspose",
    "Conv2D",
    "Conv2DTranspose",
    "Cropping1D",
    "Cropping2D",
    "Dense",
    "DepthwiseConv1D",
    "DepthwiseConv2D",
    "Discretization",
    "Dot",
    "Dropout",
    "Embedding",
    "Flatten",
    "GRUCell",
    "GaussianDropout",
    "GaussianNoise",
    "GlobalAveragePooling1D",
    "GlobalAveragePooling2D",
    "GlobalMaxPooling1D",
    "GlobalMaxPooling2D",
    "GroupNormalization",
    "HashedCrossing",
    "Hashing",
    "Input",
    "InputLayer",
    "IntegerLookup",
    "LSTMCell",
    "Lambda",
    "Layer",
    "LayerNormalization",
    "LeakyReLU",
    "Masking",
    "MaxPooling1D",
    "MaxPooling2D",
    "Maximum",
    "Minimum",
    "MultiHeadAttention",
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
    "SeparableConv1D",
    "SeparableConv2D",
    "SimpleRNN",
    "SimpleRNNCell",
    "Softmax",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "StackedRNNCells",
    "StringLookup",
    "Subtract",
    "SymbolicTensor",
    "TensorFunction",
    "TextVectorization",
    "TimeDistributed",
    "UnitNormalization",
    "UpSampling1D",
    "UpSampling2D",
    "Weight",
    "ZeroPadding1D",
    "ZeroPadding2D",
    "add",
    "average",
    "concatenate",
    "dot",
    "maximum",
    "minimum",
    "multiply",
    "subtract",
]

if not TYPE_CHECKING:
    _FAMILIES = (
        *("shaping", "embedding", "normalization", "convolution", "pooling", "merging", "recurrent"),
        *("cells", "wrapping", "noise", "attention", "depthwise"),
        "tensor_functions",
    )
    _PREPARING = ("numeric", "categories", "lookups", "text_vectorization", "images")
    _OTHER_NAMES = {"AvgPool": "AveragePooling", "MaxPool": "MaxPooling", "Convolution": "Conv"}
    _load = absent_from(
        "dtrain.layers",
        __all__,
        [f"{__name__}.{each}" for each in (*_FAMILIES, *(f"preprocessing.{each}" for each in _PREPARING))],
    )

    def __getattr__(name):
        """Load a layer, also by Keras's other names: ``MaxPool2D``, ``Convolution1D``."""
        return _load(re.sub(r"(Avg|Max)Pool(?=\d)|Convolution", lambda found: _OTHER_NAMES[found[0]], name))


@cache
def classes() -> dict[str, type[Layer]]:
    """Return every layer class by its own name: what a model's config may name."""
    here = import_module(__name__)
    found = {name: getattr(here, name) for name in __all__}
    return {name: each for name, each in found.items() if isinstance(each, type) and issubclass(each, Layer)}
