"""Batches by number where each pipeline is made by a function of an InputContext: canonical pipelines.

The number of pipelines is that of the first start, and the batch of a number is the same whichever replica
computes it: what a lost or slow replica has left is the same in its heir, and the number of replicas may
change while that of pipelines stays. Source: `num_canonical_nodes` of MosaicML's Streaming.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol

from dtrain.state.batch_cut import BatchCut
from dtrain.training.parts.streams import Part

ENDLESS = 1 << 62


class Stream(Protocol):
    """The parts of one stream by number."""

    def at(self, number: int) -> Part:
        """Return the part of a number."""

    def read(self, number: int) -> Part:
        """Return the part of a number; several threads may at once if the pipeline is addressable."""


class PartsOfPipelines:
    """Batches by number, of several pipelines, each of which is one part of a step.

    The pipelines take turns; a turn gives as many batches as a step has parts for each pipeline. A pipeline
    that has no batch left in this pass is skipped, and parts that the last step lacks have no examples, so
    a pass has every batch once. Where the length of one is unknown, each is repeated by itself. With backups
    there are no parts without examples, and the next pass fills the step. A pipeline is made when it is asked
    for a batch.
    """

    def __init__(self, make: Callable[[int], Stream], lengths: Sequence[int], cut: BatchCut) -> None:
        """Read pipelines.

        Args:
            make: makes the stream of one.
            lengths: how many batches a pass of each has; below 0 where that is not known, or endless.
            cut: into how many parts a step is cut.
        """
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
        """Return the part of a number; its stream caches the latest one."""
        return self._part(number, lambda stream, position: stream.at(position))

    def read(self, number: int) -> Part:
        """Return the part of a number; see `Stream.read`."""
        return self._part(number, lambda stream, position: stream.read(position))

    def _part(self, number: int, read: Callable[[Stream, int], Part]) -> Part:
        within = number % self._pass
        empty = self._pass - self._size if within >= self._pass - self._parts else 0
        if within >= self._size:
            return Part(None, self._parts, empty)
        part = read(*self._place(number))
        return part._replace(empty=empty, batch_size=part.batch_size // self._parts * (self._parts - empty))

    def _place(self, number: int) -> tuple[Stream, int]:
        """Return the pipeline of a batch, and the batch's number there."""
        past, within = divmod(number, self._pass)
        first, turn, batches = self._rounds[bisect_right(self._rounds, within, key=lambda each: each[0]) - 1]
        later, chosen = divmod(within - first, len(batches))
        pipeline, place = batches[chosen]
        if pipeline not in self._streams:
            self._streams[pipeline] = self._make(pipeline)
        return self._streams[pipeline], past * self._lengths[pipeline] + (turn + later) * self._share + place
