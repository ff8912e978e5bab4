"""The share of one worker in a pipeline, as a rewrite of it. Source: TensorFlow 2.15.1.

    node = distributed(dataset.node, InputContext(2, 0, 4), AutoShardPolicy.AUTO)   # batches of one replica

TensorFlow's results and errors are kept, also where one would expect others: under AUTO a pipeline that
reads files is dealt by files, with fewer files than workers an error in some of them; blocks of batches
under DATA, sizes that differ by at most one under FILE and OFF.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from dtrain.data.caching import Cached
from dtrain.data.grouping import Batched, Filtered, Mapped
from dtrain.data.input_context import InputContext
from dtrain.data.joining import Concatenated, Interleaved, Zipped
from dtrain.data.node import Iteration, Node, OfSeveral, on_inputs, total_of
from dtrain.data.options import AutoShardPolicy, Optioned
from dtrain.data.ordering import Picked, Repeated, Shuffled
from dtrain.data.prefetching.prefetched import Prefetched
from dtrain.data.readers.rows import FileSource
from dtrain.data.record_index.addressing import inputs_and_made
from dtrain.data.sharding import (
    NOT_KNOWN,
    Rebatched,
    ShardHint,
    SplitBatches,
    WorkerShare,
    batch_sizes_for_worker,
    compute_batch_size,
)
from dtrain.data.structure import Element, arrays_of
from dtrain.data.windows import Windowed
from dtrain.errors import InputError, NotFoundError

OVER_FILES = (
    *(Batched, Cached, Filtered, Interleaved, Mapped, Optioned, Picked, Rebatched, Repeated, ShardHint),
    *(Prefetched, Shuffled, SplitBatches, Windowed),
)
"""The steps over which files are looked for, towards the source."""
OF_SEVERAL = (Concatenated, Zipped)


def distributed(node: Node, context: InputContext, policy: AutoShardPolicy) -> Node:
    """Return one worker's share of a pipeline of global batches: batches of one replica, a step's in a row.

    Raises:
        NotBatchedError: there are several replicas, and the elements have no axis of examples.
        NotFoundError: see `autoshard`.
        InputError: the workers have different numbers of replicas.
    """
    replicas, workers = context.num_replicas_in_sync, context.num_input_pipelines
    if replicas % workers:
        raise InputError(
            "experimental_distribute_dataset: expected equally many replicas in every worker, found "
            f"{replicas} replicas in {workers} workers"
        )
    if replicas > 1:
        size = compute_batch_size(node)
        if size == NOT_KNOWN:
            node = SplitBatches(node, replicas)
        else:
            sizes = batch_sizes_for_worker(size, workers, replicas // workers, context.input_pipeline_id)
            node = Rebatched(node, sizes, drop_remainder=False)
    return autoshard(node, workers, context.input_pipeline_id, policy, replicas)


def autoshard(node: Node, workers: int, index: int, policy: AutoShardPolicy, replicas: int = 1) -> Node:
    """Return the share of worker `index` of `workers` in a pipeline.

    Where it is dealt by batches, each batch of one that was rebatched for `replicas` is split by itself. A
    `NotFoundError` says that the policy is FILE, and the pipeline reads no files.
    """
    if policy is AutoShardPolicy.OFF or (policy is AutoShardPolicy.FILE and workers == 1):
        return node
    if policy is AutoShardPolicy.HINT:
        return _by_hint(node, workers, index)
    if policy is not AutoShardPolicy.DATA:
        node, missing = _by_file(node, workers, index)
        if missing is None:
            return node
        if policy is AutoShardPolicy.FILE:
            raise NotFoundError(
                f"autosharding: AutoShardPolicy.FILE expects a pipeline that reads files, found {missing}; "
                "choose AutoShardPolicy.DATA (every worker reads all and keeps its part) or OFF"
            )
    if isinstance(node, Rebatched) and replicas > 1:
        node = SplitBatches(node.inputs[0], replicas)
    return WorkerShare(node, workers, index)


def _by_hint(node: Node, workers: int, index: int) -> Node:
    node = on_inputs(node, [_by_hint(each, workers, index) for each in node.inputs])
    return WorkerShare(node.inputs[0], workers, index) if isinstance(node, ShardHint) else node


def _by_file(node: Node, workers: int, index: int) -> tuple[Node, str | None]:
    """Return the pipeline with its files dealt, as far as it could be, and what is no file reader, if any."""
    if isinstance(node, Interleaved) and _reads_files(node):
        # Files are shuffled after they were dealt, so that each has one worker.
        in_order, shuffles = _unshuffled(node.inputs[0])
        names: Node = WorkerShare(in_order, workers, index)
        return node.with_inputs([shuffles[-1].with_inputs([names]) if shuffles else names]), None
    if not isinstance(node, (*OVER_FILES, *OF_SEVERAL)):
        return node, f"{type(node).__name__}, which is no file reader"
    inputs: list[Node] = []
    missing = None
    for each in node.inputs:
        if missing is None:
            each, missing = _by_file(each, workers, index)
        inputs.append(each)
    return on_inputs(node, inputs), missing


def _reads_files(node: Node) -> bool:
    return isinstance(node, FileSource) or any(map(_reads_files, inputs_and_made(node)))


def _unshuffled(node: Node) -> tuple[Node, list[Shuffled]]:
    unshuffled = [_unshuffled(each) for each in node.inputs]
    below = [shuffle for _, shuffles in unshuffled for shuffle in shuffles]
    if isinstance(node, Shuffled):
        return unshuffled[0][0], [node, *below]
    return on_inputs(node, [each for each, _ in unshuffled]), below


class StepsOfWorkers(OfSeveral):
    """The pipelines of several workers; an element is the batches of a step, one for each replica.

    Batches with examples come first, and None stands for the others.
    """

    def __init__(self, pipelines: Sequence[Node], replicas: int) -> None:
        super().__init__(pipelines)
        self._replicas = replicas
        lengths = [node.cardinality for node in pipelines]
        self.cardinality = total_of(lengths)
        if self.cardinality >= 0:
            self.cardinality = max(-(-length // replicas) for length in lengths)

    def iterate(self, iteration: Iteration) -> Iterator[list[Element | None]]:
        streams = [node.iterate(iteration) for node in self.inputs]
        parts = self._replicas * len(streams)
        while batches := [each for stream in streams for each in islice(stream, self._replicas)]:
            filled = [batch for batch in batches if len(arrays_of(batch)[0])]
            yield filled + [None] * (parts - len(filled))


def steps_by_policy(node: Node, policy: AutoShardPolicy, workers: int, parts: int) -> StepsOfWorkers:
    contexts = [InputContext(workers, worker, parts) for worker in range(workers)]
    return StepsOfWorkers([distributed(node, each, policy) for each in contexts], parts // workers)
