"""The ways to begin a dataset: from arrays, generators, files of `save`, other datasets, or numbers."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from dtrain.data.caching import Saved
from dtrain.data.joining import Chosen, Sampled, Zipped
from dtrain.data.node import Node
from dtrain.data.ordering import Shuffled
from dtrain.data.sources import (
    Counted,
    Generated,
    ItemSource,
    RandomNumbers,
    Range,
    Single,
    Slices,
    matching_paths,
    signature_of,
)
from dtrain.data.structure import arrays_of, map_arrays
from dtrain.errors import InputError


class FromSources:
    """Base of `Dataset`: a node, and what makes one without another dataset's.

    Attributes:
        node: the last step.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self._iterations = 0

    @classmethod
    def of(cls, node: Node) -> Self:
        """Return a plain `Dataset` of a node, also where this class begins with something else."""
        raise NotImplementedError

    # Sources

    @classmethod
    def from_tensor_slices(cls, tensors: Any) -> Self:
        """Return the rows of an array, or of a tuple or dict of arrays of one length."""
        return cls.of(Slices(tensors))

    @classmethod
    def from_tensors(cls, tensors: Any) -> Self:
        """Return one element: the array, tuple or dict itself."""
        return cls.of(Single(tensors))

    @classmethod
    def range(cls, *args: int) -> Self:
        """Return int64 numbers; arguments as of Python's range."""
        return cls.of(Range(range(*args)))

    @classmethod
    def from_generator(
        cls,
        generator: Callable[..., Iterable[Any]],
        output_types: Any = None,
        output_shapes: Any = None,
        args: Sequence[Any] | None = None,
        output_signature: Any = None,
    ) -> Self:
        """Return the elements of the iterable that `generator` returns; each iteration calls it anew.

        Args:
            generator: a function of `args`.
            output_types: structure of dtypes, which the elements get; tf.data's older way. A structure of
                `TensorSpec`s is taken as a signature.
            output_shapes: structure of shapes beside it, each a list or tuple; None for any shape.
            args: arguments of `generator`, which gets them as arrays.
            output_signature: structure of `TensorSpec`s, whose dtypes and shapes the elements have.
        """
        signature = signature_of(output_types, output_shapes, output_signature)
        return cls.of(Generated(generator, signature, args or ()))

    @classmethod
    def random_access(cls, source: Any) -> Self:
        """Return the items of an object with `__len__` and `__getitem__`, as they are or as arrays.

        torch's map-style datasets and Grain's sources are such objects; `__getitems__` is used where there is
        one. A list of several parts is taken as a tuple.
        """
        return cls.of(ItemSource(source))

    @classmethod
    def list_files(
        cls, file_pattern: str | Sequence[str], shuffle: bool | None = True, seed: int | None = None
    ) -> Self:
        """Return the paths that match patterns, shuffled (None: too) or in order.

        Raises:
            InvalidArgumentError: no path matches.
        """
        paths = matching_paths([file_pattern] if isinstance(file_pattern, str) else list(file_pattern))
        dataset = cls.from_tensor_slices(paths)
        return (
            dataset
            if shuffle is False
            else cls(Shuffled(dataset.node, len(paths), (seed or 0) % 2**32, True))
        )

    @classmethod
    def sample_from_datasets(
        cls,
        datasets: "Sequence[FromSources]",
        weights: Sequence[float] | None = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool | None = None,
    ) -> Self:
        """Draw each element from one of several datasets, at random by `weights` (None: equal).

        Args:
            datasets: of elements of one form.
            weights: of each dataset.
            seed: of the draws, which follow from it (None: 0) and the iteration.
            stop_on_empty_dataset: whether to end with the first dataset that ends; else others go on.
            rerandomize_each_iteration: whether each iteration draws anew; None: it does not, as in tf.data.
        """
        nodes = [each.node for each in datasets]
        anew = bool(rerandomize_each_iteration)
        return cls.of(Sampled(nodes, weights, (seed or 0) % 2**32, stop_on_empty_dataset, anew))

    @classmethod
    def choose_from_datasets(
        cls,
        datasets: "Sequence[FromSources]",
        choice_dataset: "FromSources",
        stop_on_empty_dataset: bool = True,
    ) -> Self:
        """Take each element from the dataset whose number the next element of `choice_dataset` is."""
        return cls.of(Chosen([each.node for each in datasets], choice_dataset.node, stop_on_empty_dataset))

    @classmethod
    def zip(cls, *args: Any, datasets: Any = None) -> Self:
        """Return elements of datasets side by side, until one ends.

        Args:
            args: the datasets, or one tuple or dict of them, nested.
            datasets: this tuple or dict, by name.

        Raises:
            InputError: both or neither are given, or something in them is no dataset.
        """
        if bool(args) == (datasets is not None):
            raise InputError("zip: expected datasets, or one nest of them")
        if args:
            datasets = args[0] if len(args) == 1 else args
        for each in arrays_of(datasets):
            if not isinstance(each, FromSources):
                raise InputError(f"zip: expected datasets, found {type(each).__name__}")
        return cls.of(
            Zipped(
                map_arrays(lambda dataset: dataset.node, datasets),
                [each.node for each in arrays_of(datasets)],
            )
        )

    @classmethod
    def random(cls, seed: int | None = None, rerandomize_each_iteration: bool | None = None) -> Self:
        """Return int64 numbers from 0 on, below 2^32, without end.

        Number k follows from `seed` (None: 0), from k, and, with `rerandomize_each_iteration`, from the
        iteration. They are not those that TensorFlow's generators draw.
        """
        return cls.of(RandomNumbers((seed or 0) % 2**32, bool(rerandomize_each_iteration)))

    @classmethod
    def counter(cls, start: Any = 0, step: Any = 1, dtype: Any = "int64") -> Self:
        """Return start, start + step, start + 2 * step and so on, without end."""
        return cls.of(Counted(start, step, dtype))

    @classmethod
    def load(cls, path: str | Path, element_spec: Any = None, compression: str | None = None) -> Self:
        """Return the elements that `save` has written.

        Args:
            path: of the file.
            element_spec, compression: accepted as in tf.data; the file tells both.

        Raises:
            InputError: it is no such file.
        """
        return cls.of(Saved(Path(path)))
