"""What all tasks of a simulated run know: the cluster and what the program trains on it. A resumed run may
have another one.
"""

from math import ceil

import msgspec
from simulation.data import Cut
from simulation.model import Model, model
from simulation.scenario import Scenario

from dtrain.cluster import ClusterSpec
from dtrain.state.batch_cut import BatchCut


class Setup:
    """A scenario on a cluster of so many replicas and servers; `begun` is the one that the run began with, if it
    is resumed.
    """

    def __init__(self, scenario: Scenario, replicas: int, servers: int, begun: "Setup | None" = None) -> None:
        self.scenario = scenario
        self.training = msgspec.structs.replace(scenario.training, transport="grpc")
        self.replicas = replicas
        self.servers = servers
        self.sync = self.training.updates == "sync"
        self.by_examples = self.sync and self.training.weighting == "examples"
        workers = [f"w:{i}" for i in range(replicas - self.training.chief_trains)]
        self.cluster = ClusterSpec.from_lists(
            chief=["c:0"], worker=workers, ps=[f"p:{i}" for i in range(servers)]
        )
        self.tasks = [str(task) for task in self.cluster.replicas()]
        self.evaluators = int(scenario.evaluation_s is not None)
        self.data = scenario.data
        self.rounds = scenario.rounds
        needed = self.training.replicas_needed(replicas) if self.sync else 1
        self.parts = needed if begun is None else begun.parts
        self.has_backups = self.sync and self.training.has_backups(replicas)
        self.model: Model = model(
            servers, scenario.rows, scenario.shards, scenario.optimizer, self._examples()
        )

    @property
    def batch_cut(self) -> BatchCut:
        """The same as the program's strategy says it."""
        return BatchCut(self.parts, self.has_backups)

    @property
    def cut(self) -> Cut:
        """How batches are cut in a fit that begins with this cluster, also when it is resumed on another one."""
        return Cut(self.data, self.parts, self.has_backups)

    def updates_before(self, fit: int) -> int:
        """How many local steps the optimizer of the program has made before a call of `fit`."""
        rounds = self.rounds
        return 0 if rounds is None else (fit - 1) * rounds.steps_before(self.scenario.max_steps)

    @property
    def by_speed(self) -> bool:
        """Whether replicas share rounds by their speed."""
        return isinstance(getattr(self.training, "local_steps", 1), dict)

    def unit(self, size: int, mine: int) -> float:
        """What one example is in a gradient of a part, so that it moves its element by about one: of a batch, or
        round, of this `size`, of which so many are `mine`.
        """
        if self.by_examples:
            return size / max(1, mine)
        return self.replicas if self.rounds is not None and not self.sync else self.parts

    def _examples(self) -> int:
        """More than are ever computed: some are refused, or come too late."""
        scenario, resume = self.scenario, self.scenario.resume
        most = max(scenario.replicas, resume.replicas if resume else 0) + len(scenario.joins)
        parts = self.training.replicas_needed(scenario.replicas) if self.sync else 1
        batches_a_step = max(1, ceil(most / parts)) * ceil(parts / min(self.data.last_rows, parts))
        batches = scenario.max_steps * (2 + batches_a_step) + 16
        return -(-self.data.first(batches) // 64) * 64
