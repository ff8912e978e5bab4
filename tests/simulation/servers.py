"""A simulated parameter server: the real machine, driven as its driver drives it, by events instead of
threads.
"""

from copy import deepcopy
from typing import Any

from simulation.network import Blocks, Network, Wire
from simulation.setup import Setup

from dtrain.cluster import TaskId
from dtrain.messages import AnyMessage, Conclude, Heartbeat, Recorded, SnapshotReply
from dtrain.roles.parameter_server.actions import End, Report, Send
from dtrain.roles.parameter_server.machine import ParameterServer

TICK_S = 0.5
RECONNECT_S = 0.05


class Server:
    """A parameter server; all but the first follow the first one's decisions over two connections.

    Attributes:
        ended: it is not there any more, for good.
        life: how often it was started; between two lives it is `down`.
    """

    def __init__(self, index: int, setup: Setup, network: Network, first: "Server | None") -> None:
        self.name = f"ps:{index}"
        self.ended = False
        self.down = False
        self.life = 0
        self.index = index
        self._setup = setup
        self._stalled_until_s = 0.0
        self._network = network
        self._callers: set[Wire] = set()
        self._first = first
        self._commits: Wire | None = None
        self._reports: Wire | None = None
        self._begin()

    def _begin(self) -> None:
        self.machine = ParameterServer(
            self.index, self._setup.cluster, self._setup.training, self._network.clock.now
        )
        self._network.clock.later(TICK_S, self._tick, self.life)
        if self._first is not None:
            self._follow(self.life)

    def stall(self, for_s: float) -> None:
        """Stands still; what arrives meanwhile waits."""
        self._network.say(f"{self.name} stalls for {for_s:.3f} s")
        self._stalled_until_s = max(self._stalled_until_s, self._network.clock.now + for_s)

    def crash(self, restart_s: float) -> None:
        """Gone with everything that it held, and started again later."""
        if self.down or self.ended:
            return
        self._network.say(f"{self.name} crashes")
        self.down, self.life, self._stalled_until_s = True, self.life + 1, 0.0
        self._callers.clear()
        for mine in (self._commits, self._reports):
            if mine is not None:
                mine.cut()
        self._commits = self._reports = None
        for wire in sorted((wire for wire in self._network.wires if wire.server is self), key=repr):
            wire.breaks()
        self._network.clock.later(restart_s, self._start_again)

    def end(self) -> None:
        """Gone for good."""
        self.ended, self.life = True, self.life + 1

    def _start_again(self) -> None:
        if self.ended:
            return
        self._network.say(f"{self.name} starts again")
        self.down = False
        self._begin()

    def _not_now(self, life: int, act: Any, *arguments: Any) -> bool:
        """Whether the server stands still; then `act` comes later. What was meant for an earlier life is
        lost.
        """
        if self.ended or life != self.life:
            return True
        wait_s = self._stalled_until_s - self._network.clock.now
        if wait_s > 0:
            self._network.clock.later(wait_s, act, *arguments)
        return wait_s > 0

    def heard(self, wire: Wire, message: AnyMessage, blocks: Blocks) -> None:
        if self._not_now(wire.server_life, self.heard, wire, message, blocks):
            return
        self._callers.add(wire)
        if not isinstance(message, Heartbeat):
            self._network.say(f"{wire} {message}")
        sender = TaskId.parse(wire.task)
        self._carry_out(self.machine.receive(wire, sender, message, blocks, self._network.clock.now))

    def hung_up(self, wire: Wire) -> None:
        if self._not_now(wire.server_life, self.hung_up, wire):
            return
        self._callers.discard(wire)
        self.machine.disconnected(wire)

    def _tick(self, life: int) -> None:
        if self._not_now(life, self._tick, life):
            return
        self._carry_out(self.machine.tick(self._network.clock.now, self._connections()))
        self._network.clock.later(TICK_S, self._tick, life)

    def _connections(self) -> int:
        """As `Attendance.end` counts them."""
        return sum(not wire.task.startswith("ps") for wire in self._callers) + (self._commits is not None)

    def _carry_out(self, actions: Any) -> None:
        for action in actions:
            match action:
                case Send(wire, message, blocks):
                    assert isinstance(wire, Wire)
                    if isinstance(message, SnapshotReply | Recorded | Conclude):
                        message = deepcopy(message)  # it travels as it is now
                    wire.answer(message, [block.copy() for block in blocks])
                case Report(message):
                    if self._reports is not None:
                        self._reports.send(message)
                case End(failed):
                    assert "cannot follow" not in (failed or ""), failed
                    self._network.say(f"{self.name} ends")
                    self.ended = True
                    for wire in [wire for wire in self._network.wires if wire.server is self]:
                        wire.breaks()

    # The way to ps:0

    def _follow(self, life: int) -> None:
        assert self._first is not None
        if self.ended or life != self.life:
            return
        self._commits = self._network.connect(self.name, "commits", self._first, self)
        self._reports = self._network.connect(self.name, "reports", self._first, self)
        if self._commits is None or self._reports is None:
            if not self._first.ended:
                self._network.clock.later(RECONNECT_S, self._follow, life)
            return
        subscription, held = self.machine.position()
        self._commits.send(subscription)
        for report in held:
            self._reports.send(report)

    def answered(self, wire: Wire, message: AnyMessage, blocks: Blocks) -> None:
        if not self._not_now(self.life, self.answered, wire, message, blocks) and wire is self._commits:
            self._network.say(f"{self.name} hears {message}")
            self._carry_out(
                self.machine.receive(None, TaskId.parse("ps:0"), message, (), self._network.clock.now)
            )

    def broken(self, wire: Wire) -> None:
        for mine in (self._commits, self._reports):
            if mine is not None:
                mine.cut()
        self._commits = self._reports = None
        self._network.clock.later(RECONNECT_S + self._network.delay_s(), self._follow, self.life)
