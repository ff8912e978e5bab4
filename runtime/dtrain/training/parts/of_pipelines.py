"""Batches by number where each pipeline is made by a function of an InputContext: canonical pipelines.

The number of pipelines P is that of the first start. Batch k of them all is batch k // P of pipeline k mod P,
whichever replica computes it: what a lost or slow replica has left is the same in its heir, and the number of
replicas may change while P stays. Source: `num_canonical_nodes` of MosaicML's Streaming.
"""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

PartT = TypeVar("PartT", covariant=True)


class Stream(Protocol[PartT]):
    """The batches of one pipeline by number."""

    def at(self, number: int) -> PartT:
        """Return the batch of a number."""

    def read(self, number: int) -> PartT:
        """Return the batch of a number; several threads may at once if the pipeline is addressable."""


class PartsOfPipelines(Generic[PartT]):
    """Batches by number, of several pipelines.

    Where a pipeline serves several replicas of one worker, these get its batches in turn: with R of them
    batch k belongs to pipeline (k mod PR) // R. A pipeline of which no batch is asked for is never made.
    """

    def __init__(self, make: Callable[[int], Stream[PartT]], pipelines: int, replicas: int = 1) -> None:
        """Read so many pipelines, each for so many replicas; `make` makes one."""
        self._make = make
        self._pipelines = pipelines
        self._replicas = replicas
        self._streams: dict[int, Stream[PartT]] = {}

    def at(self, number: int) -> PartT:
        """Return the batch of a number."""
        stream, position = self._place(number)
        return stream.at(position)

    def read(self, number: int) -> PartT:
        """Return the batch of a number; see `Stream.read`."""
        stream, position = self._place(number)
        return stream.read(position)

    def _place(self, number: int) -> tuple[Stream[PartT], int]:
        """Return the pipeline of a batch, and the batch's number there."""
        turn, within = divmod(number, self._pipelines * self._replicas)
        pipeline, replica = divmod(within, self._replicas)
        if pipeline not in self._streams:
            self._streams[pipeline] = self._make(pipeline)
        return self._streams[pipeline], turn * self._replicas + replica
