"""A cluster without servers in one process: each replica is a thread with a strategy, a service and heartbeats of its
own, and all share an arena, as the processes of one host do.
"""

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from replica_threads import run_replicas

from dtrain.cluster import ClusterSpec
from dtrain.config import CheckpointSection, ClusterSection, RunSpec, training_section
from dtrain.process.assignment import TaskAssignment
from dtrain.strategies.multi_worker_mirrored.strategy import MultiWorkerMirrored

END_S = 120.0


class ReplicaFleet:
    """A chief and workers."""

    def __init__(
        self, folder: Path, replicas: int, checkpoint: CheckpointSection | None = None, **training: Any
    ) -> None:
        """Begin nothing; `folder` is the run directory, `checkpoint` and `training` are sections of the spec."""
        addresses = [f"127.0.0.1:{port}" for port in range(1, replicas + 1)]  # no port is opened so soon
        self.cluster = ClusterSpec.from_lists(chief=addresses[:1], worker=addresses[1:])
        section = training_section(strategy="multi_worker_mirrored", **training)
        size = ClusterSection(chief=1, worker=replicas - 1)
        self.spec = RunSpec(cluster=size, training=section, checkpoint=checkpoint or CheckpointSection())
        self.folder = folder
        self.run_id = uuid.uuid4().hex

    def strategy(self, rank: int, attempt: int = 0, *, launched: bool = True) -> MultiWorkerMirrored:
        """The strategy of one replica; with `attempt` it replaces earlier processes of its task."""
        task = self.cluster.replicas()[rank]
        fields = {"launched": launched, "attempt": attempt}
        assignment = TaskAssignment(task, self.cluster, self.spec, self.run_id, self.folder, **fields)
        return MultiWorkerMirrored(assignment, self.spec.training)

    def run(
        self,
        build: Callable[[], Any],
        body: Callable[[Any], Any],
        strategies: Sequence[MultiWorkerMirrored] | None = None,
    ) -> list[Any]:
        """Build the model of every replica, in the order of ranks, and run the body on each at once; returns the
        bodies' results. Without `strategies` all replicas are there from the beginning.

        The first error of any replica is raised.
        """
        if strategies is None:
            strategies = [self.strategy(rank) for rank in range(len(self.cluster.replicas()))]
        return run_replicas(strategies, build, body, end_s=END_S)
