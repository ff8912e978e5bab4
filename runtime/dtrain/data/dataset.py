"""`Dataset`: a lazy description of a stream of elements, in the words of tf.data."""

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
"""Where `enumerate` would end."""


class Dataset:
    """A stream of elements: arrays, or tuples and dicts of such.

    Nothing is computed before it is iterated, which can be done any number of times; a shuffled dataset has
    another order in each iteration, and the same ones in every process.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self._iterations = 0

    # Sources

    @staticmethod
    def from_tensor_slices(tensors: Any) -> "Dataset":
        """The rows of an array, or of a tuple or dict of arrays of one length."""
        return Dataset(Slices(tensors))

    @staticmethod
    def from_tensors(tensors: Any) -> "Dataset":
        """One element: the array, tuple or dict itself."""
        return Dataset(Single(tensors))

    @staticmethod
    def range(*args: int) -> "Dataset":
        """int64 numbers; arguments as Python's range."""
        return Dataset(Range(range(*args)))

    @staticmethod
    def from_generator(generator: Callable[[], Iterable[Any]], output_signature: Any = None) -> "Dataset":
        """What the iterable that `generator` returns yields, called anew in each iteration.

        Args:
            generator: a function without arguments.
            output_signature: structure of `TensorSpec`s, whose dtypes the elements get.
        """
        return Dataset(Generated(generator, output_signature))

    @staticmethod
    def zip(datasets: Any) -> "Dataset":
        """Elements of several datasets side by side, as long as all have one; a tuple or dict of datasets,
        nested.
        """
        return Dataset(
            Zipped(
                map_arrays(lambda dataset: dataset.node, datasets),
                [each.node for each in arrays_of(datasets)],
            )
        )

    # Order

    def take(self, count: int) -> "Dataset":
        """The first `count` elements; -1: all."""
        return Dataset(Picked(self.node, limit=None if count == -1 else count))

    def skip(self, count: int) -> "Dataset":
        """All but the first `count` elements; -1: none."""
        return Dataset(Picked(self.node, limit=0) if count == -1 else Picked(self.node, start=count))

    def shard(self, num_shards: int, index: int) -> "Dataset":
        """Every `num_shards`-th element, beginning with element `index`."""
        if not 0 <= index < num_shards:
            raise InputError(f"shard: expected 0 <= index < num_shards, found index {index} of {num_shards}.")
        return Dataset(Picked(self.node, start=index, stride=num_shards))

    def repeat(self, count: int | None = None) -> "Dataset":
        """The dataset `count` times over; None or -1: without end."""
        return Dataset(Repeated(self.node, None if count is None or count < 0 else count))

    def shuffle(
        self, buffer_size: int, seed: int | None = None, reshuffle_each_iteration: bool = True
    ) -> "Dataset":
        """Elements in an order drawn from `seed` (None: 0) and the iteration, each from the `buffer_size`
        next in line.
        """
        return Dataset(Shuffled(self.node, buffer_size, (seed or 0) % 2**32, reshuffle_each_iteration))

    def concatenate(self, dataset: "Dataset") -> "Dataset":
        """These elements, then those of another dataset."""
        return Dataset(Concatenated(self.node, dataset.node))

    def enumerate(self, start: int = 0) -> "Dataset":
        """Pairs of a number, counted from `start`, and an element."""
        return Dataset.zip((Dataset.range(start, start + LARGEST_COUNT), self))

    # Content

    def map(
        self, map_func: Callable[..., Any], num_parallel_calls: int | None = None, deterministic: bool = True
    ) -> "Dataset":
        """`map_func` of each element; a tuple's parts are its arguments. The further arguments are accepted
        and change nothing.
        """
        return Dataset(Mapped(self.node, map_func))

    def filter(self, predicate: Callable[..., Any]) -> "Dataset":
        """The elements for which `predicate` is true."""
        return Dataset(Filtered(self.node, predicate))

    def batch(self, batch_size: int, drop_remainder: bool = False) -> "Dataset":
        """Groups of `batch_size` elements, stacked along a new first axis; a smaller last one is kept or
        dropped.
        """
        return Dataset(Batched(self.node, batch_size, drop_remainder))

    def unbatch(self) -> "Dataset":
        """The rows of each element."""
        return Dataset(Unbatched(self.node))

    def rebatch(self, batch_size: int | Sequence[int], drop_remainder: bool = False) -> "Dataset":
        """The rows of these batches in batches of another size, or of several sizes in turn, across the old
        boundaries.
        """
        sizes = [batch_size] if isinstance(batch_size, int) else batch_size
        return Dataset(Rebatched(self.node, sizes, drop_remainder))

    def flat_map(self, map_func: "Callable[..., Dataset]") -> "Dataset":
        """The elements of the datasets that `map_func` makes of each element, one dataset after another."""
        return self.interleave(map_func, cycle_length=1)

    def interleave(
        self, map_func: "Callable[..., Dataset]", cycle_length: int, block_length: int = 1
    ) -> "Dataset":
        """As `flat_map`, but `block_length` elements at a time of each of `cycle_length` datasets in turn."""
        return Dataset(
            Interleaved(self.node, lambda *parts: map_func(*parts).node, cycle_length, block_length)
        )

    def apply(self, transformation: "Callable[[Dataset], Dataset]") -> "Dataset":
        """`transformation` of this dataset."""
        return transformation(self)

    def cache(self) -> "Dataset":
        """The dataset as its first iteration was, kept in memory from then on."""
        return Dataset(Cached(self.node))

    def prefetch(self, buffer_size: int) -> "Dataset":
        """The dataset itself: elements are computed when they are asked for."""
        return self

    # Reading

    def cardinality(self) -> int:
        """Number of elements, INFINITE (-1) or UNKNOWN (-2)."""
        return self.node.cardinality

    @property
    def element_spec(self) -> Any:
        """The structure of an element, with a `TensorSpec` in each array's place."""
        return self.node.spec

    def __iter__(self) -> DatasetIterator:
        self._iterations += 1
        return DatasetIterator(self.node, (self._iterations - 1,))

    def __len__(self) -> int:
        if self.cardinality() < 0:
            raise TypeError("the dataset's length is infinite or unknown; see cardinality().")
        return self.cardinality()

    def as_numpy_iterator(self) -> DatasetIterator:
        """The same as iter(): elements are numpy arrays already."""
        return iter(self)

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """`reduce_func(state, element)` over all elements."""
        state = initial_state
        for element in self:
            state = reduce_func(state, element)
        return state
