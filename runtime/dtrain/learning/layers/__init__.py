"""Layers by Keras's names. `base` defines a layer; the other files hold one family each."""

import re
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dtrain.absent_names import absent_from

if TYPE_CHECKING:
    from dtrain.learning.layers.attention import *
    from dtrain.learning.layers.base import *
    from dtrain.learning.layers.cells import *
    from dtrain.learning.layers.convolution import *
    from dtrain.learning.layers.dense import *
    from dtrain.learning.layers.depthwise import *
    from dtrain.learning.layers.embedding import *
    from dtrain.learning.layers.merging import *
    from dtrain.learning.layers.noise import *
    from dtrain.learning.layers.normalization import *
    from dtrain.learning.layers.pooling import *
    from dtrain.learning.layers.preprocessing.categories import *
    from dtrain.learning.layers.preprocessing.images import *
    from dtrain.learning.layers.preprocessing.lookups import *
    from dtrain.learning.layers.preprocessing.numeric import *
    from dtrain.learning.layers.preprocessing.text_vectorization import *
    from dtrain.learning.layers.recurrent import *
    from dtrain.learning.layers.shaping import *
    from dtrain.learning.layers.tensor_functions import *
    from dtrain.learning.layers.wrapping import *

# A file of this folder, and the public names in it, which are loaded when one of them is first used.
_FAMILIES = {
    "base": "Call Input InputLayer Layer SymbolicTensor Weight",
    "attention": "Attention MultiHeadAttention",
    "cells": "GRUCell LSTMCell SimpleRNNCell",
    "convolution": "Conv1D Conv1DTranspose Conv2D Conv2DTranspose",
    "dense": "Activation Dense ELU LeakyReLU PReLU ReLU Softmax",
    "depthwise": "DepthwiseConv1D DepthwiseConv2D SeparableConv1D SeparableConv2D",
    "embedding": "Embedding",
    "merging": (
        "Add Average Concatenate Dot Maximum Minimum Multiply Subtract "
        "add average concatenate dot maximum minimum multiply subtract"
    ),
    "noise": "Dropout GaussianNoise SpatialDropout1D SpatialDropout2D",
    "normalization": "BatchNormalization LayerNormalization",
    "pooling": (
        "AveragePooling1D AveragePooling2D GlobalAveragePooling1D GlobalAveragePooling2D "
        "GlobalMaxPooling1D GlobalMaxPooling2D MaxPooling1D MaxPooling2D"
    ),
    "preprocessing.categories": "CategoryEncoding Discretization HashedCrossing Hashing",
    "preprocessing.images": (
        "CenterCrop RandomBrightness RandomContrast RandomCrop RandomFlip RandomRotation "
        "RandomTranslation RandomZoom Resizing"
    ),
    "preprocessing.lookups": "IntegerLookup StringLookup",
    "preprocessing.numeric": "Normalization Rescaling",
    "preprocessing.text_vectorization": "TextVectorization",
    "recurrent": "GRU LSTM RNN SimpleRNN",
    "shaping": (
        "Cropping1D Cropping2D Flatten Masking Permute RepeatVector Reshape UpSampling1D UpSampling2D "
        "ZeroPadding1D ZeroPadding2D"
    ),
    "tensor_functions": "Lambda TensorFunction",
    "wrapping": "Bidirectional TimeDistributed",
}

if not TYPE_CHECKING:
    _HOMES = {name: home for home, names in _FAMILIES.items() for name in names.split()}
    __all__ = sorted(_HOMES)
    _OTHER_NAMES = {"AvgPool": "AveragePooling", "MaxPool": "MaxPooling", "Convolution": "Conv"}
    _absent = absent_from("dtrain.layers", __all__)

    def __getattr__(name):
        """Load a layer, also by Keras's other names: ``MaxPool2D``, ``Convolution1D``."""
        known = re.sub(r"(Avg|Max)Pool(?=\d)|Convolution", lambda found: _OTHER_NAMES[found[0]], name)
        if known not in _HOMES:
            return _absent(known)
        return getattr(import_module(f"{__name__}.{_HOMES[known]}"), known)


@cache
def classes() -> dict[str, Any]:
    """Return every layer class by its own name: what a model's config may name."""
    here = import_module(__name__)
    found = {name: getattr(here, name) for name in here.__all__}
    return {
        name: each for name, each in found.items() if isinstance(each, type) and issubclass(each, here.Layer)
    }
