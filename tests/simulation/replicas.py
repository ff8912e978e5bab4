"""A simulated chief or worker: the real machines, driven as their drivers drive them, by events instead of threads."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from simulation.data import sums_of
from simulation.disk import Disk
from simulation.epochs import Epochs
from simulation.judge import Judge
from simulation.keeper import Keeper
from simulation.network import Blocks, Network, Wire
from simulation.orders import Commander
from simulation.servers import Server

from dtrain.errors import TooFewReplicasError
from dtrain.messages import AnyMessage, Conclude, Heartbeat, HeartbeatReply, Lookup, NotReady, Push, Reply, Rows, Values, Verdict
from dtrain.protocol.batch_cut import BatchCut
from dtrain.roles.worker.machine import Phase, Replica
from dtrain.roles.worker.row_routes import Piece

BEAT_S = 1.0
LEASE_S = 5.0
RECONNECT_S = 0.05


class Process:
    """One life of the chief or a worker: heartbeats; for each fit the variables (the chief) and training; goodbye.

    Attributes:
        answers: to the chief's heartbeats: what each server said last, and when it was asked.
    """

    def __init__(
        self,
        task: str,
        rank: int,
        servers: Sequence[Server],
        network: Network,
        judges: Sequence[Judge],
        disk: Disk,
        kill: Callable[[Server], None],
    ) -> None:
        self.task = task
        self.rank = rank
        self.servers = servers
        self.network = network
        self.disk = disk
        self.alive = True
        self.finished = False
        self.failure: str | None = None
        self.slowness = 1.0
        self.machine: Replica | None = None
        self.generation = 1
        self.answers: dict[int, tuple[float, HeartbeatReply]] = {}
        self.keeper = Keeper(self) if task == "chief:0" else None
        self.commander = Commander(self) if task == "chief:0" else None
        self.epochs = Epochs(1, judges[0].scenario.steps_per_epoch)
        self._kill = kill
        self._judges = judges
        self._clock = network.clock
        self._paused_until_s = 0.0
        self._unreachable_until_s = 0.0
        self._process = (0, self._clock.now)
        # Larger than that of every process before it, as in the real one.
        self.incarnation = int(self._clock.now * 1000) + 1
        self._asked_s: dict[int, float] = {}
        self._wires: dict[tuple[str, int], Wire | None] = {}
        self._weights: list[Blocks] = [()] * len(servers)
        self._gradient: list[Blocks] = []
        self._ids: dict[str, np.ndarray] = {}
        self._pieces: dict[int, list[Piece]] = {}
        self._rows: dict[int, Blocks] = {}
        self._sequence = 0
        self._overtaken = False  # the servers train the next generation, and this one's last values may never be seen
        self._begun = self._computing = 0  # the steps are numbered; the one under way
        network.say(f"{task} starts")
        for server in range(len(servers) if self.keeper else 1):
            self._beat(server)

    @property
    def judge(self) -> Judge:
        return self._judges[self.generation - 1]

    @property
    def max_steps(self) -> int:
        return self.judge.last_step(self.disk.newest.lineage.first_step if self.disk.newest else 0)

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

    # Connections

    def connect(self, kind: str, server: int) -> Wire | None:
        """A new connection, if the server can be reached."""
        if self._clock.now < self._unreachable_until_s:
            return None
        return self.network.connect(self.task, kind, self.servers[server], self)

    def _wire(self, kind: str, server: int) -> Wire | None:
        if self._wires.get((kind, server)) is None:
            self._wires[kind, server] = self.connect(kind, server)
        return self._wires[kind, server]

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
            self._clock.later(RECONNECT_S, self._beat, server)
        else:
            self._clock.later(RECONNECT_S + self.network.delay_s(), self._reconnect, server)

    def _reconnect(self, server: int) -> None:
        """Open again what broke, and say again what was not answered."""
        if self.not_now(self._reconnect, server) or self._wires.get(("data", server)) is not None:
            return
        if self.servers[server].ended:
            self.stop(None if self.finished else f"ps:{server} is gone")
        elif self._wire("data", server) is None:
            self._clock.later(RECONNECT_S, self._reconnect, server)
        elif self.machine is not None and server in self.machine.unanswered:
            self._say(server, self.machine.unanswered[server])
        elif self._computing and self.network.random.random() < 0.5:
            self._values_broke_off(server)

    def _values_broke_off(self, server: int) -> None:
        """They had not come whole when the step began with them: it is void."""
        assert self.machine is not None
        self._computing, self._pieces = 0, {}
        self._say_all(self.machine.fetch_again(server))

    def answered(self, wire: Wire, message: AnyMessage, blocks: Blocks) -> None:
        if self.not_now(self.answered, wire, message, blocks) or not wire.open:
            return
        server = self.servers.index(wire.server)
        if wire.kind == "heartbeat":
            self._heartbeat_answered(server, message)
        elif wire.kind == "control":
            assert self.keeper is not None
            self.keeper.answered(wire, message, blocks)
        elif wire.kind == "orders":
            assert self.commander is not None
            self.commander.answered(wire, message)
        else:
            self._data_answered(server, message, blocks)

    # Its lease

    def _beat(self, server: int) -> None:
        if self.not_now(self._beat, server):
            return
        wire = self._wire("heartbeat", server)
        if wire is not None:
            self._asked_s[server] = self._clock.now
            self._clock.later(LEASE_S, self._is_silent, wire, server, self._clock.now)
            wire.send(Heartbeat(self._process, self.incarnation))
        elif self.servers[server].ended:
            self.stop(None if self.finished else f"ps:{server} is gone")
        else:
            self._clock.later(RECONNECT_S, self._beat, server)

    def _is_silent(self, wire: Wire, server: int, asked_s: float) -> None:
        """A server that does not answer is asked again on a new connection; the chief has it killed."""
        if self.not_now(self._is_silent, wire, server, asked_s) or not wire.open or self._asked_s[server] != asked_s:
            return
        if self.answers.get(server, (-1.0,))[0] < asked_s:
            if self.keeper is not None:
                self._kill(self.servers[server])
            wire.breaks()

    def _heartbeat_answered(self, server: int, message: AnyMessage) -> None:
        if not isinstance(message, HeartbeatReply):
            self.stop(f"heartbeat: {message}")
            return
        first = len(self.answers) < (len(self.servers) if self.keeper else 1)
        self.answers[server] = self._asked_s[server], message
        self._clock.later(BEAT_S, self._beat, server)
        if server == 0:
            self.incarnation = message.incarnation
        if message.failed:
            self.stop(message.failed)
        elif first and len(self.answers) == (len(self.servers) if self.keeper else 1):
            self._begin_fit()

    # One fit after the other

    def _begin_fit(self) -> None:
        if self.keeper is not None:
            self.keeper.begin()
        else:
            self.train()

    def next_fit(self) -> None:
        """On to the next one, on new connections; after the last one, goodbye."""
        if self.generation == len(self._judges):
            self.finished = True
            if self.keeper is not None:
                self.keeper.farewell()
            else:
                self.leave()
            return
        self.generation, self.machine = self.generation + 1, None
        for server in range(len(self.servers)):
            if (wire := self._wires.pop(("data", server), None)) is not None:
                wire.cut()
        self._begin_fit()

    def leave(self) -> None:
        for (kind, _), wire in self._wires.items():
            if kind == "heartbeat" and wire is not None:
                wire.send(Heartbeat(self._process, self.incarnation, leaving=True))
        self._clock.later(0.2, self._gone)

    def _gone(self) -> None:
        if self.alive and not self.not_now(self._gone):
            self.stop(None)

    # Training

    def train(self) -> None:
        judge, self._overtaken = self.judge, False
        self.epochs = Epochs(self.generation, judge.scenario.steps_per_epoch)
        self.machine = Replica(
            len(self.servers),
            self.generation,
            self.incarnation,
            judge.plan.hash,
            judge.sync,
            trains=self.rank >= 0,
            saves=self.keeper is not None,
            first_judges=not judge.sync and judge.scenario.training.max_staleness is not None,
            sequence=self._sequence,
        )
        for server in range(len(self.servers)):
            if self._wire("data", server) is None:
                self._clock.later(RECONNECT_S, self._reconnect, server)
        self.train_on()

    def train_on(self) -> None:
        """Pull, for the first time or because the servers have gone back."""
        assert self.machine is not None
        self._say_all(self.machine.start())

    def _say_all(self, outgoing: Any) -> None:
        for server, message in outgoing:
            self._say(server, message)

    def _say(self, server: int, message: AnyMessage) -> None:
        wire = self._wires.get(("data", server))
        if wire is not None:
            blocks = self._gradient[server] if isinstance(message, Push) else ()
            if isinstance(message, Lookup):
                blocks = [piece.ids for piece in self._pieces[server]]
            wire.send(message, [block.copy() for block in blocks])

    def _data_answered(self, server: int, message: AnyMessage, blocks: Blocks) -> None:
        assert self.machine is not None
        asked = self.machine.unanswered.get(server)
        if asked is None:
            return
        if isinstance(message, Rows):
            self.judge.check_table(server, self.machine.term, message.version, self._pieces[server], blocks)
            self._rows[server] = blocks
        elif isinstance(message, Values) and message.generation > self.generation:
            self._overtaken = True
        elif blocks:
            self._weights[server] = blocks
        if isinstance(message, Reply) and isinstance(asked, Push):
            self.judge.check_reply(server, self.rank, asked, message)
        if not isinstance(message, NotReady):
            self.network.say(f"{self.task} hears ps:{server} {message}")
        try:
            self._say_all(self.machine.receive(server, message))
        except TooFewReplicasError as error:
            self.stop(str(error))
            return
        if isinstance(message, Conclude):
            self.network.say(f"{self.task} is told {message.rows}")
            self.judge.check_rows(message.rows)
        if not self.machine.unanswered:
            self._settled()

    def _settled(self) -> None:
        machine = self.machine
        assert machine is not None
        self._sequence = machine.sequence
        over = machine.outcome is not None and machine.outcome.verdict is Verdict.FINISHED
        if not (over or self._overtaken):
            assert machine.phase in (Phase.READY, Phase.FINISHED)
            for server, version in enumerate(machine.versions):
                self.judge.check_values(server, machine.term, version, self._weights[server])
            assert not self.judge.sync or len(set(machine.versions)) == 1, f"{self.task} computes from versions {machine.versions}"
        self._account()

    def _account(self) -> None:
        """The leader ends epochs, and goes back to where the servers have gone back."""
        machine = self.machine
        assert machine is not None
        if self.keeper is not None and self.commander is not None and not self._pieces:
            record = self.epochs.next_record(machine)
            if record is not None:
                self.commander.record(record, self._account)
                return
        if machine.phase is Phase.READY and self._pieces and self._rows.keys() == self._pieces.keys():
            self._compute()
        elif machine.phase is Phase.READY and self.commander is not None and self.commander.is_due():
            self.commander.give(self._ordered)
        elif machine.phase is Phase.READY:
            self._go_on()
        elif self.keeper is not None:
            self.judge.check_rows(self.epochs.rows)
            self.keeper.finishing = True
        else:
            self.next_fit()

    def _ordered(self) -> None:
        """The leader may go on; where its permission waited for the order, it asks for it."""
        machine = self.machine
        assert machine is not None
        if machine.held:
            self.train_on()
        else:
            self._go_on()

    def _go_on(self) -> None:
        machine = self.machine
        assert machine is not None
        if machine.trains:
            self._look_up()
        else:
            self._say_all(machine.wait_for(machine.global_step + 1))

    def _look_up(self) -> None:
        """Ask for the rows that this step uses, again if the servers have begun another term meanwhile."""
        machine, model = self.machine, self.judge.model
        assert machine is not None
        self._ids, self._pieces, self._rows = model.chosen_rows(self.network.random), {}, {}
        for piece in (piece for name, ids in self._ids.items() for piece in model.routes.pieces(name, ids)):
            self._pieces.setdefault(piece.server, []).append(piece)
        if self._pieces:
            self._say_all(machine.look_up({server: tuple(p.table for p in pieces) for server, pieces in self._pieces.items()}))
        else:
            self._compute()

    def _compute(self) -> None:
        assert self.machine is not None
        if not self._examples():
            self._pass_over()
            return
        mean_s = self.judge.scenario.compute_s * self.slowness
        self._begun += 1
        self._computing = self._begun
        self._clock.later(mean_s * self.network.random.uniform(0.5, 1.5), self._computed, self.machine, self._begun)

    def _computed(self, machine: Replica, begun: int) -> None:
        if self.not_now(self._computed, machine, begun) or begun != self._computing:
            return
        self._computing = 0
        random, model = self.network.random, self.judge.model
        finite = random.random() >= self.judge.scenario.nan_rate
        sums = sums_of(self.judge.next_number, self._examples())
        outgoing = list(machine.push(finite, examples=self._examples(), empty=self._empty(), sums=sums))
        push = outgoing[0][1]
        assert isinstance(push, Push)
        number = self.judge.pushed(self.rank, push, finite, self._rows_read())
        self._gradient, self._pieces = model.push_blocks(number, self._ids), {}
        if not finite:
            self._gradient[random.randrange(len(self.servers))][0][0] = np.nan
        self._say_all(outgoing)

    def _pass_over(self) -> None:
        """The part has no examples."""
        machine = self.machine
        assert machine is not None
        outgoing = list(machine.push(examples=0, empty=self._empty()))
        push = outgoing[0][1]
        assert isinstance(push, Push)
        self.judge.pushed(self.rank, push, True, {})
        self._gradient, self._pieces = [()] * len(self.servers), {}
        self._say_all(outgoing)

    def _batch(self) -> tuple[BatchCut, int, int]:
        """Of the part that ps:0 has given: how its batch is cut, its place there, and how many rows the batch has."""
        machine, data = self.machine, self.judge.data
        assert machine is not None
        batch, part = divmod(machine.part, machine.parts)
        return BatchCut(machine.parts, data.even), part, data.size(batch)

    def _examples(self) -> int:
        cut, part, size = self._batch()
        return len(cut.rows(part, size))

    def _empty(self) -> int:
        cut, _, size = self._batch()
        return cut.parts - cut.filled(size)

    def _rows_read(self) -> dict[int, np.ndarray]:
        """The rows of the trained table that were looked up, by number."""
        read = {}
        for server, pieces in self._pieces.items():
            shards = self.judge.plan.layout(server).tables
            for piece, block in zip(pieces, self._rows[server], strict=True):
                if (shard := shards[piece.table]).trainable:
                    rows = block.reshape(len(piece.ids), *shard.shape[1:])
                    read |= dict(zip((piece.ids + shard.row_start).tolist(), rows, strict=True))
        return read
