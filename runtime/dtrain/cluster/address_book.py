"""Where each task serves now. Pure.

A cluster names an address for each of its tasks. One that is started again may serve at another address, and
a worker that joins has none in the cluster. Each entry has a version, and a newer one replaces an older one,
also if the newer one arrives first. The version is the incarnation of the process that serves there
(docs/design/protocol.md#no-silent-wait): the control host gives it, also one that was started again itself.
"""

from collections.abc import Mapping

from dtrain.cluster.spec import ClusterSpec, TaskId
from dtrain.errors import SpecError

Moved = dict[str, tuple[str, int]]
"""By task, the address and the version of each entry that differs from the cluster."""


class AddressBook:
    """The addresses of all tasks, as one task knows them.

    Attributes:
        moved: the entries that differ from the cluster.
        digest: a number that is equal for two tasks which know the same entries; 0 without any.
    """

    def __init__(self, cluster: ClusterSpec) -> None:
        self._cluster = cluster
        self.moved: Moved = {}
        self.digest = 0

    def address(self, task: TaskId) -> str:
        """Return the address of a task, ``host:port``.

        Raises:
            SpecError: neither the cluster nor the control host has named one.
        """
        entry = self.moved.get(str(task))
        address = entry[0] if entry is not None else self._cluster.address(task)
        if address is None:
            raise SpecError(f"{task} cannot be reached: it has no address in the cluster and serves nowhere")
        return address

    def learn(self, task: str, address: str, version: int) -> None:
        """Enter an address, unless a newer one is known."""
        _, known = self.moved.get(task, ("", 0))
        if version > known:
            self.digest += version - known
            self.moved[task] = address, version

    def learn_all(self, moved: Mapping[str, tuple[str, int]]) -> None:
        """Enter what another task knows."""
        for task, (address, version) in moved.items():
            self.learn(task, address, version)
