"""Parts of batches: what one replica computes of a step, and where it is read (`protocol.part_dealer`).

Where each pipeline is made by a function of an InputContext, pipelines are canonical. Their number is that
of the first start, and the batch of a number is the same whichever replica computes it: what a lost or slow
replica has left is the same in its successor, and the number of replicas may change while that of pipelines
stays. Source: `num_canonical_nodes` of MosaicML's Streaming.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
from msgspec.structs import replace

from dtrain.data.dataset import Dataset
from dtrain.data.iterator import DatasetIterator
from dtrain.data.node import rows_of
from dtrain.data.prefetching.threads import ReadAhead
from dtrain.data.prefetching.tuning import Forecast, Tuning, size_bytes
from dtrain.data.structure import concatenate
from dtrain.errors import InputError
from dtrain.learning.graphs.heads import WHOLE, LossScale
from dtrain.protocol.part_dealer import owned_from
from dtrain.state.batch_cut import BatchCut
from dtrain.state.rounds import Rounds
from dtrain.strategies.interface import Training

NESTED = (dict, list, tuple)


class Batch(msgspec.Struct, frozen=True, dict=True):
    """Examples that are computed together; `x` and `y` are arrays, or lists or dicts of arrays."""

    x: Any
    y: Any = None
    sample_weight: Any = None

    @classmethod
    def of(cls, element: Any, class_weight: Mapping[int, float] | None = None) -> "Batch":
        if not isinstance(element, tuple):
            element = (element,)
        if not 1 <= len(element) <= 3:
            raise InputError(
                f"data: expected elements x, (x, y) or (x, y, sample_weight), found a tuple of {len(element)}"
            )
        batch = cls(*element)
        return batch if class_weight is None else batch.weighted(class_weight)

    @cached_property
    def size(self) -> int:
        first = self.x
        while isinstance(first, NESTED):
            first = next(iter(first.values())) if isinstance(first, dict) else first[0]
        return len(first)

    @property
    def input_shape(self) -> Any:
        """The shape of one example, for `Network.build`."""
        if isinstance(self.x, dict):
            return [np.shape(value)[1:] for value in self.x.values()]
        if isinstance(self.x, list | tuple):
            return [np.shape(value)[1:] for value in self.x]
        return np.shape(self.x)[1:]

    def weighted(self, class_weight: Mapping[int, float]) -> "Batch":
        """Return the same examples, their weights multiplied by those of their classes.

        Raises:
            InputError: the targets are not classes 0 to n - 1 (or one-hot vectors) of which each has a
                weight, or belong to several outputs.
        """
        if isinstance(self.y, Mapping | list | tuple) or self.y is None:
            raise InputError("class_weight: expected the targets of one output; give sample_weight by output")
        y = np.asarray(self.y)
        classes = y.argmax(axis=-1) if y.ndim > 1 and y.shape[-1] > 1 else y.reshape(len(y)).astype(np.int64)
        if unknown := set(classes.tolist()) - set(class_weight):
            raise InputError(
                f"class_weight: expected a weight for each class; found class {min(unknown)}, not in "
                f"{class_weight}"
            )
        weights = np.array([class_weight[each] for each in classes.tolist()], np.float32)
        return replace(
            self,
            sample_weight=weights
            if self.sample_weight is None
            else weights * np.reshape(self.sample_weight, -1),
        )


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
        mixed: whether a step may be made of parts of several batches.
        steps: where it is one of a round of local steps, its part of each batch, by number.
    """

    batch: Batch | None
    parts: int = 1
    empty: int = 0
    batch_size: int = 0
    mixed: bool = False
    steps: "tuple[tuple[int, Part], ...]" = ()

    def scale(self, weighs_examples: bool) -> LossScale:
        """Return the factors that make the mean over a step's parts, or examples, the batch's gradient."""
        if self.batch is None or self.parts == 1:
            return WHOLE
        if weighs_examples:
            return LossScale(sums=self.batch_size / self.batch.size)
        return LossScale(self.parts, 1.0 if self.mixed else self.parts / (self.parts - self.empty))


class PartStream:
    """Parts of batches by number: at once if the pipeline is addressable, else by reading up to them.

    Args:
        dataset: of batches, without end.
        uncut: whether a part is a batch.
        others: raises an error unless there are data beside this dataset; None: there are none.
    """

    def __init__(
        self,
        dataset: Dataset,
        cut: BatchCut,
        class_weight: Mapping[int, float] | None,
        *,
        uncut: bool = False,
        others: Callable[[], Any] | None = None,
    ) -> None:
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
        """Read the part of a number anew; several threads may, if the pipeline is addressable."""
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
            node = self._dataset.node
            element = node.element(number, ITERATION) if self._addressable else self._batch(number)
            whole = Batch.of(element, self._class_weight)
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
        batch = None if element is None else Batch.of(element, self._class_weight)
        return Part(batch, cut.parts, cut.parts - cut.filled(size), size, cut.even)

    def _rows(self, cut: BatchCut, index: int, part: int) -> tuple[Any, int]:
        """Return a part of a batch, and how many examples all of the batch has."""
        rows = partial(cut.rows, part)
        if self._addressable:
            return self._dataset.node.part(index, ITERATION, rows)
        return rows_of(self._batch(index), rows)

    def _batch(self, index: int) -> Any:
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


class RoundStream:
    """Parts of rounds of local steps by number, each a part of every batch of its round."""

    def __init__(self, stream: "Stream", rounds: Rounds, training: Training) -> None:
        """Read parts of batches from `stream`; an `InputError` if parts of several batches make one there."""
        if training.cut.rest:
            raise InputError(
                "the checkpoint has parts of begun batches, which steps with backup workers have left, and "
                "these make no rounds: resume with training.updates: sync"
            )
        self._stream = stream
        self._rounds = rounds
        self._parts = training.cut.parts
        self._training = training

    def at(self, number: int) -> Part:
        """Return the part of a round, with those of its batches."""
        return self._of(number, self._stream.at)

    def read(self, number: int) -> Part:
        """Read it anew; see `PartStream`."""
        return self._of(number, self._stream.read)

    @property
    def reads_ahead(self) -> bool:
        """Whether it is known ahead what a part has: with speeds that follows only as it is dealt."""
        return not self._training.cut.speeds

    def _of(self, number: int, read: Callable[[int], Part]) -> Part:
        speeds = self._training.cut.speeds
        parts = [(each, read(each)) for each in self._rounds.parts(number, self._parts, speeds)]
        if speeds:  # what a part has says nothing of what others have not
            parts = [(each, part._replace(empty=0)) for each, part in parts]
        return parts[0][1]._replace(empty=min(part.empty for _, part in parts), steps=tuple(parts))


class StepStream(PartStream):
    """Parts of steps that a policy has made, by number (`Batches.for_replicas_of`)."""

    def _shared(self, number: int) -> Part:
        step, part = divmod(number, self._cut.parts)
        batches = [None if each is None else Batch.of(each, self._class_weight) for each in self._batch(step)]
        sizes = [0 if each is None else each.size for each in batches]
        return Part(batches[part], len(batches), sizes.count(0), sum(sizes), self._cut.even)


ENDLESS = 1 << 62


class Stream(Protocol):
    """The parts of one stream by number."""

    def at(self, number: int) -> Part: ...

    def read(self, number: int) -> Part:
        """Return the part of a number; several threads may call it at once if the pipeline is addressable."""


class PartsOfPipelines:
    """Batches by number, of several pipelines, each of which is one part of a step.

    The pipelines take turns; a turn gives as many batches as a step has parts for each pipeline. A pipeline
    that has no batch left in this pass is skipped, and parts that the last step lacks have no examples, so
    a pass has every batch once. Where the length of one is unknown (a length below 0), each is repeated by
    itself. With backups there are no parts without examples, and the next pass fills the step. A pipeline is
    made when it is asked for a batch.
    """

    def __init__(self, make: Callable[[int], Stream], lengths: Sequence[int], cut: BatchCut) -> None:
        self._make = make
        self._parts = cut.parts
        self._share = max(1, cut.parts // len(lengths))
        self._lengths = lengths if min(lengths) >= 0 else [ENDLESS] * len(lengths)
        self._streams: dict[int, Stream] = {}
        self._size = 0
        self._rounds: list[tuple[int, int, list[tuple[int, int]]]] = []
        # From each number on until the next: the turn, and which batches of which pipelines it has.
        turns = {
            0,
            *(end // self._share for length in self._lengths for end in (length, length + self._share - 1)),
        }
        for turn, following in pairwise(sorted(turns)):
            batches = [
                (pipeline, place)
                for pipeline, length in enumerate(self._lengths)
                for place in range(self._share)
                if turn * self._share + place < length
            ]
            self._rounds.append((self._size, turn, batches))
            self._size += len(batches) * (following - turn)
        self._pass = self._size if cut.even else -(-self._size // cut.parts) * cut.parts

    def at(self, number: int) -> Part:
        return self._part(number, lambda stream, position: stream.at(position))

    def read(self, number: int) -> Part:
        return self._part(number, lambda stream, position: stream.read(position))

    def _part(self, number: int, read: Callable[[Stream, int], Part]) -> Part:
        within = number % self._pass
        empty = self._pass - self._size if within >= self._pass - self._parts else 0
        if within >= self._size:
            return Part(None, self._parts, empty)
        part = read(*self._locate(number))
        return part._replace(empty=empty, batch_size=part.batch_size // self._parts * (self._parts - empty))

    def _locate(self, number: int) -> tuple[Stream, int]:
        """Return the pipeline of a batch, and the batch's number there."""
        past, within = divmod(number, self._pass)
        first, turn, batches = self._rounds[bisect_right(self._rounds, within, key=lambda each: each[0]) - 1]
        later, chosen = divmod(within - first, len(batches))
        pipeline, place = batches[chosen]
        if pipeline not in self._streams:
            self._streams[pipeline] = self._make(pipeline)
        return self._streams[pipeline], past * self._lengths[pipeline] + (turn + later) * self._share + place


@contextmanager
def parts_ahead(
    streams: Sequence[Stream], tuning: Tuning | None, forecasts: Sequence[Forecast]
) -> Iterator[list[Callable[[int], Part]]]:
    """Yield for each replica of this task what reads its parts by number; reading ahead ends with the block.

    The streams share what they read. `forecasts` are of the numbers that each replica will be asked for.
    """
    first = streams[0] if streams else None
    if tuning is None or first is None or (isinstance(first, RoundStream) and not first.reads_ahead):
        yield [stream.at for stream in streams]
        return
    reader = ReadAhead(first.read, _size_of, forecasts, tuning)
    try:
        yield [partial(reader.at, reader=place) for place in range(len(streams))]
    finally:
        reader.close()


def forecasts_of(ranks: Sequence[int], cut: BatchCut, replicas: int, max_steps: int) -> list[Forecast]:
    """Return the forecast of each of this task's ranks; see docs/design/protocol.md#lanes.

    `replicas` counts those of all tasks.
    """
    whole = cut.parts > 1 and not cut.even
    lanes = cut.parts if whole else replicas

    def forecast(rank: int) -> Forecast:
        return Forecast(lambda first: owned_from(first, rank, lanes, replicas), max_steps * cut.parts)

    return [forecast(rank) for rank in ranks]


def _size_of(part: Part) -> int:
    if part.steps:
        return sum(_size_of(each) for _, each in part.steps)
    batch = part.batch
    return 0 if batch is None else size_bytes((batch.x, batch.y, batch.sample_weight))
