"""Labels and sequences as arrays; the cases are those of Keras's documentation."""

import numpy as np
import pytest
from row_by_row import every_row

import dtrain as dt
from dtrain.errors import InputError


def test_to_categorical():
    found = dt.utils.to_categorical([0, 1, 2, 3], num_classes=4)
    assert found.dtype == np.float32
    assert found.tolist() == np.eye(4).tolist()
    assert dt.utils.to_categorical([[2], [0]]).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert dt.utils.to_categorical([[2, 0]]).shape == (1, 2, 3)
    with pytest.raises(InputError, match=r"expected class numbers in \[0, 2\), found 0 to 2"):
        dt.utils.to_categorical([0, 2], 2)


@every_row(
    "arguments, expected",
    [
        ({}, [[0, 0, 1], [0, 2, 3], [4, 5, 6]]),
        ({"value": -1}, [[-1, -1, 1], [-1, 2, 3], [4, 5, 6]]),
        ({"padding": "post"}, [[1, 0, 0], [2, 3, 0], [4, 5, 6]]),
        ({"maxlen": 2}, [[0, 1], [2, 3], [5, 6]]),
        ({"maxlen": 2, "truncating": "post", "padding": "post"}, [[1, 0], [2, 3], [4, 5]]),
        ({"maxlen": 0}, [[], [], []]),
    ],
)
def test_pad_sequences(arguments, expected):
    found = dt.utils.pad_sequences([[1], [2, 3], [4, 5, 6]], **arguments)
    assert found.dtype == np.int32
    assert found.tolist() == expected


def test_sequences_of_vectors_and_of_nothing():
    assert dt.utils.pad_sequences([[], [[1, 2]]], dtype="float32").tolist() == [[[0, 0]], [[1, 2]]]
    assert dt.utils.pad_sequences([]).shape == (0, 0)
    with pytest.raises(InputError, match="expected padding and truncating of pre or post"):
        dt.utils.pad_sequences([[1]], padding="left")
