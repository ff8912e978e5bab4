"""`Dataset`: a lazy description of a stream of elements, with tf.data's API."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dtrain.data.caching import Cached
from dtrain.data.grouping import Batched, Filtered, Mapped, Rebatched, Unbatched
from dtrain.data.iterator import DatasetIterator
from dtrain.data.joining import Concatenated, Interleaved, Zipped
from dtrain.data.node import Node
from dtrain.data.ordering import Picked, Repeated, Shuffled
from dtrain.data.sources import Generated, Range, Single, Slices
from dtrain.data.structure import arrays_of, map_arrays
from dtrain.errors import InputError

LARGEST_COUNT = 2**62
"""The number before which `enumerate` must end."""


class Dataset:
    """A stream of elements: arrays, or tuples and dicts of such.

    Nothing is computed before it is iterated, which can be done any number of times. A shuffled dataset has
    another order in each iteration, and the same ones in every process.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self._iterations = 0

    # Sources

    @staticmethod
    def from_tensor_slices(tensors: Any) -> "Dataset":
        """Return the rows of an array, or of a tuple or dict of arrays of one length."""
        return Dataset(Slices(tensors))

    @staticmethod
    def from_tensors(tensors: Any) -> "Dataset":
        """Return one element: the array, tuple or dict itself."""
        return Dataset(Single(tensors))

    @staticmethod
    def range(*args: int) -> "Dataset":
        """Return int64 numbers; arguments as of Python's range."""
        return Dataset(Range(range(*args)))

    @staticmethod
    def from_generator(generator: Callable[[], Iterable[Any]], output_signature: Any = None) -> "Dataset":
        """Return the elements of the iterable that `generator` returns; each iteration calls it anew.

        Args:
            generator: a function without arguments.
            output_signature: structure of `TensorSpec`s, whose dtypes the elements get.
        """
        return Dataset(Generated(generator, output_signature))

    @staticmethod
    def zip(datasets: Any) -> "Dataset":
        """Return elements of datasets side by side, until one ends; a tuple or dict of datasets, nested."""
        return Dataset(
            Zipped(
                map_arrays(lambda dataset: dataset.node, datasets),
                [each.node for each in arrays_of(datasets)],
            )
        )

    # Order

    def take(self, count: int) -> "Dataset":
        """Return the first `count` elements; -1: all."""
        return Dataset(Picked(self.node, limit=None if count == -1 else count))

    def skip(self, count: int) -> "Dataset":
        """Return all but the first `count` elements; -1: none."""
        return Dataset(Picked(self.node, limit=0) if count == -1 else Picked(self.node, start=count))

    def shard(self, num_shards: int, index: int) -> "Dataset":
        """Return every `num_shards`-th element, beginning with element `index`."""
        if not 0 <= index < num_shards:
            raise InputError(f"shard: expected 0 <= index < num_shards, found index {index} of {num_shards}.")
        return Dataset(Picked(self.node, start=index, stride=num_shards))

    def repeat(self, count: int | None = None) -> "Dataset":
        """Repeat the dataset `count` times; None or -1: without end."""
        return Dataset(Repeated(self.node, None if count is None or count < 0 else count))

    def shuffle(
        self, buffer_size: int, seed: int | None = None, reshuffle_each_iteration: bool = True
    ) -> "Dataset":
        """Draw each element from the next `buffer_size`, by `seed` (None: 0) and the iteration."""
        return Dataset(Shuffled(self.node, buffer_size, (seed or 0) % 2**32, reshuffle_each_iteration))

    def concatenate(self, dataset: "Dataset") -> "Dataset":
        """Return these elements, then those of another dataset."""
        return Dataset(Concatenated(self.node, dataset.node))

    def enumerate(self, start: int = 0) -> "Dataset":
        """Return pairs of a number, counted from `start`, and an element."""
        return Dataset.zip((Dataset.range(start, start + LARGEST_COUNT), self))

    # Content

    def map(
        self, map_func: Callable[..., Any], num_parallel_calls: int | None = None, deterministic: bool = True
    ) -> "Dataset":
        """Apply `map_func` to each element; a tuple's parts are its arguments.

        `num_parallel_calls` and `deterministic` are accepted as in tf.data and have no effect.
        """
        return Dataset(Mapped(self.node, map_func))

    def filter(self, predicate: Callable[..., Any]) -> "Dataset":
        """Return the elements for which `predicate` is true."""
        return Dataset(Filtered(self.node, predicate))

    def batch(self, batch_size: int, drop_remainder: bool = False) -> "Dataset":
        """Stack `batch_size` elements along a new first axis; a smaller last group is kept or dropped."""
        return Dataset(Batched(self.node, batch_size, drop_remainder))

    def unbatch(self) -> "Dataset":
        """Return the rows of each element."""
        return Dataset(Unbatched(self.node))

    def rebatch(self, batch_size: int | Sequence[int], drop_remainder: bool = False) -> "Dataset":
        """Cut the rows of these batches into batches of another size, or of several sizes in turn."""
        sizes = [batch_size] if isinstance(batch_size, int) else batch_size
        return Dataset(Rebatched(self.node, sizes, drop_remainder))

    def flat_map(self, map_func: "Callable[..., Dataset]") -> "Dataset":
        """Return the elements of the datasets that `map_func` makes of each element, one after another."""
        return self.interleave(map_func, cycle_length=1)

    def interleave(
        self, map_func: "Callable[..., Dataset]", cycle_length: int, block_length: int = 1
    ) -> "Dataset":
        """Take `block_length` elements at a time, in turn, of `cycle_length` datasets of `flat_map`."""
        return Dataset(
            Interleaved(self.node, lambda *parts: map_func(*parts).node, cycle_length, block_length)
        )

    def apply(self, transformation: "Callable[[Dataset], Dataset]") -> "Dataset":
        """Return `transformation` of this dataset."""
        return transformation(self)

    def cache(self) -> "Dataset":
        """Keep the first iteration's elements in memory, and repeat them from then on."""
        return Dataset(Cached(self.node))

    def prefetch(self, buffer_size: int) -> "Dataset":
        """Return the dataset itself: elements are computed when they are asked for."""
        return self

    # Reading

    def cardinality(self) -> int:
        """Return the number of elements, INFINITE (-1) or UNKNOWN (-2)."""
        return self.node.cardinality

    @property
    def element_spec(self) -> Any:
        """An element's structure, with a `TensorSpec` in each array's place."""
        return self.node.spec

    def __iter__(self) -> DatasetIterator:
        self._iterations += 1
        return DatasetIterator(self.node, (self._iterations - 1,))

    def __len__(self) -> int:
        if self.cardinality() < 0:
            raise TypeError("the dataset's length is infinite or unknown; see cardinality().")
        return self.cardinality()

    def as_numpy_iterator(self) -> DatasetIterator:
        """Return iter() of the dataset: elements are numpy arrays already."""
        return iter(self)

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Fold `reduce_func(state, element)` over all elements."""
        state = initial_state
        for element in self:
            state = reduce_func(state, element)
        return state
