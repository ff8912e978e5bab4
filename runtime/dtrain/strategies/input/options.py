"""How a dataset of a program is brought to replicas. Source: `tf.distribute.InputOptions`."""

from dataclasses import dataclass
from enum import StrEnum

from dtrain.errors import InputError, NotSupportedError


class InputReplicationMode(StrEnum):
    """The readers of the datasets that `distribute_datasets_from_function` makes.

    Attributes:
        PER_WORKER: each process once; its replicas share the dataset, and get its batches in turn.
        PER_REPLICA: each replica; it reads all batches of its own dataset.
    """

    PER_WORKER = "PER_WORKER"
    PER_REPLICA = "PER_REPLICA"


@dataclass(frozen=True)
class InputOptions:
    """Options of one distributed dataset.

    Attributes:
        experimental_fetch_to_device: has no effect: there are only CPUs. None means True.
        experimental_replication_mode: see `InputReplicationMode`.
        experimental_place_dataset_on_device: has no effect, but is checked as TensorFlow does.
        experimental_per_replica_buffer_size: has no effect: batches are computed when they are asked for.
    """

    experimental_fetch_to_device: bool | None = None
    experimental_replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER
    experimental_place_dataset_on_device: bool = False
    experimental_per_replica_buffer_size: int = 1

    def check_for_dataset(self) -> None:
        """Check that they fit `experimental_distribute_dataset`.

        Raises:
            NotSupportedError: a pipeline for each replica is asked for.
        """
        if self.experimental_replication_mode is InputReplicationMode.PER_REPLICA:
            raise NotSupportedError(
                "experimental_distribute_dataset: InputReplicationMode.PER_REPLICA needs a dataset for each "
                "replica; make them by distribute_datasets_from_function"
            )

    def check_for_function(self) -> None:
        """Check that they fit `distribute_datasets_from_function`.

        Raises:
            InputError: `experimental_place_dataset_on_device` without its conditions.
        """
        if not self.experimental_place_dataset_on_device:
            return
        if self.experimental_replication_mode is not InputReplicationMode.PER_REPLICA:
            raise InputError(
                "distribute_datasets_from_function: experimental_place_dataset_on_device=True expects "
                f"InputReplicationMode.PER_REPLICA, found {self.experimental_replication_mode}"
            )
        if self.experimental_fetch_to_device is not False:
            raise InputError(
                "distribute_datasets_from_function: experimental_place_dataset_on_device=True with "
                "InputReplicationMode.PER_REPLICA expects experimental_fetch_to_device=False"
            )


def given_options(options: object, who: str) -> InputOptions | None:
    """Return the options that a program has given; None: it has given none.

    Raises:
        InputError: they are something else.
    """
    if options is None or isinstance(options, InputOptions):
        return options
    raise InputError(f"{who}: options: expected dt.distribute.InputOptions, found {type(options).__name__}")
