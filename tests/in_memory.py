"""A whole cluster in one process: everything that is shipped, but for the sockets, which `dtrain.wire.channel`
replaces.

Every replica runs the program's body in a thread of its own; servers answer in the thread of the caller. No
lease runs out, because time is never told to the servers: that is for tests of what training computes.
"""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from replica_threads import run_replicas

from dtrain.cluster import AddressBook, ClusterSpec, Role, TaskId
from dtrain.config import CheckpointSection, ClusterSection, RunSpec, SimulateSection, training_section
from dtrain.errors import PeerLostError, PeerRefusedError
from dtrain.messages import AnyMessage
from dtrain.parameters.shared_buffers import ReadBufferAllocator
from dtrain.process.assignment import TaskAssignment
from dtrain.roles.parameter_server.driver import ServerHandler
from dtrain.roles.parameter_server.machine import ParameterServer
from dtrain.runs.reporting import Reporter
from dtrain.strategies.parameter_server.strategy import ServersStrategy
from dtrain.wire.channel import Caller, Channel, MemoryChannel
from dtrain.wire.connecting import Connector
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.slow_link import through_link

END_S = 240.0


def step_in_work(step: Any) -> int:
    """The global step that a `TrainingStep` of any strategy starts from."""
    replica = step._replica
    return (replica.training if hasattr(replica, "training") else replica._machine).global_step


class Connection(MemoryChannel):
    """Leaves it to `receive` to say that it is gone, as those through sockets do."""

    def send(self, message: AnyMessage, blocks: Sequence[Any] = ()) -> None:
        """See `Channel.send`."""
        with contextlib.suppress(PeerLostError):
            super().send(message, blocks)


class InMemoryConnector(Connector):
    """Opens connections that stay in this process."""

    def __init__(
        self,
        assignment: TaskAssignment,
        credentials: Credentials,
        cluster: "InMemoryCluster",
        book: AddressBook,
    ) -> None:
        super().__init__(assignment, credentials, lambda *_: None, "auto", book)
        self._cluster = cluster

    def _open(self, task: TaskId, timeout_s: float, transport: str) -> Channel:
        channel = self._cluster.connect(task.index, self._assignment)
        return through_link(channel, self._assignment.spec.simulate, str(self._assignment.task))


class Joined(ServersStrategy):
    """A strategy whose connections stay in this process."""

    def __init__(self, assignment: TaskAssignment, cluster: "InMemoryCluster") -> None:
        self._cluster = cluster
        super().__init__(assignment)

    def _connect_by(self, book: AddressBook) -> Connector:
        return InMemoryConnector(self.assignment, self._task.credentials, self._cluster, book)


class InMemoryCluster:
    """A chief, workers and servers."""

    def __init__(
        self,
        folder: Path,
        replicas: int,
        servers: int = 1,
        checkpoint: CheckpointSection | None = None,
        simulate: SimulateSection | None = None,
        **training: Any,
    ) -> None:
        """Start the servers; `folder` is the leader's run directory, `checkpoint`, `simulate` and `training` are sections
        of the spec.
        """
        names = {
            "chief": ["c:0"],
            "worker": [f"w:{i}" for i in range(replicas - 1)],
            "ps": [f"p:{i}" for i in range(servers)],
        }
        self.folder = folder
        self.cluster = ClusterSpec.from_lists(**names)
        section = ClusterSection(chief=1, worker=replicas - 1, ps=servers)
        trains = training_section(**{"updates": "sync", **training})
        self.spec = RunSpec(
            cluster=section,
            training=trains,
            checkpoint=checkpoint or CheckpointSection(),
            simulate=simulate or SimulateSection(),
        )
        self.servers: list[ServerHandler] = []
        self._channels: list[Connection] = []
        self._given_up: str | None = None
        for index in range(servers):
            self.servers.append(self._server(index))

    def _server(self, index: int) -> ServerHandler:
        assignment = self._assignment(TaskId(Role.PS, index))
        callers: set[Caller] = set()
        allocator = ReadBufferAllocator(callers)
        machine = ParameterServer(index, self.cluster, self.spec.training, 0.0, allocator=allocator)
        host = self.cluster.control_host.index
        to_host = None if index == host else lambda timeout_s: self.connect(host, assignment)
        return ServerHandler(
            machine, assignment.hello(), Reporter(assignment), callers=callers, to_host=to_host
        )

    def restart_server(self, index: int) -> None:
        """Let a server die with all that it held, and start it again."""
        dead, self.servers[index] = self.servers[index], self._server(index)
        dead.ended.set()
        dead.close()
        for channel in self._channels:
            if channel.peer == f"ps:{index}":
                channel.abort(f"ps:{index} has died")

    def _assignment(self, task: TaskId) -> TaskAssignment:
        folder = self.folder if task == self.cluster.leader else None
        return TaskAssignment(task, self.cluster, self.spec, "in-memory", folder, launched=True)

    def connect(self, server: int, assignment: TaskAssignment) -> Connection:
        """Open a connection of a task to a server.

        Raises:
            PeerRefusedError: a replica has failed.
        """
        if self._given_up is not None:
            raise PeerRefusedError(self._given_up)
        channel = Connection(f"ps:{server}", self.servers[server], assignment.hello())
        self._channels.append(channel)
        return channel

    def run(self, build: Callable[[], Any], body: Callable[[Any], Any]) -> list[Any]:
        """Build the model of every replica, in the order of ranks, and run the body on each at once; returns
        the bodies' results.

        The first error of any replica ends all, and is raised.
        """
        strategies = [Joined(self._assignment(task), self) for task in self.cluster.replicas()]
        return run_replicas(strategies, build, body, end_s=END_S, on_error=self._give_up, at_end=self._close)

    def _give_up(self, reason: str) -> None:
        self._given_up = reason
        for channel in self._channels:
            channel.abort(reason)

    def _close(self) -> None:
        for server in self.servers:
            server.ended.set()
            server.close()
            server.reporter.close()
        self._give_up("the cluster has ended")
