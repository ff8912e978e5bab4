"""Parts of batches by number: what replicas compute. See `protocol.part_dealer`."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from dtrain.data.dataset import Dataset
from dtrain.data.iterator import DatasetIterator
from dtrain.data.node import rows_of
from dtrain.data.structure import concatenate
from dtrain.errors import InputError
from dtrain.learning.graphs.heads import WHOLE, LossScale
from dtrain.state.batch_cut import BatchCut
from dtrain.training.parts.batch import Batch

ITERATION = (0,)
"""Every call of `fit` reads a stream from its beginning."""
EMPTY = "data: expected at least one batch, found an empty dataset"
OPEN_ITERATORS = 2
"""A replica's own parts come in order, and so do those that come back from others."""


class Part(NamedTuple):
    """One replica's part of a batch.

    Attributes:
        batch: its examples; None where it has none.
        parts: into how many parts the batch is cut.
        empty: how many of them are known to have no examples: the last ones.
        batch_size: how many examples the batch has.
        mixed: whether a step may be made of parts of several batches.
    """

    batch: Batch | None
    parts: int = 1
    empty: int = 0
    batch_size: int = 0
    mixed: bool = False

    def scale(self, weighs_examples: bool) -> LossScale:
        """Return the factors that make the mean over a step's parts, or examples, the batch's gradient."""
        if self.batch is None or self.parts == 1:
            return WHOLE
        if weighs_examples:
            return LossScale(sums=self.batch_size / self.batch.size)
        return LossScale(self.parts, 1.0 if self.mixed else self.parts / (self.parts - self.empty))


class PartStream:
    """Parts of batches by number: at once if the pipeline is addressable, else by reading up to them."""

    def __init__(
        self,
        dataset: Dataset,
        cut: BatchCut,
        class_weight: Mapping[int, float] | None,
        *,
        uncut: bool = False,
        others: Callable[[], Any] | None = None,
    ) -> None:
        """Begin.

        Args:
            dataset: of batches, without end.
            cut: how batches are cut.
            class_weight: factors of the examples' weights, by class.
            uncut: whether a part is a batch.
            others: raises an error unless there are data beside this dataset; None: there are none.
        """
        self._others = others
        self._nothing: Part | None = None
        self._uncut = uncut
        self._class_weight = class_weight
        self._dataset = dataset
        self._addressable = dataset.node.addressable
        self._cut = cut
        self._iterators: list[DatasetIterator] = []
        self._last: tuple[int, Part] | None = None
        self._read: tuple[int, Any] | None = None

    def at(self, number: int) -> Part:
        """Return the part of a number; the latest one is cached."""
        if self._last is None or self._last[0] != number:
            self._last = number, self.read(number)
        return self._last[1]

    def read(self, number: int) -> Part:
        """Return the part of a number, read anew.

        Several threads may call it at once if the pipeline is addressable.
        """
        try:
            return self._nothing or self._shared(number)
        except StopIteration:  # some datasets are found to be empty only by reading
            if self._others is None:
                raise InputError(EMPTY) from None
            self._others()
            self._nothing = Part(None, self._cut.parts)
            return self._nothing

    def _shared(self, number: int) -> Part:
        cut = self._cut
        if self._uncut:
            whole = self._weighted(
                self._dataset.node.element(number, ITERATION) if self._addressable else self._batch(number)
            )
            return Part(whole if whole.size else None, cut.parts, 0, whole.size * cut.parts)
        index, part = divmod(number, cut.parts)
        if pieces := cut.pieces(index):
            before = BatchCut(cut.rest[0], even=True)
            found = [self._rows(before, *divmod(piece, before.parts))[0] for piece in pieces]
            filled = [element for element in found if element is not None]
            if not filled:
                return Part(None, cut.parts, cut.parts)
            element, size = rows_of(concatenate(filled), partial(cut.rows, part))
        else:
            element, size = self._rows(cut, index, part)
        batch = None if element is None else self._weighted(element)
        return Part(batch, cut.parts, cut.parts - cut.filled(size), size, cut.even)

    def _rows(self, cut: BatchCut, index: int, part: int) -> tuple[Any, int]:
        """Return a part of a batch, and how many examples all of the batch has."""
        rows = partial(cut.rows, part)
        if self._addressable:
            return self._dataset.node.part(index, ITERATION, rows)
        return rows_of(self._batch(index), rows)

    def _weighted(self, element: Any) -> Batch:
        batch = Batch.of(element)
        return batch if self._class_weight is None else batch.weighted(self._class_weight)

    def _batch(self, index: int) -> Any:
        """Return a whole batch of a stream that can only be read on."""
        if self._read is None or self._read[0] != index:
            before = [iterator for iterator in self._iterators if iterator.position <= index]
            iterator = max(before, key=lambda iterator: iterator.position) if before else self._open(index)
            iterator.skip_to(index)
            self._read = index, next(iterator)
        return self._read[1]

    def _open(self, position: int) -> DatasetIterator:
        del self._iterators[: len(self._iterators) - OPEN_ITERATORS + 1]
        self._iterators.append(DatasetIterator(self._dataset.node, ITERATION, position))
        return self._iterators[-1]


class StepStream(PartStream):
    """Parts of steps that a policy has made, by number; see `Batches.for_replicas_of`."""

    def _shared(self, number: int) -> Part:
        step, part = divmod(number, self._cut.parts)
        batches = [None if each is None else self._weighted(each) for each in self._batch(step)]
        sizes = [0 if each is None else each.size for each in batches]
        return Part(batches[part], len(batches), sizes.count(0), sum(sizes), self._cut.even)
