"""`dt.datasets`: data sets of `tf.keras.datasets` from copies in `~/.keras/datasets`; nothing is downloaded.

KERAS_HOME names another folder than `~/.keras`. Copies that are pickled (cifar10, imdb, reuters) are not
read.
"""

import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np

from dtrain.errors import InputError
from dtrain.types import Array

__all__ = ["fashion_mnist", "mnist"]

Pair = tuple[Any, Any]
IDX = (("train-labels-idx1", 8), ("train-images-idx3", 16), ("t10k-labels-idx1", 8), ("t10k-images-idx3", 16))


def _local(path: str) -> Path:
    """Return the file of a path, which may be absolute, or raise an `InputError` that names it."""
    found = Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser() / "datasets" / path
    if not found.exists():
        raise InputError(
            f"datasets: nothing is downloaded; expected the file {found}, copy it from where it is"
        )
    return found


def _arrays(path: str, *names: str) -> list[Array]:
    try:
        with np.load(_local(path), allow_pickle=False) as archive:
            return [archive[name] for name in names]
    except (ValueError, KeyError, OSError) as error:
        raise InputError(
            f"datasets: {_local(path)} has no plain arrays {', '.join(names)}: {error}"
        ) from None


class mnist:  # noqa: N801 - Keras's name of a module
    """Handwritten digits: 60,000 and 10,000 images [28, 28] of uint8, and their classes."""

    @staticmethod
    def load_data(path: str = "mnist.npz") -> tuple[Pair, Pair]:
        """Return ``(x_train, y_train), (x_test, y_test)`` from a file of numpy's."""
        x, y, x_test, y_test = _arrays(path, "x_train", "y_train", "x_test", "y_test")
        return (x, y), (x_test, y_test)


class fashion_mnist:  # noqa: N801
    """Clothes in the form of `mnist`, from the four gzip files in the folder ``fashion-mnist``."""

    @staticmethod
    def load_data() -> tuple[Pair, Pair]:
        """Return ``(x_train, y_train), (x_test, y_test)``."""
        found = []
        for name, header in IDX:
            data = gzip.decompress(_local(f"fashion-mnist/{name}-ubyte.gz").read_bytes())
            found.append(np.frombuffer(data, np.uint8, offset=header))
        y, x, y_test, x_test = found
        return (x.reshape(len(y), 28, 28), y), (x_test.reshape(len(y_test), 28, 28), y_test)
