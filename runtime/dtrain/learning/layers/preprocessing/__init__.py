"""Layers that prepare data, one in each file.

They have no weights. What `adapt` learns from data (means, a vocabulary) becomes part of the layer's config.
It is saved with the architecture, and is the same in every task that runs the same program: the tasks of one
host learn it once. In the `map` of a dataset they are called with arrays.
"""

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

__all__ = [
    "CategoryEncoding",
    "CenterCrop",
    "Discretization",
    "HashedCrossing",
    "Hashing",
    "IntegerLookup",
    "Normalization",
    "RandomBrightness",
    "RandomContrast",
    "RandomCrop",
    "RandomFlip",
    "RandomRotation",
    "RandomTranslation",
    "RandomZoom",
    "Rescaling",
    "Resizing",
    "StringLookup",
    "TextVectorization",
]
