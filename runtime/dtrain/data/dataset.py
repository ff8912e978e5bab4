"""`Dataset`: a lazy description of a stream of elements, in the words of tf.data."""

from collections.abc import Callable, Iterable
from typing import Any

from dtrain.data.grouping import Batched, Filtered, Mapped, Unbatched
from dtrain.data.iterator import DatasetIterator
from dtrain.data.node import Node
from dtrain.data.ordering import Picked, Repeated, Shuffled
from dtrain.data.sources import Generated, Range, Single, Slices
from dtrain.errors import InputError


class Dataset:
    """A stream of elements: arrays, or tuples and dicts of such.

    Nothing is computed before it is iterated, which can be done any number of times; a shuffled dataset has another order in each
    iteration, and the same ones in every process.
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
            output_signature: structure of `TensorSpec`s, only for `element_spec`.
        """
        return Dataset(Generated(generator, output_signature))

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

    def shuffle(self, buffer_size: int, seed: int | None = None, reshuffle_each_iteration: bool = True) -> "Dataset":
        """Elements in an order drawn from `seed` (None: 0) and the iteration, each from the `buffer_size` next in line."""
        return Dataset(Shuffled(self.node, buffer_size, seed or 0, reshuffle_each_iteration))

    # Content

    def map(self, map_func: Callable[..., Any], num_parallel_calls: int | None = None, deterministic: bool = True) -> "Dataset":
        """`map_func` of each element; a tuple's parts are its arguments. The further arguments are accepted and change nothing."""
        return Dataset(Mapped(self.node, map_func))

    def filter(self, predicate: Callable[..., Any]) -> "Dataset":
        """The elements for which `predicate` is true."""
        return Dataset(Filtered(self.node, predicate))

    def batch(self, batch_size: int, drop_remainder: bool = False) -> "Dataset":
        """Groups of `batch_size` elements, stacked along a new first axis; a smaller last one is kept or dropped."""
        return Dataset(Batched(self.node, batch_size, drop_remainder))

    def unbatch(self) -> "Dataset":
        """The rows of each element."""
        return Dataset(Unbatched(self.node))

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
