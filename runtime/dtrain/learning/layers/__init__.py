"""Layers by Keras's names. `base` says what a layer is; the other files hold one family each."""

from dtrain.learning.layers.base import Call, Input, InputLayer, Layer, SymbolicTensor, Weight
from dtrain.learning.layers.dense import ELU, Activation, Dense, LeakyReLU, PReLU, ReLU, Softmax
from dtrain.learning.layers.shaping import Dropout, Flatten, Reshape

__all__ = [
    "CLASSES",
    "ELU",
    "Activation",
    "Call",
    "Dense",
    "Dropout",
    "Flatten",
    "Input",
    "InputLayer",
    "Layer",
    "LeakyReLU",
    "PReLU",
    "ReLU",
    "Reshape",
    "Softmax",
    "SymbolicTensor",
    "Weight",
]

CLASSES: dict[str, type[Layer]] = {
    name: value for name, value in globals().items() if isinstance(value, type) and issubclass(value, Layer) and value is not Layer
}
"""Every layer class by its name: what a model's config may name."""
