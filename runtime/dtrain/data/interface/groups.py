"""Steps of a dataset that put elements together, or take them apart."""

from collections.abc import Callable, Sequence
from typing import Any, Self

from dtrain.data.grouping import Batched, Unbatched
from dtrain.data.interface.sources import FromSources
from dtrain.data.node import Node
from dtrain.data.prefetching.prefetched import check_parallel_calls
from dtrain.data.sharding import Rebatched
from dtrain.data.windows import Buckets, Distinct, Grouped, PaddedBatched, Windowed
from dtrain.errors import InputError


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
