"""Values of which every replica of this process has its own."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


class DistributedValues:
    """One value for each replica of this process; see `tf.distribute.DistributedValues`.

    Attributes:
        values: by the replicas' order.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self.values = tuple(values)

    def __repr__(self) -> str:
        """Return every replica's value on a line of its own."""
        lines = (f"  {index}: {value!r}" for index, value in enumerate(self.values))
        return f"{type(self).__name__}:{{\n" + ",\n".join(lines) + "\n}"


class PerReplica(DistributedValues):
    """Values that may differ from replica to replica, such as the parts of a batch or what `run` returns."""


class Mirrored(DistributedValues):
    """Values that are equal in all replicas, such as what `extended.reduce_to` returns."""


@dataclass(frozen=True)
class ValueContext:
    """The replica for which `experimental_distribute_values_from_function` asks for a value.

    See `tf.distribute.experimental.ValueContext`.

    Attributes:
        replica_id_in_sync_group: the number of the replica among all.
        num_replicas_in_sync: how many there are.
    """

    replica_id_in_sync_group: int = 0
    num_replicas_in_sync: int = 1
