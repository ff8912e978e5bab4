"""Parts of batches, read ahead of the training loop where the dataset asks for it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from dtrain.data.prefetching.budget import size_bytes
from dtrain.data.prefetching.forecast import Forecast
from dtrain.data.prefetching.prefetched import PrefetchPlan
from dtrain.data.prefetching.reader import ReadAhead
from dtrain.protocol.lanes import owned_from
from dtrain.state.batch_cut import BatchCut
from dtrain.training.parts.of_pipelines import Stream
from dtrain.training.parts.streams import Part


@contextmanager
def parts_ahead(
    streams: Sequence[Stream], plan: PrefetchPlan | None, forecasts: Sequence[Forecast]
) -> Iterator[list[Callable[[int], Part]]]:
    """Yield for each replica what reads its parts by number; what was begun to be read ends with the block.

    Args:
        streams: of each replica of this task; those of one task share what they read.
        plan: how to read ahead; None: not at all.
        forecasts: of the numbers that each replica will be asked for.
    """
    if plan is None or not streams:
        yield [stream.at for stream in streams]
        return
    reader = ReadAhead(streams[0].read, _size_of, forecasts, plan.tuning(), plan.budget_bytes)
    try:
        yield [partial(reader.at, reader=place) for place in range(len(streams))]
    finally:
        reader.close()


def forecasts_of(ranks: Sequence[int], cut: BatchCut, replicas: int, max_steps: int) -> list[Forecast]:
    """Return the forecast of each rank; see docs/design/protocol.md#lanes.

    Args:
        ranks: of the replicas of this task.
        cut: how batches are cut.
        replicas: how many all tasks have.
        max_steps: how many steps there are.
    """
    whole = cut.parts > 1 and not cut.even
    lanes = cut.parts if whole else replicas

    def forecast(rank: int) -> Forecast:
        return Forecast(lambda first: owned_from(first, rank, lanes, replicas), max_steps * cut.parts)

    return [forecast(rank) for rank in ranks]


def _size_of(part: Part) -> int:
    batch = part.batch
    return 0 if batch is None else size_bytes((batch.x, batch.y, batch.sample_weight))
