"""`dt.utils.experimental`: functions that make datasets, as Keras gives them to `fit`."""

from collections.abc import Callable
from typing import Any

from dtrain.data.dataset import Dataset
from dtrain.data.input_context import InputContext
from dtrain.errors import InputError

__all__ = ["DatasetCreator"]


class DatasetCreator:
    """A function of an `InputContext` that returns a dataset; `fit` takes it as it takes the function.

    Source: `tf.keras.utils.experimental.DatasetCreator`.

    Attributes:
        dataset_fn: the function.
        input_options: kept, and without effect: `dt.distribute.InputOptions`.
    """

    def __init__(self, dataset_fn: Callable[[InputContext], Dataset], input_options: Any = None) -> None:
        if not callable(dataset_fn):
            raise InputError(
                "DatasetCreator: expected a function of an InputContext that returns a dtrain.data.Dataset, "
                f"found {type(dataset_fn).__name__}"
            )
        self.dataset_fn = dataset_fn
        self.input_options = input_options

    def __call__(self, context: InputContext) -> Dataset:
        """Return the function's dataset.

        Raises:
            InputError: the function returns something else.
        """
        made = self.dataset_fn(context)
        if not isinstance(made, Dataset):
            raise InputError(
                "DatasetCreator: expected a function that returns a dtrain.data.Dataset, found that it "
                f"returned {type(made).__name__}"
            )
        return made
