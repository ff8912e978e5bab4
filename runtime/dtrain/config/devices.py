"""`dt.config` as programs of TensorFlow use it: which devices there are, and how many threads compute.

The rest of the package is private.
"""

from typing import NamedTuple

from dtrain.errors import SpecError


class PhysicalDevice(NamedTuple):
    """A device that computes; see `tf.config.PhysicalDevice`."""

    name: str
    device_type: str


def list_physical_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """Return the devices of a kind: the CPU alone, as there are no others; see `tf.config`.

    Args:
        device_type: ``CPU``, ``GPU``, ``TPU``, or None for all.
    """
    return [PhysicalDevice("/physical_device:CPU:0", "CPU")] if device_type in (None, "CPU") else []


list_logical_devices = list_physical_devices


class Threading:
    """How many threads numpy's products take in this process; see `tf.config.threading`."""

    def set_intra_op_parallelism_threads(self, num_threads: int) -> None:
        """Let products take so many threads from now on; 0: as many as the process was given.

        Raises:
            SpecError: it is no whole number of at least 0.
        """
        if isinstance(num_threads, bool) or not isinstance(num_threads, int) or num_threads < 0:
            raise SpecError(f"threads: expected a whole number of at least 0, found {num_threads!r}")
        if num_threads:
            import threadpoolctl

            threadpoolctl.threadpool_limits(num_threads)

    def set_inter_op_parallelism_threads(self, num_threads: int) -> None:
        """Do nothing: a task computes one layer at a time."""


threading = Threading()
