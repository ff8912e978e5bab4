"""The methods of a strategy for input; names and signatures are those of `tf.distribute.Strategy`."""

import warnings
from typing import Protocol

from dtrain.data.dataset import Dataset
from dtrain.errors import InputError
from dtrain.strategies.input.distributed_dataset import (
    DatasetFunction,
    DistributedDataset,
    distribute_dataset,
    distribute_function,
)
from dtrain.strategies.input.options import InputOptions, InputReplicationMode, given_options
from dtrain.strategies.input.workers import InputWorkers
from dtrain.strategies.replicas.own_loops import OwnLoops


class OwnInput(OwnLoops, Protocol):
    """A strategy that distributes datasets to its replicas; `Strategy` inherits it."""

    @property
    def input_workers(self) -> InputWorkers:
        """The processes that read distributed datasets, seen from this one."""
        made: InputWorkers = self.__dict__.get("_input_workers") or self.__dict__.setdefault(
            "_input_workers", self._make_input_workers()
        )
        return made

    def experimental_distribute_dataset(
        self, dataset: Dataset, options: InputOptions | None = None
    ) -> DistributedDataset:
        """Return a dataset whose every element holds a batch for each replica.

        A batch of the given dataset is the global one: it is cut into one for each replica of all workers,
        and where there are several workers each reads its share, as
        ``dataset.options().experimental_distribute.auto_shard_policy`` says. `fit` needs none of this.

        Args:
            dataset: of global batches.
            options: see `InputOptions`.

        Raises:
            NotADatasetError: the dataset is something else.
            NotBatchedError: there are several replicas, and the dataset has no batches.
            NotFoundError: the policy is FILE, and the dataset reads no files.
            NotSupportedError: the options ask for a pipeline for each replica.
        """
        if (checked := given_options(options, "experimental_distribute_dataset")) is not None:
            checked.check_for_dataset()
        return distribute_dataset(dataset, self.input_workers)

    def distribute_datasets_from_function(
        self, dataset_fn: DatasetFunction, options: InputOptions | None = None
    ) -> DistributedDataset:
        """Return a dataset of which each element holds a batch for each replica, made by a function.

        What the function returns is taken as it is: it batches by
        ``context.get_per_replica_batch_size(global_batch_size)`` and deals the data to workers itself, by
        ``dataset.shard(context.num_input_pipelines, context.input_pipeline_id)``. The replicas of a worker
        get its batches in turn.

        Args:
            dataset_fn: ``(InputContext) -> Dataset``, called once in each worker.
            options: see `InputOptions`. A pipeline for each replica stays so in later calls.

        Raises:
            NotADatasetError: the function returns something else.
            InputError: it is no function, or the options contradict each other.
        """
        who = "distribute_datasets_from_function"
        if not callable(dataset_fn):
            raise InputError(f"{who}: expected a function of an InputContext, found {dataset_fn!r}")
        if (checked := given_options(options, who)) is not None:
            checked.check_for_function()
            if checked.experimental_replication_mode is InputReplicationMode.PER_REPLICA:
                self.input_workers.per_replica = True
        return distribute_function(dataset_fn, self.input_workers)

    def experimental_distribute_datasets_from_function(
        self, dataset_fn: DatasetFunction, options: InputOptions | None = None
    ) -> DistributedDataset:
        """Return `distribute_datasets_from_function`, of which this is the deprecated name."""
        warnings.warn(
            "experimental_distribute_datasets_from_function is the deprecated name of "
            "distribute_datasets_from_function",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.distribute_datasets_from_function(dataset_fn, options)

    def _make_input_workers(self) -> InputWorkers:
        """Return the workers: here, each runs functions of the program in its replicas."""
        return InputWorkers.of(self.loops)
