"""A simulated chief or worker: the real machines, driven as their drivers drive them, by events instead of threads."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from simulation.judge import OPTIMIZER, Judge
from simulation.network import Blocks, Network, Wire
from simulation.servers import Server

from dtrain.errors import TooFewReplicasError
from dtrain.learning import optimizers
from dtrain.messages import (
    AnyMessage,
    Farewell,
    Heartbeat,
    HeartbeatReply,
    Initialise,
    Initialised,
    NotReady,
    Push,
    Reply,
    Snapshot,
    SnapshotReply,
    Verdict,
)
from dtrain.roles.chief import Cut
from dtrain.roles.worker import Phase, Replica

BEAT_S = 1.0
RECONNECT_S = 0.05


class Process:
    """One life of the chief or a worker: heartbeats; for each fit the variables (the chief) and training; goodbye."""

    def __init__(self, task: str, rank: int, servers: Sequence[Server], network: Network, judges: Sequence[Judge]) -> None:
        self.task = task
        self.rank = rank
        self.alive = True
        self.finished = False
        self.failure: str | None = None
        self.slowness = 1.0
        self.machine: Replica | None = None
        self._servers = servers
        self._network = network
        self._judges = judges
        self._generation = 1
        self._fitted = False
        self._clock = network.clock
        self._leads = task == "chief:0"
        self._paused_until_s = 0.0
        self._unreachable_until_s = 0.0
        self._process = (0, self._clock.now)
        self._incarnation = 0
        self._wires: dict[tuple[str, int], Wire | None] = {}
        self._weights: list[Blocks] = [()] * len(servers)
        self._gradient: list[Blocks] = []
        self._finite = True
        self._initialised = 0
        self._cut: Cut | None = None
        self._question = Snapshot(0, 0.0)
        self._cut_replies: dict[int, SnapshotReply] = {}
        self._asking = False
        network.say(f"{task} starts")
        self._beat()

    @property
    def _judge(self) -> Judge:
        return self._judges[self._generation - 1]

    # What happens to it

    def crash(self) -> None:
        """Gone, with all its connections."""
        self._network.say(f"{self.task} crashes")
        self.alive = False
        self._hang_up()

    def pause(self, for_s: float) -> None:
        """Stands still; what arrives meanwhile waits."""
        self._network.say(f"{self.task} is paused for {for_s:.3f} s")
        self._paused_until_s = self._clock.now + for_s

    def isolate(self, for_s: float) -> None:
        """Cannot reach anybody."""
        self._network.say(f"{self.task} is cut off for {for_s:.3f} s")
        self._unreachable_until_s = self._clock.now + for_s
        for wire in [wire for wire in self._wires.values() if wire is not None and wire.breakable]:
            wire.breaks()

    def _hang_up(self) -> None:
        for wire in self._wires.values():
            if wire is not None:
                wire.cut()
        self._wires.clear()

    def _stop(self, failure: str | None) -> None:
        self._network.say(f"{self.task} ends {failure or ''}")
        self.alive, self.failure = False, failure
        self._hang_up()

    def _not_now(self, act: Any, *arguments: Any) -> bool:
        """Whether the process stands still; then `act` comes later."""
        if self.alive and self._clock.now < self._paused_until_s:
            self._clock.later(self._paused_until_s - self._clock.now, act, *arguments)
            return True
        return not self.alive

    # Connections

    def _wire(self, kind: str, server: int) -> Wire | None:
        wire = self._wires.get((kind, server))
        if wire is None and self._clock.now >= self._unreachable_until_s:
            wire = self._wires[kind, server] = self._network.connect(self.task, kind, self._servers[server], self)
            if wire is not None:
                # The leader mends its control connections while it asks for checkpoints only.
                wire.breakable = kind != "control" or (self._training and not self.finished)
        return wire

    def broken(self, wire: Wire) -> None:
        kind, server = next(place for place, mine in self._wires.items() if mine is wire)
        self._wires[kind, server] = None
        if kind == "heartbeat":
            self._clock.later(BEAT_S, self._beat)
        elif kind == "control":
            self._clock.later(RECONNECT_S + self._network.delay_s(), self._mend_control, server)
        else:
            self._clock.later(RECONNECT_S + self._network.delay_s(), self._reconnect, server)

    def _reconnect(self, server: int) -> None:
        """Open again what broke, and say again what was not answered."""
        if self._not_now(self._reconnect, server) or self._wires.get(("data", server)) is not None:
            return
        if self._servers[server].ended:
            self._stop(None if self.finished else f"ps:{server} is gone")
        elif self._wire("data", server) is None:
            self._clock.later(RECONNECT_S, self._reconnect, server)
        elif self.machine is not None and server in self.machine.unanswered:
            self._say(server, self.machine.unanswered[server])

    def answered(self, wire: Wire, message: AnyMessage, blocks: Blocks) -> None:
        if self._not_now(self.answered, wire, message, blocks) or not wire.open:
            return
        if wire.kind == "heartbeat":
            self._heartbeat_answered(message)
        elif wire.kind == "control":
            self._control_answered(message, blocks, self._servers.index(wire.server))
        else:
            self._data_answered(self._servers.index(wire.server), message, blocks)

    # Its lease

    def _beat(self) -> None:
        if self._not_now(self._beat):
            return
        wire = self._wire("heartbeat", 0)
        if wire is not None:
            wire.send(Heartbeat(self._process, self._incarnation))
        elif self._servers[0].ended:
            self._stop("ps:0 is gone")
        else:
            self._clock.later(BEAT_S, self._beat)

    def _heartbeat_answered(self, message: AnyMessage) -> None:
        if not isinstance(message, HeartbeatReply):
            self._stop(f"heartbeat: {message}")
            return
        self._clock.later(BEAT_S, self._beat)
        new, self._incarnation = self._incarnation == 0, message.incarnation
        if message.failed:
            self._stop(message.failed)
        elif new and self._leads:
            self._initialise()
        elif new:
            self._train()

    # The chief's part

    def _initialise(self) -> None:
        if self._not_now(self._initialise):
            return
        wires = [self._wire("control", index) for index in range(len(self._servers))]
        if None in wires:
            self._clock.later(RECONNECT_S, self._initialise)
            return
        for index, wire in enumerate(wires):
            assert wire is not None
            training = msgspec.to_builtins(self._judge.scenario.training)
            message = Initialise(
                self._generation,
                self._judge.plan.to_dict(),
                training,
                optimizers.serialize(OPTIMIZER),
                0,
                self._judge.scenario.max_steps,
                directory="d",
            )
            wire.send(message, self._judge.initial(index))

    def _control_answered(self, message: AnyMessage, blocks: Blocks, server: int) -> None:
        if isinstance(message, Initialised):
            self._initialised += 1
            if self._training:
                self._let_control_break(True)
                self._train()
                self._clock.later(self._network.random.uniform(0.1, 2.0), self._ask_for_cut)
        elif isinstance(message, SnapshotReply):
            self._judge.check_values(server, message.version, blocks)
            self._cut_replies[server] = message
            if len(self._cut_replies) == len(self._servers):
                self._judge_cut()
        elif isinstance(message, Farewell):
            self._leave()
        else:
            self._stop(getattr(message, "reason", str(message)))

    def _ask_for_cut(self) -> None:
        """A checkpoint while training goes on, or the final one."""
        if self._not_now(self._ask_for_cut) or self.machine is None or self._asking:
            return
        self._asking = True
        self._cut = self._cut or Cut(self._judge.sync)
        self._question = self._cut.question(self.machine.global_step, self._judge.scenario.max_steps)
        for server in range(len(self._servers)):
            if (wire := self._wires.get(("control", server))) is not None:
                wire.send(self._question)

    def _mend_control(self, server: int) -> None:
        """Open a broken connection again, and repeat the question that was not answered."""
        if self._not_now(self._mend_control, server):
            return
        wire = self._wire("control", server)
        if wire is None:
            self._clock.later(RECONNECT_S, self._mend_control, server)
        elif self._asking and server not in self._cut_replies:
            wire.send(self._question)

    @property
    def _training(self) -> bool:
        return self._initialised == len(self._servers)

    def _let_control_break(self, breakable: bool) -> None:
        for (kind, _), wire in self._wires.items():
            if kind == "control" and wire is not None:
                wire.breakable = breakable

    def _judge_cut(self) -> None:
        assert self._cut is not None
        versions = [self._cut_replies[server].version for server in range(len(self._servers))]
        self._cut_replies, self._asking = {}, False
        accepted = self._cut.accept(versions)
        self._network.say(f"checkpoint of versions {versions}: {accepted}")
        assert self._cut.margin_steps < 2**10, "ten attempts at a checkpoint"
        final = versions[0] == self._judge.scenario.max_steps
        self._cut = None if accepted else self._cut
        if accepted and final and self._fitted:
            self._end_fit()
        elif not accepted or self._fitted:
            self._ask_for_cut()
        else:
            self._clock.later(self._network.random.uniform(0.1, 2.0), self._ask_for_cut)

    def _end_fit(self) -> None:
        """On to the next one, on new connections; after the last one, goodbye."""
        if self._generation == len(self._judges):
            self.finished = True
            if self._leads:
                self._say_farewell()
            else:
                self._leave()
            return
        self._generation, self._fitted, self.machine, self._initialised = self._generation + 1, False, None, 0
        for server in range(len(self._servers)):
            if (wire := self._wires.pop(("data", server), None)) is not None:
                wire.cut()
        if self._leads:
            self._let_control_break(False)
            self._initialise()
        else:
            self._train()

    def _say_farewell(self) -> None:
        self._let_control_break(False)
        wires = [wire for (kind, _), wire in self._wires.items() if kind == "control" and wire is not None]
        for wire in wires:
            wire.send(Farewell())
        if not wires:
            self._leave()

    # Training

    def _train(self) -> None:
        judge = self._judge
        self.machine = Replica(
            len(self._servers), self._generation, self._incarnation, judge.plan.hash, judge.sync, trains=self.rank >= 0
        )
        for server in range(len(self._servers)):
            if self._wire("data", server) is None:
                self._clock.later(RECONNECT_S, self._reconnect, server)
        self._say_all(self.machine.start())

    def _say_all(self, outgoing: Any) -> None:
        for server, message in outgoing:
            self._say(server, message)

    def _say(self, server: int, message: AnyMessage) -> None:
        wire = self._wires.get(("data", server))
        if wire is not None:
            blocks = self._gradient[server] if isinstance(message, Push) else ()
            wire.send(message, [block.copy() for block in blocks])

    def _data_answered(self, server: int, message: AnyMessage, blocks: Blocks) -> None:
        assert self.machine is not None
        asked = self.machine.unanswered.get(server)
        if blocks:
            self._weights[server] = blocks
        if isinstance(message, Reply) and isinstance(asked, Push):
            self._judge.check_reply(server, self.rank, asked, message)
        if not isinstance(message, NotReady):
            self._network.say(f"{self.task} hears ps:{server} {message}")
        try:
            self._say_all(self.machine.receive(server, message))
        except TooFewReplicasError as error:
            self._stop(str(error))
            return
        if not self.machine.unanswered:
            self._settled()

    def _settled(self) -> None:
        assert self.machine is not None
        versions = self.machine.versions
        over = self.machine.outcome is not None and self.machine.outcome.verdict is Verdict.FINISHED
        if not over:
            assert self.machine.phase in (Phase.READY, Phase.FINISHED)
            for server, version in enumerate(versions):
                self._judge.check_values(server, version, self._weights[server])
            assert not self._judge.sync or len(set(versions)) == 1, f"{self.task} computes from versions {versions}"
        if self.machine.phase is Phase.READY:
            mean_s = self._judge.scenario.compute_s * self.slowness
            self._clock.later(mean_s * self._network.random.uniform(0.5, 1.5), self._computed)
        else:
            assert self.machine.phase is Phase.FINISHED
            self._fitted = True
            if self._leads:
                self._ask_for_cut()
            else:
                self._end_fit()

    def _computed(self) -> None:
        if self._not_now(self._computed):
            return
        assert self.machine is not None
        random = self._network.random
        self._finite = random.random() >= self._judge.scenario.nan_rate
        outgoing = list(self.machine.push(self._finite))
        number = self._judge.pushed(self.rank, outgoing[0][1], self._finite)
        self._gradient = [self._judge.gradient(server, number) for server in range(len(self._servers))]
        if not self._finite:
            self._gradient[random.randrange(len(self._servers))][0][0] = np.nan
        self._say_all(outgoing)

    def _leave(self) -> None:
        wire = self._wires.get(("heartbeat", 0))
        if wire is not None:
            wire.send(Heartbeat(self._process, self._incarnation, leaving=True))
        self._clock.later(0.2, self._gone)

    def _gone(self) -> None:
        if self.alive and not self._not_now(self._gone):
            self._stop(None)
