"""`dt.models`: `Model`, `Sequential` and `load_model`, as in `tf.keras.models`."""

from dtrain.training.models import Model, Sequential
from dtrain.training.saved_models import load_model

__all__ = ["Model", "Sequential", "load_model"]
