"""The other replicas of a run, outside of a step: connections to them, and how far each of them is."""

from collections.abc import Collection

from dtrain.cluster import TaskId
from dtrain.process.clock import SYSTEM
from dtrain.runs.states import TaskState
from dtrain.strategies.in_cluster.cluster_task import ClusterTask
from dtrain.strategies.multi_worker_mirrored.beginning.meanwhile import Meanwhile, meanwhile
from dtrain.strategies.multi_worker_mirrored.hosting import Hosting
from dtrain.strategies.multi_worker_mirrored.opening import SOCKET_ALONE, task_of
from dtrain.wire.channel import Channel
from dtrain.wire.connector import Connector
from dtrain.wire.one_host.local import is_served

_LOOK_S = 0.1


class OtherReplicas:
    """All replicas of a run but one.

    Attributes:
        hosting: the service of that one, once it serves.
    """

    def __init__(self, task: ClusterTask, connector: Connector) -> None:
        """Ask nobody yet.

        Args:
            task: of this replica.
            connector: opens connections.
        """
        self.hosting: Hosting | None = None
        self._task = task
        self._connector = connector
        self._ranks = frozenset(range(task.context.num_replicas)) - {task.context.rank}

    def name_of(self, rank: int) -> str:
        """Return the task of a rank, also of a worker that has joined."""
        return str(task_of(self._task.assignment.cluster, rank))

    def connect(self, rank: int, timeout_s: float) -> Channel:
        """Open a connection to the replica of a rank, by which memory can be shared on one host.

        Raises:
            PeerError: it cannot be reached within `timeout_s`, or refuses.
        """
        cluster = self._task.assignment.cluster
        task = task_of(cluster, rank)
        if task not in cluster:  # it has joined, and serves at its socket
            self._connector.book.learn(str(task), SOCKET_ALONE, 1)
        return self.connect_task(task, timeout_s)

    def connect_task(self, task: TaskId, timeout_s: float) -> Channel:
        """Do the same for a task."""
        assert self.hosting is not None, "a replica serves"
        return self.hosting.sharing(self._connector.connect(task, timeout_s), task)

    def lost(self) -> set[int]:
        """Return the ranks that were lost for good; none where no launcher of this host says so.

        One that has come to a good end is not: what it has trained is over, and nothing begins anew.
        """
        return self._in_state(TaskState.FAILED, TaskState.STOPPED)

    def succeeded(self) -> set[int]:
        """Return the ranks that have come to a good end; none where no launcher of this host says so."""
        return self._in_state(TaskState.SUCCEEDED)

    def gone(self) -> set[int]:
        """Return the ranks that were lost for good, or that this replica, which leads, knows to be gone."""
        assert self.hosting is not None, "a leader serves"
        return self.hosting.gone() | self.lost()

    def _in_state(self, *states: TaskState) -> set[int]:
        """Return the ranks that are in one of these states; see `ClusterTask.tasks_in`."""
        tasks = self._task.tasks_in(*states)
        return {rank for rank in self._ranks if self.name_of(rank) in tasks}

    def ask(self, ranks: Collection[int]) -> Meanwhile:
        """Return what the replicas of these ranks do."""
        return meanwhile(self.connect, sorted(ranks), self._task.context.rank, self._may_live)

    def ask_all(self, patience_s: float, *, waits: bool = False) -> Meanwhile:
        """Return what all do that are not lost; on this host, or with `waits`, the silent are waited for."""
        others = self._ranks - self.lost()
        found = self.ask(others)
        until_s = SYSTEM.now() + patience_s
        while (self._on_this_host or waits) and found.silent and SYSTEM.now() < until_s:
            self._task.reporter.waiting(", ".join(map(self.name_of, sorted(found.silent))))
            SYSTEM.sleep(_LOOK_S)
            found = self.ask(others)
        return found

    @property
    def _on_this_host(self) -> bool:
        return self.hosting is not None and self.hosting.on_this_host

    def _may_live(self, rank: int) -> bool:
        """Return whether one that does not answer may live. On this host one that is gone does not listen."""
        return not self._on_this_host or is_served(self.name_of(rank), self._task.credentials)
