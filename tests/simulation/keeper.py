"""The simulated leader's other half: the machines of `chief` and `recovery`, driven as the real `Keeper`
drives them, by events.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from simulation.disk import Saved
from simulation.network import Blocks, Wire

from dtrain.learning import optimizers
from dtrain.messages import (
    AnyMessage,
    Conclude,
    Farewell,
    Initialise,
    Initialised,
    Lineage,
    Loaded,
    Marked,
    Row,
    Rows,
    Snapshot,
    SnapshotReply,
    SnapshotRows,
)
from dtrain.protocol.applied_batches import Contents, lacking
from dtrain.protocol.part_dealer import Dealt
from dtrain.roles.chief.machine import Cut
from dtrain.roles.chief.recovery import Beginning, TermWatch, beginning, next_term
from dtrain.roles.chief.saved_arrays import saved_arrays
from dtrain.roles.chief.table_loads import Part, descriptions, loads

Array = np.ndarray[Any, Any]

LOOK_S = 0.2
RECONNECT_S = 0.05
LOAD_BYTES = 16
"""Two rows at a time."""
GROUP_BYTES = 4096


class Keeper:
    """Gives the servers their variables, now and whenever one has lost them; saves; says when all is over."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self._clock = process.network.clock
        self._disk = process.disk
        self._wires: dict[int, Wire] = {}
        self._watch: TermWatch | None = None
        self._term = 0
        self._awaited: set[int] = set()
        self._doing: str | None = None
        self._cut: Cut | None = None
        self._marked: dict[int, Marked] = {}
        self._replies: dict[int, SnapshotReply] = {}
        self._read: dict[int, dict[tuple[int, str], list[Array]]] = {}
        self._unread: list[tuple[int, SnapshotRows]] = []
        self._loads: dict[int, list[Part]] = {}
        self._numbers: dict[int, int] = {}
        self._count = 0
        self._draws = False
        self._last = False
        self._next_save_s = 0.0
        self.lineage = Lineage()
        self.finishing = False
        self._contents: Sequence[Contents] = ()
        self._rows: Mapping[int, Row] = {}
        self._given_back: Callable[[], None] | None = None

    @property
    def _servers(self) -> range:
        return range(len(self._process.servers))

    def _later(self, delay_s: float, act: Any, *arguments: Any) -> None:
        self._clock.later(delay_s, self._if_alive, act, *arguments)

    def _if_alive(self, act: Any, *arguments: Any) -> None:
        if not self._process.not_now(self._if_alive, act, *arguments):
            act(*arguments)

    # Beginning a fit

    def begin(self) -> None:
        process, said = self._process, [self._process.answers[server][1] for server in self._servers]
        found = beginning(process.generation, said, self._disk.generation)
        process.network.say(f"{process.task} finds fit {process.generation}: {found.value}")
        self._watch, self.finishing = None, False
        if found is Beginning.PASS_OVER:
            process.next_fit()
        elif found is Beginning.ATTACH:
            self._term, self.lineage = said[0].term, said[0].lineage
            self._watch = TermWatch(process.generation, self._term, self._clock.now)
            self._later(LOOK_S, self._look, process.generation)
            process.trainee.begin()
        else:
            self._draws = found is Beginning.START
            if self._draws:
                self._save_start()
            self._begin_term()

    def _save_start(self) -> None:
        process, newest = self._process, self._disk.newest
        version = newest.version if newest else 0
        states = [process.setup.model.first(server) for server in self._servers]
        lineage = Lineage(
            first_step=version, origin=version, rolled_back_steps=self.lineage.rolled_back_steps
        )
        history = newest.history if newest else {}
        rule = optimizers.serialize(process.setup.model.optimizer)
        seen: list[list[tuple[str, int, int]]] = [[]] * len(states)
        self._disk.write(
            Saved(
                process.generation,
                version,
                states,
                seen,
                lineage,
                rule,
                Dealt(process.setup.parts, 0, (), process.setup.has_backups),
                history=history,
                start=True,
            )
        )

    def _begin_term(self) -> None:
        """On new connections to every server; if one of them breaks, again, in another term."""
        self._doing, self._awaited = "initialise", set(self._servers)
        if not self._connect():
            self._later(RECONNECT_S, self._begin_term)
            return
        process, saved = self._process, self._disk.newest
        said = [reply for _, reply in process.answers.values()]
        self._term = next_term(said, self._term, process.incarnation)
        process.network.say(
            f"{process.task} begins term {self._term} with the checkpoint of version {saved.version}"
        )
        model = process.setup.model
        tables = model.drawn if self._draws else model.whole_tables(saved.states)
        self._loads = {
            server: loads(model.plan, server, tables, self._term, LOAD_BYTES) for server in self._servers
        }
        for server, wire in self._wires.items():
            message = Initialise(
                generation=process.generation,
                plan=process.setup.model.plan.to_dict(),
                training=msgspec.to_builtins(process.setup.scenario.training),
                optimizer=dict(saved.optimizer),
                version=saved.version_of(server),
                max_steps=process.max_steps,
                directory="d",
                slots=model.slots,
                seen=saved.seen[server],
                lineage=saved.lineage,
                dealt=saved.dealt.going_on(process.setup.batch_cut, sync=process.setup.sync),
                term=self._term,
                drawn=descriptions(tables),
                loads=bool(self._loads[server]),
                until=saved.version,  # an order lets training begin, or go on
                alone=process.setup.scenario.alone,
                heard_of=self._watch.heard_of if self._watch else (),
                steps_per_epoch=process.setup.scenario.steps_per_epoch,
                tally=saved.tally,
                history={fit: dict(rows) for fit, rows in saved.history.items()},
                applied=saved.contents[server].batches if saved.contents else None,
                repairs=tuple(lacking([each.batches for each in saved.contents])) if server == 0 else (),
            )
            wire.send(message, saved.states[server].blocks)

    def _connect(self) -> bool:
        self.hang_up()
        for server in self._servers:
            if (wire := self._process.connect("control", server)) is not None:
                self._wires[server] = wire
        return len(self._wires) == len(self._servers)

    def hang_up(self) -> None:
        for wire in self._wires.values():
            wire.cut()
        self._wires.clear()

    # In the background

    def _look(self, generation: int) -> None:
        process = self._process
        if generation != process.generation or self._watch is None:
            return
        if self._doing is None:
            lost = self._watch.lost([process.answers[server] for server in self._servers])
            if lost or self._given_back is not None:
                process.network.say(f"{process.task} finds that {lost or 'none'} lost everything")
                self._begin_term()
            elif self.finishing or self._clock.now >= self._next_save_s:
                self._ask_for_cut()
        self._later(LOOK_S, self._look, generation)

    def _ask_for_cut(self) -> None:
        process = self._process
        if len(self._wires) < len(self._servers) and not self._connect():
            return
        self._doing, self._last, self._marked, self._replies = "cut", self.finishing, {}, {}
        self._cut = self._cut or Cut(process.setup.sync, self._term)
        newest = process.machine.global_step if process.machine and not self._last else process.max_steps
        self._ask_all(self._cut.question(newest, process.max_steps) if self._cut.sync else self._cut.mark())

    def _ask_all(self, question: AnyMessage) -> None:
        for server, wire in self._wires.items():
            if isinstance(question, Snapshot):
                self._count += 1
                self._numbers[server] = self._process.incarnation * 1000 + self._count
                question = msgspec.structs.replace(question, number=self._numbers[server])
            wire.send(question)

    def answered(self, wire: Wire, message: AnyMessage, blocks: Blocks) -> None:
        server = self._process.servers.index(wire.server)
        if isinstance(message, Initialised | Loaded):
            self._load(server)
        elif isinstance(message, Marked):
            self._marked[server] = message
            if len(self._marked) == len(self._servers) and self._cut is not None:
                self._ask_all(self._cut.marked([self._marked[server] for server in self._servers]))
        elif isinstance(message, SnapshotReply):
            self._replies[server] = message
            if len(self._replies) == len(self._servers):
                self._judge_cut()
        elif isinstance(message, Conclude | Farewell):
            self._awaited.discard(server)
            if not self._awaited:
                self._doing = None
                if isinstance(message, Conclude):
                    self._process.fit_returns(self._process.trainee.epochs.rows)
                self._process.next_fit() if isinstance(message, Conclude) else self._process.leave()
        elif isinstance(message, Rows):
            self._rows_read(blocks[0])
        else:
            self._give_up(f"{message}")

    def broken(self, wire: Wire) -> None:
        server = self._process.servers.index(wire.server)
        if (
            self._unread
            and self._unread[0][0] == server
            and (again := self._process.connect("control", server))
        ):
            self._wires[server] = again
            self._read_on()
        else:
            self._give_up(f"{wire} broke")

    def _load(self, server: int) -> None:
        """All servers hold their dense variables before the first rows come; the last rows begin the term."""
        self._awaited.discard(server)
        if self._awaited:
            return
        for server, parts in self._loads.items():
            if parts:
                self._awaited.add(server)
                load, blocks = parts.pop(0)
                self._wires[server].send(load, blocks())
        if not self._awaited:
            self._has_begun()

    def _give_up(self, reason: str) -> None:
        """What is being asked is asked again, of all: answers that were not heard must not be taken for later
        ones.
        """
        doing, self._doing, self._unread = self._doing, None, []
        self.hang_up()
        if doing == "initialise":
            self._doing = doing
            self._later(RECONNECT_S, self._begin_term)
        elif doing in ("conclude", "farewell"):
            self._later(RECONNECT_S, self._conclude if doing == "conclude" else self.farewell)

    def _has_begun(self) -> None:
        process, first = self._process, self._watch is None
        self._draws = False
        self._doing, self._cut = None, None
        self._watch = TermWatch(
            process.generation, self._term, self._clock.now, self._watch.heard_of if self._watch else ()
        )
        if first:
            self._later(LOOK_S, self._look, process.generation)
            process.trainee.begin()
        elif self.finishing:
            self.finishing = False
            process.trainee.train_on()
        if self._given_back is not None:
            then, self._given_back = self._given_back, None
            then()

    def give_back(self, then: Callable[[], None]) -> None:
        """Give every server the newest checkpoint again, and go on: values were assigned on some servers
        only.
        """
        self._given_back = then

    def _judge_cut(self) -> None:
        assert self._cut is not None
        replies = [self._replies[server] for server in self._servers]
        versions = [reply.version for reply in replies]
        self._next_save_s = self._clock.now + self._process.network.random.uniform(0.1, 2.0)
        if self._last and versions[0] < self._process.max_steps:
            self._doing, self.finishing = None, False
            self._process.trainee.train_on()
            return
        accepted = self._cut.accept(versions, [reply.assigned for reply in replies])
        self._process.network.say(f"checkpoint of versions {versions}: {accepted}")
        assert self._cut.margin_steps < 2**10, "ten attempts at a checkpoint"
        if not accepted:
            self._doing = None
            return
        self._contents = (
            () if self._cut.whole(replies) else [Contents(reply.version, reply.applied) for reply in replies]
        )
        self._read = {server: {} for server in self._servers}
        self._unread = [
            (server, question)
            for server, layout in enumerate(self._process.setup.model.plan.layouts)
            for array in saved_arrays(layout, replies[server].slots)
            for question in array.questions(LOAD_BYTES if array.shards[0].sparse else GROUP_BYTES)
        ]
        self._read_on()

    def _read_on(self) -> None:
        """While training goes on."""
        if self._unread:
            server, question = self._unread[0]
            self._wires[server].send(msgspec.structs.replace(question, number=self._numbers[server]))
        else:
            self._save()

    def _rows_read(self, rows: Array) -> None:
        server, asked = self._unread.pop(0)
        self._read[server].setdefault((asked.part, asked.array), []).append(rows)
        self._read_on()

    def _save(self) -> None:
        process, replies = self._process, [self._replies[server] for server in self._servers]
        states = [process.setup.model.received(server, self._read[server]) for server in self._servers]
        self._cut = self._doing = None
        seen, final = [reply.seen for reply in replies], self._last
        told = replies[0]
        saved = Saved(
            process.generation,
            told.version,
            states,
            seen,
            self.disk_lineage(),
            told.optimizer,
            Dealt(*told.dealt),
            final,
            told.tally,
            {fit: dict(rows) for fit, rows in told.history.items()},
            contents=self._contents,
        )
        self._disk.write(saved)
        self._rows = saved.history.get(self._process.generation, {})
        if final:
            self._conclude()

    def disk_lineage(self) -> Lineage:
        """Of the term that is saved: as in the checkpoint that it began with."""
        return self._disk.newest.lineage  # type: ignore[no-any-return]

    # The end

    def _conclude(self) -> None:
        self._say_to([0], "conclude", Conclude(generation=self._process.generation, rows=self._rows))

    def farewell(self) -> None:
        self._say_to(list(self._servers), "farewell", Farewell())

    def _say_to(self, servers: list[int], doing: str, message: AnyMessage) -> None:
        """To those that are there: whoever is gone needs none."""
        self._doing, self._watch = doing, None
        self._connect()
        self._awaited = {server for server in servers if server in self._wires}
        for server in self._awaited:
            self._wires[server].send(message)
        if not self._awaited:
            self._later(RECONNECT_S, self._conclude if doing == "conclude" else self.farewell)
