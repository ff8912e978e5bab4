"""`dt.models`: `Model`, `Sequential` and `load_model`, as in `tf.keras.models`."""

from dtrain.training.models import Model
from dtrain.training.saved_models import load_model
from dtrain.training.sequential import Sequential

__all__ = ["Model", "Sequential", "load_model"]
