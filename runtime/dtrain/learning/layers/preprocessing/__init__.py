"""Layers that prepare data, one in each file.

They have no weights. What `adapt` learns from data (means, a vocabulary) becomes part of the layer's config.
It is saved with the architecture, and is the same in every task that runs the same program: the tasks of one
host learn it once. In the `map` of a dataset they are called with arrays.
"""

from dtrain.learning.layers.preprocessing.category_encoding import CategoryEncoding
from dtrain.learning.layers.preprocessing.discretization import Discretization
from dtrain.learning.layers.preprocessing.hashed_crossing import HashedCrossing
from dtrain.learning.layers.preprocessing.hashing import Hashing
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
from dtrain.learning.layers.preprocessing.integer_lookup import IntegerLookup
from dtrain.learning.layers.preprocessing.normalization import Normalization
from dtrain.learning.layers.preprocessing.rescaling import Rescaling
from dtrain.learning.layers.preprocessing.string_lookup import StringLookup
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
