"""The parts of the class `Dataset`: the ways to begin one, and steps that put elements together.

The methods are those of tf.data.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from dtrain.data.caching import SavedElements
from dtrain.data.grouping import Batched, Unbatched
from dtrain.data.joining import Chosen, Sampled, Zipped
from dtrain.data.node import Node
from dtrain.data.ordering import Shuffled
from dtrain.data.prefetching.prefetched import check_parallel_calls
from dtrain.data.sharding import Rebatched
from dtrain.data.sources import (
    EndlessRange,
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
from dtrain.data.windows import Buckets, Distinct, Grouped, PaddedBatched, Windowed
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
        anew = bool(rerandomize_each_iteration)
        return cls.of(Sampled(_nodes_of(datasets), weights, (seed or 0) % 2**32, stop_on_empty_dataset, anew))

    @classmethod
    def choose_from_datasets(
        cls,
        datasets: "Sequence[FromSources]",
        choice_dataset: "FromSources",
        stop_on_empty_dataset: bool = True,
    ) -> Self:
        """Take each element from the dataset whose number the next element of `choice_dataset` is."""
        return cls.of(Chosen([choice_dataset.node, *_nodes_of(datasets)], stop_on_empty_dataset))

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
        return cls.of(Zipped(map_arrays(lambda dataset: dataset.node, datasets)))

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
        return cls.of(EndlessRange(start, step, dtype))

    @classmethod
    def load(cls, path: str | Path, element_spec: Any = None, compression: str | None = None) -> Self:
        """Return the elements that `save` has written.

        Args:
            path: of the file.
            element_spec, compression: accepted as in tf.data; the file tells both.

        Raises:
            InputError: it is no such file.
        """
        return cls.of(SavedElements(Path(path)))


def _nodes_of(datasets: Sequence[FromSources]) -> list[Node]:
    if not datasets:
        raise InputError("sample_from_datasets, choose_from_datasets: expected at least one dataset")
    return [each.node for each in datasets]


class Groups(FromSources):
    """Base of `Dataset`: batches, windows, groups and buckets."""

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Self:
        """Stack `batch_size` elements along a new first axis; a smaller last group is kept or dropped.

        `num_parallel_calls` and `deterministic` are accepted as in tf.data and change nothing: `prefetch`
        reads batches ahead, and elements always keep their order.
        """
        check_parallel_calls(num_parallel_calls, "batch")
        return self.of(Batched(self.node, batch_size, drop_remainder))

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
    ) -> Self:
        """Stack `batch_size` elements whose arrays have different lengths, filled up to one shape.

        Args:
            batch_size: how many elements.
            padded_shapes: structure of shapes; None or -1 for an axis: the longest of each batch. None: that
                for all axes.
            padding_values: structure of values, or one for all; default: 0, and nothing for text.
            drop_remainder: whether a smaller last group is dropped.
        """
        return self.of(PaddedBatched(self.node, batch_size, drop_remainder, padded_shapes, padding_values))

    def window(
        self, size: int, shift: int | None = None, stride: int = 1, drop_remainder: bool = False
    ) -> Self:
        """Return datasets of `size` elements; join them by `flat_map(lambda window: window.batch(size))`.

        Args:
            size: how many elements a window has.
            shift: by how many elements the next window begins later; default: `size`.
            stride: how many elements lie between two of a window.
            drop_remainder: whether windows at the end that have fewer elements are dropped.
        """
        return self.of(Windowed(self.node, size, shift or size, stride, drop_remainder, self.of))

    def unbatch(self) -> Self:
        """Return the rows of each element."""
        return self.of(Unbatched(self.node))

    def rebatch(self, batch_size: int | Sequence[int], drop_remainder: bool = False) -> Self:
        """Cut the rows of these batches into batches of another size, or of several sizes in turn."""
        sizes = [batch_size] if isinstance(batch_size, int) else batch_size
        return self.of(Rebatched(self.node, sizes, drop_remainder))

    def group_by_window(
        self,
        key_func: Callable[..., Any],
        reduce_func: "Callable[[Any, Self], FromSources]",
        window_size: int | None = None,
        window_size_func: Callable[[Any], Any] | None = None,
    ) -> Self:
        """Return the elements of what `reduce_func(key, window)` makes of elements with one key in a row.

        Args:
            key_func: a function of an element, which returns an integer.
            reduce_func: returns a dataset, of a key and a dataset of at most so many elements.
            window_size: how many elements a full window has. Those that are not full come at the end, by
                their keys.
            window_size_func: the same, as a function of the key; exactly one of both is given.
        """
        if (window_size is None) == (window_size_func is None):
            raise InputError("group_by_window: expected either window_size or window_size_func")
        wrap = self.of

        def reduced(key: Any, window: Node) -> Node:
            return reduce_func(key, wrap(window)).node

        def constant(key: Any) -> Any:
            return window_size

        return wrap(Grouped(self.node, key_func, reduced, window_size_func or constant))

    def bucket_by_sequence_length(
        self,
        element_length_func: Callable[..., Any],
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        padded_shapes: Any = None,
        padding_values: Any = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
    ) -> Self:
        """Return padded batches of elements of similar length.

        Args:
            element_length_func: a function of an element, which returns its length.
            bucket_boundaries: rising lengths; a bucket begins at one, and ends below the next.
            bucket_batch_sizes: how many elements a batch of each bucket has; one more than boundaries.
            padded_shapes, padding_values: as of `padded_batch`.
            pad_to_bucket_boundary: whether axes of unknown length are filled up to the longest length of the
                bucket, instead of that of the batch. Elements from the last boundary on are refused.
            no_padding: whether arrays are of one shape already.
            drop_remainder: whether smaller batches at the end are dropped.
        """
        rule = Buckets(
            length_of=element_length_func,
            boundaries=tuple(bucket_boundaries),
            sizes=tuple(bucket_batch_sizes),
            like=self.node.spec if pad_to_bucket_boundary else None,
            padded_shapes=padded_shapes,
            padding_values=padding_values,
            to_boundary=pad_to_bucket_boundary,
            pads=not no_padding,
            drop_remainder=drop_remainder,
        )
        step = "bucket_by_sequence_length"
        return self.of(Grouped(self.node, rule.key, rule.batched, rule.size, step=step))

    def unique(self) -> Self:
        """Return the first of equal elements; all that have come are held in memory."""
        return self.of(Distinct(self.node))
