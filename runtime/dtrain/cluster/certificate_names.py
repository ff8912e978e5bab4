"""The names by which a task's certificate says which task it is.

    DNS:dtrain               every certificate of every run: hosts have many names, and none of them counts
    DNS:ps-0.dtrain          the task; a client demands this name of the server that it wants to reach
    URI:dtrain://RUN/ps/0    the run and the task; a server compares it with what its peer says of itself

A worker that joins a running cluster has an index that no certificate can know beforehand: ``joined`` stands
for it. A certificate may name several tasks.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

from dtrain.cluster.spec import Role, TaskId

NETWORK = "dtrain"
SCHEME = "dtrain://"
JOINED = "joined"


def joined_worker() -> str:
    """Return what stands for any worker that joins a running cluster, as `task_name` does for other tasks."""
    return f"{Role.WORKER}-{JOINED}"


def task_name(task: TaskId, joined: bool = False) -> str:
    """Return a task's name in names of files and hosts: ``ps-0``."""
    return joined_worker() if joined else f"{task.role}-{task.index}"


def host_name(name: str) -> str:
    """Return the host name of a task, of which `name` is the `task_name`."""
    return f"{name}.{NETWORK}"


def task_uri(run_id: str, name: str) -> str:
    """Return the URI of a task of a run, of which `name` is the `task_name`."""
    role, _, index = name.partition("-")
    return f"{SCHEME}{quote(run_id, safe='')}/{role}/{index}"


def names_tasks(uris: Iterable[str]) -> bool:
    """Return whether a certificate with these URIs says which task it is; a user's own need not."""
    return any(uri.startswith(SCHEME) for uri in uris)


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
