"""Hints at what to use in the place of a name of TensorFlow, Keras or dtrain that a module does not have."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import Any

_INSTEAD = {
    "GradientTape": "there is no automatic differentiation; model.value_and_gradients gives both",
    "function": "leave it out: nothing is traced, Python runs as it stands",
    "keras": "Keras's names stand in dtrain itself: dt.layers, dt.Sequential, dt.callbacks",
    "datasets": "nothing is downloaded; dt.data reads files, and numpy arrays are data as they are",
    "constant": "numpy's arrays are what TensorFlow's tensors are: np.array",
    "convert_to_tensor": "numpy's arrays are what TensorFlow's tensors are: np.asarray",
    "cast": "write array.astype(dtype)",
    "one_hot": "write dt.utils.to_categorical",
    "random": "write np.random.default_rng(seed)",
    "math": "numpy has it: np.log, np.exp, ...",
    "io": "dt.data reads and writes TFRecord files and tf.train.Example; the rest is Python's open",
    "config": "threads follow OMP_NUM_THREADS, and roles and machines stand in the spec",
    "summary": "write dt.callbacks.TensorBoard",
    "saved_model": "write model.save, or model.export for ONNX",
    "device": "there are CPUs alone; the spec says which task computes what",
    "Lambda": "write a class with forward and backward; see dt.layers.Layer",
    "estimator": "the names stand in dtrain itself: dt.Estimator, dt.train_and_evaluate",
    "compat": "the names of TensorFlow 1 that are there stand in dtrain itself: dt.Estimator",
}
"""By the name in TensorFlow."""
_PLACES = (
    *("layers", "data", "losses", "metrics", "optimizers", "callbacks", "initializers", "regularizers"),
    *("activations", "distribute", "utils", "train", "data.experimental", "distribute.experimental"),
)


def absent_from(module: str, known: Iterable[str]) -> Callable[[str], Any]:
    """Return the `__getattr__` (PEP 562) of a public module, whose `AttributeError` says what to use.

    Args:
        module: its name.
        known: the public names in it.
    """

    def missing(name: str) -> Any:
        hint = "" if name.startswith("_") else _hint(module, name, known)
        raise AttributeError(f"module {module!r} has no attribute {name!r}{hint}", name=name)

    return missing


def _hint(module: str, name: str, known: Iterable[str]) -> str:
    if name in _INSTEAD:
        return f"; {_INSTEAD[name]}"
    for place in _PLACES:
        found = _public(place)
        if f"dtrain.{place}" != module and name in found:
            return f"; it is dt.{place}.{name}"
    by_lower = {each.lower(): each for each in known}
    if near := get_close_matches(name.lower(), by_lower, n=1, cutoff=0.8):
        return f"; do you mean {by_lower[near[0]]}?"
    if module == "dtrain" and hasattr(import_module("numpy"), plain := name.removeprefix("reduce_")):
        return f"; numpy has it: np.{plain}"
    return ""


def _public(place: str) -> Iterable[str]:
    owner = import_module("dtrain")
    for part in place.split("."):
        owner = getattr(owner, part)
    return getattr(owner, "__all__", ())
