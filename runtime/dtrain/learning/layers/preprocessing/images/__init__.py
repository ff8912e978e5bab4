"""Layers of images, one in each file."""

from dtrain.learning.layers.preprocessing.images.center_crop import CenterCrop
from dtrain.learning.layers.preprocessing.images.random_brightness import RandomBrightness
from dtrain.learning.layers.preprocessing.images.random_contrast import RandomContrast
from dtrain.learning.layers.preprocessing.images.random_crop import RandomCrop
from dtrain.learning.layers.preprocessing.images.random_flip import RandomFlip
from dtrain.learning.layers.preprocessing.images.random_rotation import RandomRotation
from dtrain.learning.layers.preprocessing.images.random_translation import RandomTranslation
from dtrain.learning.layers.preprocessing.images.random_zoom import RandomZoom
from dtrain.learning.layers.preprocessing.images.resizing import Resizing

__all__ = [
    "CenterCrop",
    "RandomBrightness",
    "RandomContrast",
    "RandomCrop",
    "RandomFlip",
    "RandomRotation",
    "RandomTranslation",
    "RandomZoom",
    "Resizing",
]
