"""A simulated chief or worker: its life, and its connections."""

from collections.abc import Callable, Sequence

from simulation.clock import Life
from simulation.evaluator import EVALUATOR, Evaluation
from simulation.network import Network, VirtualChannel
from simulation.program import Program
from simulation.servers import Server
from simulation.setup import Setup

from dtrain.cluster import TaskId
from dtrain.errors import DtrainError


class Process:
    """One life of a task.

    Attributes:
        finished: its program has come to its end.
        said_farewell: the servers know of it, if that was the leader's.
        failure: why it has not.
        slowness: factor of what a step takes.
    """

    def __init__(
        self,
        task: str,
        rank: int,
        setup: Setup,
        servers: Sequence[Server],
        network: Network,
        kill: Callable[[Server], None],
    ) -> None:
        self.task = task
        self.rank = rank
        self.setup = setup
        self.servers = servers
        self.network = network
        self.finished = False
        self.said_farewell = False
        self.failure: str | None = None
        self.slowness = 1.0
        self.life = Life(network.clock)
        self._kill = kill
        self._unreachable_until_s = 0.0
        network.say(f"{task} starts")
        self.program = Evaluation(self) if task == EVALUATOR else Program(self)
        if task == "chief:0":
            network.judge.leader_starts()
        self.life.start(self._run)

    @property
    def alive(self) -> bool:
        return self.life.alive

    def _run(self) -> None:
        try:
            self.program.run()
        except DtrainError as error:
            self.stop(str(error))
        else:
            self.stop(None)

    # What happens to it

    def crash(self) -> None:
        """Be gone, with all connections."""
        self.network.say(f"{self.task} crashes")
        self._end()

    def pause(self, for_s: float) -> None:
        """Stand still; what arrives meanwhile waits."""
        self.network.say(f"{self.task} is paused for {for_s:.3f} s")
        self.life.pause(for_s)

    def stick(self, slowness: float) -> None:
        """Compute the next part for ever; heartbeats go on."""
        self.network.say(f"{self.task} is stuck")
        self.slowness = slowness

    def isolate(self, for_s: float) -> None:
        """Reach no task."""
        self.network.say(f"{self.task} is cut off for {for_s:.3f} s")
        self._unreachable_until_s = self.network.clock.now + for_s
        for wire in sorted((wire for wire in self.network.wires if wire.life is self.life), key=repr):
            wire.breaks()

    def stop(self, failure: str | None) -> None:
        """End, perhaps for this reason."""
        self.network.say(f"{self.task} ends {failure or ''}")
        self.failure = failure
        self._end()

    def _end(self) -> None:
        self.life.end()
        self.network.clock.look()
        self.network.hang_up(self.life)

    # Connections

    def connect(self, kind: str, server: TaskId, timeout_s: float) -> VirtualChannel:
        """Open a connection of a kind to a server; raises WaitTimeoutError."""
        target = self.servers[server.index]
        return self.network.connect(self.task, kind, target, self.life, timeout_s, self._is_connected)

    def _is_connected(self) -> bool:
        return self.network.clock.now >= self._unreachable_until_s

    def tell_silent(self, server: int) -> None:
        """A server does not answer heartbeats: the launcher kills it."""
        self._kill(self.servers[server])
