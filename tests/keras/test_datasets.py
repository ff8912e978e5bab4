"""Data sets are read from local copies, or the sentence names the file that is wanted."""

import gzip

import numpy as np
import pytest

import dtrain as dt
from dtrain.errors import InputError


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    (tmp_path / "datasets" / "fashion-mnist").mkdir(parents=True)
    return tmp_path / "datasets"


def test_digits_are_read_from_a_file_of_numpy(home):
    images, classes = np.arange(2 * 784, dtype=np.uint8).reshape(2, 28, 28), np.array([3, 1], np.uint8)
    np.savez(home / "mnist.npz", x_train=images, y_train=classes, x_test=images[:1], y_test=classes[:1])
    (x, y), (x_test, y_test) = dt.keras.datasets.mnist.load_data()
    assert (x.shape, y.tolist(), x_test.shape, y_test.tolist()) == ((2, 28, 28), [3, 1], (1, 28, 28), [3])


def test_clothes_are_read_from_four_files(home):
    for name, count in (("train", 3), ("t10k", 2)):
        labels = bytes(8) + bytes(range(count))
        images = bytes(16) + bytes(784 * count)
        (home / "fashion-mnist" / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
        (home / "fashion-mnist" / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
    (x, y), (x_test, y_test) = dt.datasets.fashion_mnist.load_data()
    assert (x.shape, y.tolist(), x_test.shape, y_test.tolist()) == (
        (3, 28, 28),
        [0, 1, 2],
        (2, 28, 28),
        [0, 1],
    )


def test_what_cannot_be_read_is_said(home):
    with pytest.raises(InputError, match=r"nothing is downloaded; expected the file .*mnist\.npz"):
        dt.datasets.mnist.load_data()
    np.savez(home / "mnist.npz", x_train=np.array([{}], object))
    with pytest.raises(InputError, match="has no plain arrays x_train"):
        dt.datasets.mnist.load_data()
    with pytest.raises(AttributeError, match="pickled"):
        _ = dt.datasets.cifar10
