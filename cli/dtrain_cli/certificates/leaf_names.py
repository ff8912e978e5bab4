"""The names that a task's certificate carries."""

from dataclasses import dataclass

from dtrain.cluster.certificate_names import NETWORK, host_name, task_uri


@dataclass(frozen=True)
class LeafNames:
    """The names in a leaf.

    Attributes:
        task: as `dtrain.cluster.certificate_names.task_name` returns it: ``worker-0``.
        hosts: its DNS names.
        uri: its URI.
    """

    task: str
    hosts: tuple[str, ...]
    uri: str

    @classmethod
    def of(cls, run_id: str, name: str) -> "LeafNames":
        """Return the names of a task of a run."""
        return cls(name, (NETWORK, host_name(name)), task_uri(run_id, name))
