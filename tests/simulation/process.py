"""A simulated chief or worker: its life, its connections, and one call of `fit` after the other."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simulation.disk import Disk
from simulation.keeper import Keeper
from simulation.lease import RECONNECT_S, Lease
from simulation.network import Blocks, Network, Wire
from simulation.orders import Commander
from simulation.servers import Server
from simulation.setup import Setup
from simulation.training import Trainee

from dtrain.messages import AnyMessage, HeartbeatReply, Row
from dtrain.roles.worker.machine import Replica


class Process:
    """One life of a task: heartbeats; for each fit the variables (the chief) and training; goodbye."""

    def __init__(
        self,
        task: str,
        rank: int,
        setup: Setup,
        servers: Sequence[Server],
        network: Network,
        disk: Disk,
        kill: Callable[[Server], None],
    ) -> None:
        self.task = task
        self.rank = rank
        self.setup = setup
        self.servers = servers
        self.network = network
        self.disk = disk
        self.alive = True
        self.finished = False
        self.failure: str | None = None
        self.slowness = 1.0
        self.generation = 1
        leads = task == "chief:0"
        self.keeper = Keeper(self) if leads else None
        self.commander = Commander(self) if leads else None
        self.lease = Lease(self, len(servers) if leads else 1)
        self.trainee = Trainee(self)
        self._kill = kill
        self._clock = network.clock
        self._paused_until_s = 0.0
        self._unreachable_until_s = 0.0
        self._wires: dict[tuple[str, int], Wire | None] = {}
        network.say(f"{task} starts")
        if leads:
            network.judge.leader_starts()
        self.lease.begin()

    @property
    def machine(self) -> Replica | None:
        return self.trainee.machine

    @property
    def answers(self) -> Mapping[int, tuple[float, HeartbeatReply]]:
        return self.lease.answers

    @property
    def incarnation(self) -> int:
        return self.lease.incarnation

    @property
    def max_steps(self) -> int:
        """Where this call of `fit` ends."""
        newest = self.disk.newest
        return (newest.lineage.first_step if newest else 0) + self.setup.scenario.max_steps

    # What happens to it

    def crash(self) -> None:
        """Gone, with all its connections."""
        self.network.say(f"{self.task} crashes")
        self.alive = False
        self._hang_up()

    def pause(self, for_s: float) -> None:
        """Stands still; what arrives meanwhile waits."""
        self.network.say(f"{self.task} is paused for {for_s:.3f} s")
        self._paused_until_s = self._clock.now + for_s

    def isolate(self, for_s: float) -> None:
        """Cannot reach anybody."""
        self.network.say(f"{self.task} is cut off for {for_s:.3f} s")
        self._unreachable_until_s = self._clock.now + for_s
        for wire in sorted((wire for wire in self.network.wires if wire.client is self), key=repr):
            wire.breaks()

    def stop(self, failure: str | None) -> None:
        self.network.say(f"{self.task} ends {failure or ''}")
        self.alive, self.failure = False, failure
        self._hang_up()

    def _hang_up(self) -> None:
        for wire in self._wires.values():
            if wire is not None:
                wire.cut()
        self._wires.clear()
        if self.keeper is not None:
            self.keeper.hang_up()
        if self.commander is not None:
            self.commander.hang_up()

    def not_now(self, act: Any, *arguments: Any) -> bool:
        """Whether the process stands still; then `act` comes later."""
        if self.alive and self._clock.now < self._paused_until_s:
            self._clock.later(self._paused_until_s - self._clock.now, act, *arguments)
            return True
        return not self.alive

    def tell_silent(self, server: int) -> None:
        """A server does not answer heartbeats: the chief has it killed."""
        if self.keeper is not None:
            self._kill(self.servers[server])

    # Connections

    def connect(self, kind: str, server: int) -> Wire | None:
        """A new connection, if the server can be reached."""
        if self._clock.now < self._unreachable_until_s:
            return None
        return self.network.connect(self.task, kind, self.servers[server], self)

    def wire(self, kind: str, server: int) -> Wire | None:
        """The connection of a kind, opened again if that is needed and possible."""
        if self._wires.get((kind, server)) is None:
            self._wires[kind, server] = self.connect(kind, server)
        return self._wires[kind, server]

    def open_wire(self, kind: str, server: int) -> Wire | None:
        """The connection of a kind, if it is open."""
        return self._wires.get((kind, server))

    def broken(self, wire: Wire) -> None:
        if wire.kind == "control":
            assert self.keeper is not None
            self.keeper.broken(wire)
            return
        if wire.kind == "orders":
            assert self.commander is not None
            self.commander.broken(wire)
            return
        kind, server = next(place for place, mine in self._wires.items() if mine is wire)
        self._wires[kind, server] = None
        if kind == "heartbeat":
            self._clock.later(RECONNECT_S, self.lease.beat, server)
        else:
            self.trainee.reconnect_later(server)

    def answered(self, wire: Wire, message: AnyMessage, blocks: Blocks) -> None:
        if self.not_now(self.answered, wire, message, blocks) or not wire.open:
            return
        server = self.servers.index(wire.server)
        if wire.kind == "heartbeat":
            self.lease.answered(server, message)
        elif wire.kind == "control":
            assert self.keeper is not None
            self.keeper.answered(wire, message, blocks)
        elif wire.kind == "orders":
            assert self.commander is not None
            self.commander.answered(wire, message)
        else:
            self.trainee.answered(server, message, blocks)

    # One fit after the other

    def begin_fit(self) -> None:
        if self.keeper is not None:
            self.keeper.begin()
        else:
            self.trainee.begin()

    def fit_returns(self, rows: Mapping[int, Row]) -> None:
        """The program has these numbers of epochs, and goes on when the last step is saved."""
        self.network.judge.printed(self.task, self.generation, rows)

    def next_fit(self) -> None:
        """On to the next one, on new connections; after the last one, goodbye."""
        if self.generation == self.setup.scenario.fits:
            self.finished = True
            if self.keeper is not None:
                self.keeper.farewell()
            else:
                self.leave()
            return
        self.generation, self.trainee.machine = self.generation + 1, None
        for server in range(len(self.servers)):
            if (wire := self._wires.pop(("data", server), None)) is not None:
                wire.cut()
        self.begin_fit()

    def leave(self) -> None:
        for (kind, _), wire in self._wires.items():
            if kind == "heartbeat" and wire is not None:
                self.lease.leave(wire)
        self._clock.later(0.2, self._gone)

    def _gone(self) -> None:
        if self.alive and not self.not_now(self._gone):
            self.stop(None)
