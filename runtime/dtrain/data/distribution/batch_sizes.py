"""The sizes of the batches that workers and replicas get of a global batch.

Source: `tensorflow.python.data.experimental.ops.distribute` of TensorFlow 2.15.1 (`compute_batch_size`,
`batch_sizes_for_worker`), whose results these functions give.
"""

from dtrain.data.grouping import Batched
from dtrain.data.joining import Concatenated, Zipped
from dtrain.data.node import Node
from dtrain.data.structure import arrays_of
from dtrain.errors import NoElementError, NotBatchedError

NOT_KNOWN = -1
"""The batch size of a pipeline that has other steps after `batch`."""


def batch_sizes_for_worker(
    global_batch_size: int, num_workers: int, num_replicas_per_worker: int, worker_index: int
) -> list[int]:
    """Return the sizes into which one worker cuts its batches, in turn: one for each replica of all workers.

    They differ by at most one and add up to the global batch. Each worker's list begins at another place, so
    that what the replicas of all workers get in a step adds up to it as well.
    """
    replicas = num_workers * num_replicas_per_worker
    size, larger = divmod(global_batch_size, replicas)
    of_first = [size + 1] * larger + [size] * (replicas - larger)
    start = worker_index * num_replicas_per_worker
    return of_first[start:] + of_first[:start]


def compute_batch_size(node: Node) -> int:
    """Return the size of a pipeline's batches, smaller last ones aside; NOT_KNOWN if its form does not say.

    Raises:
        NotBatchedError: the elements have no axis of examples.
    """
    try:
        specs = arrays_of(node.spec)
    except NoElementError:
        return _by_its_steps(node)
    lengths = []
    for spec in specs:
        if not spec.shape:
            raise NotBatchedError(
                "experimental_distribute_dataset: expected a dataset of batches, found elements of shape (); "
                "call Dataset.batch(global_batch_size) before it is distributed to several replicas"
            )
        lengths.append(spec.shape[0])
    if None not in lengths:
        return lengths[0] if len(set(lengths)) == 1 else NOT_KNOWN
    return _by_its_steps(node)


def _by_its_steps(node: Node) -> int:
    """Return the size that the last `batch` has been given, if no step after it can have changed it."""
    if isinstance(node, Batched):
        return node.batch_size
    if node.keeps_batches:
        return _by_its_steps(node.inputs[0])
    if isinstance(node, Zipped | Concatenated):
        sizes = {_by_its_steps(each) for each in node.inputs}
        return sizes.pop() if len(sizes) == 1 else NOT_KNOWN
    return NOT_KNOWN
