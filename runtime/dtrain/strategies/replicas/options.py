"""Options that programs give to strategies and to single calls; names and defaults are `tf.distribute`'s.

Every `CrossDeviceOps` means the same here: a sum is taken in the order of the replicas, whatever the number
of threads.
"""

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from dtrain.errors import InputError, NotSupportedError, SpecError


class CommunicationImplementation(StrEnum):
    """The algorithm that TensorFlow would use; here the size and the topology decide."""

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"

    @classmethod
    def _missing_(cls, value: object) -> "CommunicationImplementation | None":
        """Return the member of a name in any case of letters; None if there is none."""
        names = {each.value: each for each in cls}
        return names.get(value.upper()) if isinstance(value, str) else None


@dataclass(frozen=True)
class CommunicationOptions:
    """Options of a collective call; see `tf.distribute.experimental.CommunicationOptions`.

    Attributes:
        bytes_per_pack: has no effect: nothing is packed.
        timeout_seconds: after so long a wait for another replica raises; None: after `DEADLINE_S`.
        implementation: has no effect; text is taken in any case of letters.

    Raises:
        SpecError: the number of bytes is negative, or there is no such implementation.
    """

    bytes_per_pack: int = 0
    timeout_seconds: float | None = None
    implementation: CommunicationImplementation | str = CommunicationImplementation.AUTO

    def __post_init__(self) -> None:
        """Check the values as TensorFlow does, which takes any timeout."""
        if self.bytes_per_pack < 0:
            raise SpecError(
                f"CommunicationOptions: expected bytes_per_pack >= 0, found {self.bytes_per_pack}"
            )
        try:
            object.__setattr__(self, "implementation", CommunicationImplementation(self.implementation))
        except ValueError:
            names = ", ".join(CommunicationImplementation)
            raise SpecError(
                f"CommunicationOptions: expected an implementation of {names}, found {self.implementation!r}"
            ) from None

    def merge(self, other: "CommunicationOptions | None") -> "CommunicationOptions":
        """Return the same options, with those that `other` sets to anything but their defaults."""
        unset = CommunicationOptions()
        given = {} if other is None else {field.name: getattr(other, field.name) for field in fields(other)}
        return replace(
            self, **{name: value for name, value in given.items() if value != getattr(unset, name)}
        )


@dataclass(frozen=True)
class RunOptions:
    """Options of `Strategy.run`, which have no effect here; see `tf.distribute.RunOptions`.

    Args:
        experimental_enable_dynamic_batch_size: without effect.
        experimental_bucketizing_dynamic_shape: without effect.
    """

    experimental_enable_dynamic_batch_size: bool = True
    experimental_bucketizing_dynamic_shape: bool = False


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
    """Return the options that a program has given, or None; raise an `InputError` for something else."""
    if options is None or isinstance(options, InputOptions):
        return options
    raise InputError(f"{who}: options: expected dt.distribute.InputOptions, found {type(options).__name__}")


class CrossDeviceOps:
    """Base of all; see `tf.distribute.CrossDeviceOps`."""


class ReductionToOneDevice(CrossDeviceOps):
    """See `tf.distribute.ReductionToOneDevice`.

    Args:
        reduce_to_device: of no effect.
        accumulation_fn: of no effect.
    """

    def __init__(self, reduce_to_device: Any = None, accumulation_fn: Any = None) -> None:
        self.reduce_to_device = reduce_to_device
        self.accumulation_fn = accumulation_fn


class _Packed(CrossDeviceOps):
    """Base of those that join small values before they are sent, which nothing here needs.

    Args:
        num_packs: without effect.

    Raises:
        SpecError: `num_packs` is negative.
    """

    def __init__(self, num_packs: int = 1) -> None:
        if num_packs < 0:
            raise SpecError(f"{type(self).__name__}: expected num_packs >= 0, found {num_packs}")
        self.num_packs = num_packs


class HierarchicalCopyAllReduce(_Packed):
    """See `tf.distribute.HierarchicalCopyAllReduce`.

    Args:
        num_packs: without effect.
    """


class NcclAllReduce(_Packed):
    """See `tf.distribute.NcclAllReduce`; here a name alone, as `CommunicationImplementation.NCCL` is.

    Args:
        num_packs: without effect.
    """
