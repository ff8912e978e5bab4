"""How TensorFlow's replicas in one process add up values: names that programs give.

All of them mean the same here: a sum is taken in the order of the replicas, whatever the number of threads.
"""

from typing import Any

from dtrain.errors import SpecError


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
