"""A cluster without servers in one process, whose replicas are on several hosts as far as they know: they share memory
within a host, and have streams between hosts.
"""

import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from replica_fleet import ReplicaFleet

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config.choices import Transport
from dtrain.process.assignment import TaskAssignment
from dtrain.strategies.multi_worker_mirrored.hosts import HostWays
from dtrain.wire.channel import Channel
from dtrain.wire.connecting import Connector


class FleetOfHosts(ReplicaFleet):
    """A chief and workers, at free ports of loopback."""

    def __init__(
        self, patch: pytest.MonkeyPatch, folder: Path, layout: Sequence[int], **training: Any
    ) -> None:
        """Begin nothing; `layout` is the host of each replica. Other arguments as of `ReplicaFleet`."""
        super().__init__(folder, len(layout), **training)
        addresses = free_addresses(len(layout))
        self.cluster = ClusterSpec.from_lists(chief=addresses[:1], worker=addresses[1:])
        host_of = dict(zip(self.cluster.replicas(), layout, strict=True))
        begin = HostWays.__init__

        def begin_there(ways: HostWays, assignment: TaskAssignment, *words: Any) -> None:
            begin(ways, assignment, *words)
            ways.identity = f"host {host_of[assignment.task]}"

        connect = Connector._open

        def connect_there(own: Connector, task: TaskId, timeout_s: float, transport: Transport) -> Channel:
            apart = host_of[task] != host_of[own._assignment.task]
            return connect(own, task, timeout_s, Transport.GRPC if apart else transport)

        patch.setattr(HostWays, "__init__", begin_there)
        patch.setattr(Connector, "_open", connect_there)
        patch.setattr(TaskAssignment, "on_one_host", False)


def free_addresses(count: int) -> list[str]:
    """Return addresses of loopback of which the ports are free just now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
