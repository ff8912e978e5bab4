"""`Dataset`: a lazy description of a stream of elements, with tf.data's API."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, Self, cast

from dtrain.data.caching import Cached, CachePlace, Stored, compression_of
from dtrain.data.chance import Watched
from dtrain.data.grouping import Filtered, Mapped
from dtrain.data.interface import Groups
from dtrain.data.iterator import DatasetIterator
from dtrain.data.joining import Concatenated, Interleaved
from dtrain.data.node import INFINITE, UNKNOWN, Node
from dtrain.data.options import SHARD_HINT, Optioned, Options, options_of
from dtrain.data.ordering import Picked, Repeated, Shuffled
from dtrain.data.prefetching.prefetched import Prefetched, check_parallel_calls, with_autotune
from dtrain.data.prefetching.tuning import AUTOTUNE
from dtrain.data.record_index.addressing import addressed, obstacles
from dtrain.data.sharding import ShardHint
from dtrain.data.windows import Scanned, TakenWhile
from dtrain.errors import InputError, InvalidArgumentError

LARGEST_COUNT = 2**62
"""The number before which `enumerate` must end."""
CYCLE_LENGTH = 4
"""How many datasets `interleave` takes elements of in turn where it is not told: the same in every task."""


class Dataset(Groups):
    """A stream of elements: arrays, or tuples and dicts of such.

    Nothing is computed before it is iterated, which can be done any number of times. A shuffled dataset has
    another order in each iteration, and the same ones in every process.

    Args:
        node: the last step.
    """

    computed = frozenset({"_iterations"})

    @classmethod
    def of(cls, node: Node) -> Self:
        """Return a plain dataset of a node: a step after a `TFRecordDataset` is none."""
        return cast(Self, Dataset(node))

    # Order

    def take(self, count: int) -> "Dataset":
        """Return the first `count` elements; -1: all."""
        return Dataset(Picked(self.node, limit=None if count == -1 else count))

    def skip(self, count: int) -> "Dataset":
        """Return all but the first `count` elements; -1: none."""
        return Dataset(Picked(self.node, limit=0) if count == -1 else Picked(self.node, start=count))

    def shard(self, num_shards: int, index: int) -> "Dataset":
        """Return every `num_shards`-th element, beginning with element `index`.

        With SHARD_HINT for both, all elements: `AutoShardPolicy.HINT` deals them to workers here.
        """
        if num_shards == index == SHARD_HINT:
            return Dataset(ShardHint(self.node))
        if not 0 <= index < num_shards:
            raise InputError(f"shard: expected 0 <= index < num_shards, found index {index} of {num_shards}.")
        return Dataset(Picked(self.node, start=index, stride=num_shards))

    def repeat(self, count: int | None = None) -> "Dataset":
        """Repeat the dataset `count` times; None or -1: without end."""
        return Dataset(Repeated(self.node, None if count is None or count < 0 else count))

    def shuffle(
        self,
        buffer_size: int,
        seed: int | None = None,
        reshuffle_each_iteration: bool = True,
        block: int | None = None,
    ) -> "Dataset":
        """Draw each element from the next `buffer_size`, by `seed` (None: 0) and the iteration.

        Args:
            buffer_size: of as many elements as the dataset has, or more: a permutation of the whole, which
                takes no memory where elements can be addressed.
            seed: of the order.
            reshuffle_each_iteration: whether each iteration has another order.
            block: for files that are far away: shuffle blocks of so many elements, and the elements of
                `buffer_size` of them with each other, so that reads are of whole blocks.
        """
        node = self.node if block is None else self._addressed("shuffle: block")
        shuffled = Shuffled(node, buffer_size, (seed or 0) % 2**32, reshuffle_each_iteration, block)
        return Dataset(shuffled)

    def concatenate(self, dataset: "Dataset") -> "Dataset":
        """Return these elements, then those of another dataset."""
        return Dataset(Concatenated([self.node, dataset.node]))

    def enumerate(self, start: int = 0) -> "Dataset":
        """Return pairs of a number, counted from `start`, and an element."""
        return Dataset.zip((Dataset.range(start, start + LARGEST_COUNT), self))

    # Content

    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        seed: int | None = None,
        processes: bool = False,
    ) -> "Dataset":
        """Apply `map_func` to each element; a tuple's parts are its arguments.

        Args:
            map_func: the function.
            num_parallel_calls: how many threads may call it at once, ahead of who reads; AUTOTUNE: as many
                as are useful. None: one at a time.
            deterministic: accepted as in tf.data; elements always keep their order.
            seed: if given, the function gets one more argument: a numpy Generator that follows from the seed,
                the iteration and the element's number, and so is the same whichever replica calls it.
            processes: whether it is called in helper processes, one for each parallel call (None: AUTOTUNE):
                for functions that keep the interpreter busy. Elements and results have to be arrays, text,
                bytes and numbers; what the function changes outside of them stays in the helper.
        """
        check_parallel_calls(num_parallel_calls)
        if processes:
            calls = AUTOTUNE if num_parallel_calls is None else num_parallel_calls
            return Dataset(Mapped.in_processes(self.node, map_func, calls, seed))
        function = map_func if seed is not None else Watched(map_func)
        return Dataset(Mapped(self.node, function, parallel_calls=num_parallel_calls, seed=seed))

    def filter(self, predicate: Callable[..., Any]) -> "Dataset":
        """Return the elements for which `predicate` is true."""
        return Dataset(Filtered(self.node, predicate))

    def take_while(self, predicate: Callable[..., Any]) -> "Dataset":
        """Return the elements before the first one for which `predicate` is false."""
        return Dataset(TakenWhile(self.node, predicate))

    def scan(self, initial_state: Any, scan_func: Callable[[Any, Any], Any]) -> "Dataset":
        """Return the outputs of `scan_func(state, element)`, which returns ``(new_state, output)``."""
        return Dataset(Scanned(self.node, initial_state, scan_func))

    def flat_map(self, map_func: "Callable[..., Dataset]") -> "Dataset":
        """Return the elements of the datasets that `map_func` makes of each element, one after another."""
        return self.interleave(map_func, cycle_length=1)

    def interleave(
        self,
        map_func: "Callable[..., Dataset]",
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> "Dataset":
        """Take `block_length` elements at a time, in turn, of `cycle_length` datasets of `flat_map`.

        Args:
            map_func: makes a dataset of an element.
            cycle_length: None or AUTOTUNE: 4, on every machine.
            block_length: None: 1.
            num_parallel_calls: accepted as in tf.data; `prefetch` reads ahead.
            deterministic: accepted as in tf.data; elements always keep their order.
        """
        check_parallel_calls(num_parallel_calls, "interleave")
        cycle = CYCLE_LENGTH if cycle_length in (None, AUTOTUNE) else cycle_length
        return Dataset(Interleaved(self.node, lambda *parts: map_func(*parts).node, cycle, block_length or 1))

    def apply(self, transformation: "Callable[[Dataset], Dataset]") -> "Dataset":
        """Return `transformation` of this dataset."""
        return transformation(self)

    def cache(
        self, filename: str | Path = "", limit_bytes: int | None = None, version: str | None = None
    ) -> "Dataset":
        """Keep the first iteration's elements, and repeat them from then on.

        A file is written whole when an element is first asked for, by one process of a host. It is used again
        while pipeline and files are the same; else it is built anew.

        Args:
            filename: of the file; empty: in memory.
            limit_bytes: how much they may take; default: half of the memory, beyond which elements are
                computed anew each time, or of what is free on the disk, beyond which it is an error.
            version: of the pipeline, in your words, where it has objects that cannot be looked into.
        """
        if not str(filename):
            return Dataset(Cached(self.node, limit_bytes))
        place = CachePlace(Path(filename), limit_bytes=limit_bytes, version=version)
        return Dataset(Stored(self.node, place))

    def snapshot(
        self,
        path: str | Path,
        compression: str | None = "AUTO",
        limit_bytes: int | None = None,
        version: str | None = None,
    ) -> "Dataset":
        """Keep the first iteration's elements in a folder, as `cache` does, in a file for each pipeline.

        Args:
            path: of the folder; files of earlier pipelines stay there.
            compression: GZIP: of each element by itself; AUTO or None: none.
            limit_bytes, version: as of `cache`.
        """
        place = CachePlace(Path(path), True, compression_of(compression), limit_bytes, version)
        return Dataset(Stored(self.node, place))

    def save(
        self,
        path: str | Path,
        compression: str | None = None,
        limit_bytes: int | None = None,
        version: str | None = None,
    ) -> None:
        """Write the elements into a file, from which `Dataset.load` reads them in any program.

        One process of a host writes it. A file of the same pipeline stays as it is.

        Args:
            path: of the file.
            compression: GZIP: of each element by itself.
            limit_bytes, version: as of `cache`.
        """
        place = CachePlace(
            Path(path), compression=compression_of(compression), limit_bytes=limit_bytes, version=version
        )
        if self.cardinality() == INFINITE:
            raise InputError(f"{path}: expected a dataset with an end; save before repeat()")
        Stored(self.node, place).whole()

    def prefetch(self, buffer_size: int) -> "Dataset":
        """Read elements ahead of who takes them, in threads; `fit` and `for` loops then find them ready.

        Results and their order are the same. Threads start with the first element that is taken. What was
        read ahead takes at most `options().autotune.ram_budget` bytes; by default 1/8 of this process's
        memory, shared among the tasks of the run on this host.

        Args:
            buffer_size: how many elements; AUTOTUNE: as many as are useful, 0: none.
        """
        return Dataset(Prefetched(self.node, buffer_size))

    # Options

    def with_options(self, options: Options) -> "Dataset":
        """Return the dataset with options; what they leave at the default stays as it was."""
        if not isinstance(options, Options):
            raise InputError(f"with_options: expected dtrain.data.Options, found {type(options).__name__}")
        autotune = options_of(self.node).merge(options).autotune
        return Dataset(Optioned(with_autotune(self.node, autotune), options))

    def options(self) -> Options:
        """Return the options of this dataset and of those that it was made of."""
        return options_of(self.node)

    # Reading

    def _addressed(self, wish: str) -> Node:
        """Return the node, or its rewrite, whose elements can be addressed; raise an error if it has none."""
        if found := obstacles(self.node):
            raise InputError(
                f"{wish}: expected elements that can be addressed; {' and '.join(found)} can only be read "
                "from the beginning: leave it out, or do this before it"
            )
        return addressed(self.node)

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

    def __repr__(self) -> str:
        count = self.cardinality()
        length = {INFINITE: "endless", UNKNOWN: "of unknown length"}.get(count, f"of length {count:,}")
        return f"<{type(self).__name__} {length}>"

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

    def get_single_element(self) -> Any:
        """Return the only element.

        Raises:
            InvalidArgumentError: there is none, or there are several.
        """
        found = list(islice(self, 2))
        if len(found) != 1:
            raise InvalidArgumentError(
                f"get_single_element: expected one element, found {'more' if found else 'none'}"
            )
        return found[0]
