"""Arrays, lists of them, functions and Datasets become a Dataset of batches."""

import numpy as np
import pytest

from dtrain.data import Dataset, InputContext
from dtrain.data.user_data import as_dataset
from dtrain.errors import InputError


def test_arrays_become_batches():
    x, y = np.arange(10), np.arange(10) * 2
    batches = list(as_dataset((x, y), batch_size=4))
    assert [len(a) for a, _ in batches] == [4, 4, 2]
    shuffled = as_dataset((x, y), batch_size=10, shuffle=True, seed=5)
    (a, b), (c, _) = next(iter(shuffled)), next(iter(shuffled))
    assert not np.array_equal(a, x)
    assert not np.array_equal(a, c)
    np.testing.assert_array_equal(b, a * 2)


def test_lists_of_arrays_are_several_inputs():
    a, b, y = np.zeros((4, 2)), np.ones(4), np.arange(4)
    (one, two), labels = next(iter(as_dataset(([a, b], y), batch_size=3)))
    assert (one.shape, two.shape, labels.tolist()) == ((3, 2), (3,), [0, 1, 2])
    assert [part.shape for part in next(iter(as_dataset([a, b], batch_size=3)))[0]] == [(3, 2), (3,)]
    assert next(iter(as_dataset(([1, 2, 3], [4, 5, 6]), batch_size=2)))[0].tolist() == [1, 2]


def test_functions_and_datasets_are_taken_as_they_are():
    dataset = Dataset.range(3)
    assert as_dataset(dataset) is dataset
    context = InputContext(2, 1, 2)
    made = as_dataset(lambda c: Dataset.range(c.num_input_pipelines), context=context)
    assert len(made) == 2
    with pytest.raises(InputError, match=r"returns a dtrain\.data\.Dataset"):
        as_dataset(lambda c: [1, 2])
