"""What a simulated replica reads: the rows of its parts, as the shipped input finds them by number.

An example is its own number within a pass, so that the rows behind a gradient are those that the input has read, and
not those that it should have read: the judge knows these by `data` alone.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from simulation.data import Data

from dtrain.data import Dataset
from dtrain.data.input_context import InputContext
from dtrain.state.batch_cut import BatchCut
from dtrain.state.rounds import Rounds
from dtrain.training.batches import Batches
from dtrain.training.parts import Part, RoundStream

Array = np.ndarray[Any, Any]
KINDS = ("numbers", "interleaved", "streamed", "pipelines")


def kind_of(seed: int, data: Data, parts: int) -> tuple[str, int]:
    """Return the kind of input of a seed, and the number of pipelines.

    Pipelines are those of asynchronous runs, whose parts are batches, and have as many batches each.
    """
    kind = KINDS[seed % len(KINDS)]
    pipelines = next((number for number in (3, 2) if data.batches % number == 0), 1)
    return (kind, pipelines) if kind != "pipelines" or parts == 1 else ("numbers", 1)


class Reading:
    """The parts of one call of `fit` in one process, those of batches or of `rounds`."""

    def __init__(
        self,
        seed: int,
        data: Data,
        cut: BatchCut,
        rounds: Rounds | None,
        training: Any,
    ) -> None:
        self._data, self._cut = data, cut
        self._pass_rows = data.first(data.batches)
        kind, pipelines = kind_of(seed, data, cut.parts)
        made: Dataset | Callable[[InputContext], Dataset] = {
            "numbers": self._numbers,
            "interleaved": self._interleaved,
            "streamed": self._streamed,
            "pipelines": lambda: self._pipeline,
        }[kind]()
        batches = Batches.of(
            made, batch_size=None, shuffle=False, seed=0, context=InputContext(pipelines, 0, 1)
        )
        (stream,) = batches.addressed().streams([0], cut)
        self._stream = stream if rounds is None else RoundStream(stream, rounds, training)

    def at(self, number: int) -> list[tuple[int, Part, Array]]:
        """Return the part of a number, and the rows of the stream that it has; where it is one of a round, its
        part of each batch.
        """
        part = self._stream.at(number)
        return [(each, found, self._rows(each, found)) for each, found in part.steps or ((number, part),)]

    def _rows(self, number: int, part: Part) -> Array:
        if part.batch is None:
            return np.zeros(0, np.int64)
        passes = number // self._cut.parts // self._data.batches
        return passes * self._pass_rows + part.batch.x

    def _numbers(self) -> Dataset:
        return Dataset.range(self._pass_rows).batch(self._data.rows)

    def _interleaved(self) -> Dataset:
        """Return rows of several sources in turn, found by arithmetic."""
        half = self._pass_rows // 2

        def every_second(first: Any) -> Dataset:
            return Dataset.range(int(first), 2 * half, 2)

        rest = Dataset.range(2 * half, self._pass_rows)
        return Dataset.range(2).interleave(every_second, 2).concatenate(rest).batch(self._data.rows)

    def _streamed(self) -> Dataset:
        """Return rows that can only be read from the front."""
        return Dataset.from_generator(lambda: map(np.int64, range(self._pass_rows))).batch(self._data.rows)

    def _pipeline(self, context: InputContext) -> Dataset:
        return self._numbers().shard(context.num_input_pipelines, context.input_pipeline_id)
