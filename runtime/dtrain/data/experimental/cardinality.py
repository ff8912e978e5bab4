"""`assert_cardinality`: the length of a dataset as its user knows it."""

from collections.abc import Callable

from dtrain.data.dataset import Dataset
from dtrain.data.node import INFINITE
from dtrain.data.ordering import OfLength
from dtrain.errors import InvalidArgumentError


def assert_cardinality(expected_cardinality: int) -> Callable[[Dataset], Dataset]:
    """Return a transformation for `Dataset.apply`, after which a dataset has so many elements, or INFINITE.

    Reading raises an `InvalidArgumentError` where it has another number. See
    `tf.data.experimental.assert_cardinality`.

    Args:
        expected_cardinality: how many elements there are, or INFINITE.

    Raises:
        InvalidArgumentError: it is no number of elements.
    """
    if not isinstance(expected_cardinality, int) or expected_cardinality < INFINITE:
        raise InvalidArgumentError(
            "assert_cardinality: expected a number of elements, or INFINITE (-1), found "
            f"{expected_cardinality!r}"
        )

    def asserted(dataset: Dataset) -> Dataset:
        if dataset.cardinality() == expected_cardinality:
            return dataset
        return Dataset(OfLength(dataset.node, expected_cardinality, asserted=True))

    return asserted
