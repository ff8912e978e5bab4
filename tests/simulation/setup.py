"""What all tasks of a simulated run know: the cluster and what the program trains on it. A resumed run may
have another one.
"""

from math import ceil

from simulation.data import Cut
from simulation.model import Model, model
from simulation.scenario import Scenario

from dtrain.cluster import ClusterSpec


class Setup:
    """A scenario on a cluster of so many replicas and servers."""

    def __init__(self, scenario: Scenario, replicas: int, servers: int) -> None:
        self.scenario = scenario
        self.training = scenario.training
        self.replicas = replicas
        self.servers = servers
        self.sync = self.training.updates == "sync"
        self.by_examples = self.training.weighting == "examples"
        workers = [f"w:{i}" for i in range(replicas - self.training.chief_trains)]
        self.cluster = ClusterSpec.from_lists(
            chief=["c:0"], worker=workers, ps=[f"p:{i}" for i in range(servers)]
        )
        self.tasks = [str(task) for task in self.cluster.replicas()]
        self.data = scenario.data
        self.has_backups = self.sync and self.training.has_backups(replicas)
        self.model: Model = model(
            servers, scenario.rows, scenario.shards, scenario.optimizer, self._examples()
        )

    @property
    def parts(self) -> int:
        """N0, if a fit begins with this cluster."""
        return self.training.replicas_needed(self.replicas) if self.sync else 1

    def cut(self, parts: int) -> Cut:
        """How this cluster cuts batches into so many parts."""
        return Cut(self.data, parts, self.has_backups)

    def _examples(self) -> int:
        """More than are ever computed: some are refused, or come too late."""
        scenario, resume = self.scenario, self.scenario.resume
        most = max(scenario.replicas, resume.replicas if resume else 0) + len(scenario.joins)
        parts = self.training.replicas_needed(scenario.replicas) if self.sync else 1
        batches_a_step = max(1, ceil(most / parts)) * ceil(parts / min(self.data.last_rows, parts))
        batches = scenario.max_steps * (2 + batches_a_step) + 16
        return -(-self.data.first(batches) // 64) * 64
