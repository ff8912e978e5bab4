"""The leader's way to the servers: gives them variables, asks for their state, restores it.

On connections of its own, beside those of training; `Keeper` uses it to save and to restore.

Rule *No silent wait* (docs/design/protocol.md#no-silent-wait).
"""

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, zip_longest
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import numpy as np

from dtrain import checkpoints
from dtrain.cluster import Role, TaskId
from dtrain.config import CheckpointSection, ServerSection, SyncSection, on_servers
from dtrain.errors import PeerError, PeerLostError, PeerRefusedError
from dtrain.learning.core.drawn_table import DrawnTable
from dtrain.messages import (
    AnyMessage,
    Conclude,
    Farewell,
    Initialise,
    Initialised,
    Load,
    Loaded,
    Marked,
    NotReady,
    Refusal,
    Row,
    Rows,
    Snapshot,
    SnapshotReply,
    SnapshotRows,
)
from dtrain.messages.membership import TaskPhase, TaskStatus
from dtrain.parameters.placement import Plan
from dtrain.parameters.replica_memory import cut
from dtrain.process.clock import SYSTEM, Clock
from dtrain.protocol.applied_batches import lacking
from dtrain.roles.chief.keeper_thread import KeeperThread
from dtrain.roles.chief.machine import (
    Action,
    BeginTerm,
    CheckpointSchedule,
    ConcludeFit,
    Cut,
    Keeping,
    Request,
    Restore,
    TermWatch,
)
from dtrain.roles.chief.saver import Saver
from dtrain.roles.chief.start import Start, restored
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.roles.server_answers import check_marks, check_numbers
from dtrain.runs.files import RunFiles
from dtrain.runs.reporting import Reporter
from dtrain.state.fit_state import FitState
from dtrain.types import Array
from dtrain.variables import DTYPE_BYTES
from dtrain.variables.lazy_table import BLOCK_BYTES, row_blocks
from dtrain.wire.connecting import ConnectTask
from dtrain.wire.frames import Frame
from dtrain.wire.peer import Peer

Answer = TypeVar("Answer", Marked, SnapshotReply)

FAREWELL_S = 5.0
RECONNECT_S = 10.0


class LeaderDriver:
    """The leader's connections to all servers, for one thread; only `abort` may come from another."""

    def __init__(
        self, servers: int, connect: ConnectTask, connect_s: float, clock: Clock = SYSTEM, host: int = 0
    ) -> None:
        self._clock = clock
        self.host = host
        self.term = 0
        self._answers_open = False
        self._numbers = count(int(clock.wall() * 1e9))
        self._number = [0] * servers
        self._peers = [
            Peer(
                server_name(server),
                partial(connect, TaskId(Role.PS, server)),
                patience_s=RECONNECT_S,
                clock=clock,
            )
            for server in range(servers)
        ]
        for peer in self._peers:
            peer.open(connect_s)

    def initialise(
        self,
        start: Start,
        training: ServerSection,
        term: int,
        directory: str,
        until: int | None = None,
        heard_of: tuple[str, ...] = (),
    ) -> int:
        """Give every server its variables; return the highest version given up for them, or -1. It is never
        repeated within a term: a server might have begun it, trained, and died in the meantime.
        """
        self.term = term
        plan = start.plan
        state = start.state.but(plan=plan.to_dict())
        repairs = tuple(lacking([each.batches for each in state.contents]))
        values = cut(plan, start.values)
        slots = {name: cut(plan, by_variable) for name, by_variable in start.slots.items()}
        tables = {spec.name: start.table(spec.name) for spec in plan.variables if spec.sparse}
        parts = [loads(plan, server, tables, term) for server in range(plan.servers)]
        with self._asking():
            for server, peer in enumerate(self._peers):
                trainable = [i for i, group in enumerate(plan.layout(server).groups) if group.trainable]
                message = Initialise(
                    state=state.for_server(server),
                    training=on_servers(training),
                    directory=directory,
                    term=term,
                    slots=tuple(start.slots),
                    drawn=descriptions(tables),
                    loads=bool(parts[server]),
                    until=until,
                    heard_of=heard_of,
                    repairs=repairs if server == self.host else (),
                )
                own_slots = (slots[name][server][i] for name in slots for i in trainable)
                peer.notify(message, [*values[server], *own_slots])
            frames = [peer.receive() for peer in self._peers]
            answers = [_expect(Initialised, frame).message for frame in frames]
            for together in zip_longest(*parts):
                pairs = zip(self._peers, together, strict=True)
                asked = [(peer, part) for peer, part in pairs if part is not None]
                for peer, (load, source) in asked:
                    peer.notify(load, source())
                for peer, _ in asked:
                    _expect(Loaded, peer.receive())
        return max(answer.given_up for answer in answers if isinstance(answer, Initialised))

    def snapshot_rows(self, server: int, question: SnapshotRows) -> Array:
        with self._asking():
            self._send(server, question)
            blocks = _expect(Rows, self._receive(server, question)).blocks
        if len(blocks) != 1:
            raise PeerRefusedError(f"{server_name(server)} sent {len(blocks)} blocks of rows for one array")
        return blocks[0]

    def snapshot(self, cut: Cut, newest: int, last: int) -> list[SnapshotReply]:
        """Return every server's state; arguments as in `Cut.question`. Raises a PeerError."""
        if cut.sync:
            return self._ask(cut.question(newest, last), SnapshotReply)
        marks = self._ask(cut.mark(), Marked)
        check_marks(marks)
        return self._ask(cut.marked(marks), SnapshotReply)

    def _ask(self, question: AnyMessage, kind: type[Answer]) -> list[Answer]:
        with self._asking():
            for server in range(len(self._peers)):
                self._send(server, question)
            frames = [self._receive(server, question) for server in range(len(self._peers))]
        answers = [cast(Answer, _expect(kind, frame).message) for frame in frames]
        for server, answer in enumerate(answers):
            check_numbers(server_name(server), answer)
        return answers

    def conclude(self, generation: int, rows: Mapping[int, Row]) -> None:
        """Tell ps:0, which may have been started again, that the last step of a generation is saved."""
        question = Conclude(generation=generation, rows=dict(rows))
        with self._asking():
            self._send(self.host, question)
            frame = self._receive(self.host, question)
        _expect(Conclude, frame)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Ask on new connections after a failure, so that no late answer is taken for another question's."""
        if self._answers_open:
            self.reconnect()
        self._answers_open = True
        yield
        self._answers_open = False

    def _send(self, server: int, question: AnyMessage) -> None:
        """Send a question; each one for a server's state has a number, by which its rows are asked for."""
        if isinstance(question, Snapshot):
            self._number[server] = next(self._numbers)
        if isinstance(question, Snapshot | SnapshotRows):
            question = msgspec.structs.replace(question, number=self._number[server])
        self._peers[server].notify(question)

    def _receive(self, server: int, question: AnyMessage) -> Frame:
        """Return a server's answer; after a broken connection, that to another question on a new one."""
        peer = self._peers[server]
        try:
            return peer.receive()
        except PeerLostError:
            peer.open(RECONNECT_S)
        self._send(server, question)
        return peer.receive()

    def reconnect(self) -> None:
        for peer in self._peers:
            peer.open(RECONNECT_S)
        self._answers_open = False

    def farewell(self, rows: Mapping[int, Mapping[int, Row]] | None = None) -> None:
        """Tell every server that no task will train any more, and the numbers of epochs by call of `fit`.

        A server has heard it when it has answered: closing the connection would drop what is still under way.
        If a connection breaks, the farewell is sent again on a new one, for at most FAREWELL_S.
        """
        message = Farewell(rows={fit: dict(epochs) for fit, epochs in (rows or {}).items()})
        deadline = self._clock.now() + FAREWELL_S
        for peer in self._peers:
            with contextlib.suppress(PeerError):
                peer.send(message, deadline=deadline)
        for peer in self._peers:
            with contextlib.suppress(PeerError):  # a server that is gone needs no farewell
                peer.receive(deadline=deadline)

    def abort(self, reason: str) -> None:
        """Give up every wait, from another thread."""
        for peer in self._peers:
            peer.abort(reason)

    def break_with(self, server: int, reason: str) -> None:
        """Break a server's connection from another thread; open questions are asked again."""
        self._peers[server].break_with(reason)

    def close(self) -> None:
        for peer in self._peers:
            peer.close()


def _expect(kind: type[AnyMessage], frame: Frame) -> Frame:
    if isinstance(frame.message, Refusal | NotReady):
        raise PeerRefusedError(frame.message.reason)
    if not isinstance(frame.message, kind):
        raise PeerRefusedError(
            f"a server answered {type(frame.message).__name__} where {kind.__name__} was expected"
        )
    return frame


def server_name(server: int) -> str:
    return str(TaskId(Role.PS, server))


Tables = Mapping[str, Mapping[str, Any]]
"""Arrays by variable: its rows under ``""`` and each slot under its name; sliced by rows."""

Part = tuple[Load, Callable[[], list[Array]]]
"""Rows of a table, and what makes its blocks: none for those that the server draws."""


def descriptions(tables: Tables) -> dict[str, dict[str, dict[str, Any]]]:
    """Return how the arrays that are not sent are drawn."""
    return {
        name: {array: source.describe() for array, source in arrays.items() if isinstance(source, DrawnTable)}
        for name, arrays in tables.items()
    }


def loads(plan: Plan, server: int, tables: Tables, term: int, nbytes: int = BLOCK_BYTES) -> list[Part]:
    """Yield all tables of a server, in parts of about `nbytes`; the last one is marked."""
    parts: list[Part] = []
    for number, shard in enumerate(plan.layout(server).tables):
        for array, source in tables[plan.variables[shard.variable].name].items():
            for start, stop in row_blocks(shard.shape, DTYPE_BYTES[shard.dtype], nbytes):
                rows = slice(shard.row_start + start, shard.row_start + stop)
                parts.append(
                    (
                        Load(term=term, table=number, array=array, start=start, stop=stop),
                        partial(_blocks, source, rows),
                    )
                )
    if parts:
        parts[-1] = msgspec.structs.replace(parts[-1][0], last=True), parts[-1][1]
    return parts


def _blocks(source: Any, rows: slice) -> list[Array]:
    return [] if isinstance(source, DrawnTable) else [np.ascontiguousarray(source[rows]).reshape(-1)]


class KeeperParts(msgspec.Struct, frozen=True):
    """The connections, settings and storage with which a leader works."""

    leader: LeaderDriver
    links: Sequence[HeartbeatLink]
    reporter: Reporter
    run_dir: Path
    training: ServerSection
    section: CheckpointSection
    server_s: float
    clock: Clock = SYSTEM

    @property
    def checkpoints(self) -> Path:
        return RunFiles(self.run_dir).checkpoints


class Keeper(KeeperThread):
    """Keeps one generation on the servers and on the disk.

    Attributes:
        busy: a term is being begun: servers may be slow to answer.
        own_step: the term and step of the leader's own replica, which knows sooner than a heartbeat says.
    """

    def __init__(self, place: KeeperParts, plan: Plan, asked: FitState) -> None:
        self._place = place
        self.plan = plan
        self.asked = asked
        self._sync = sync = isinstance(place.training, SyncSection)
        clock = place.clock
        reporter = place.reporter
        schedule = CheckpointSchedule(place.section, clock.now(), -1)
        watch = TermWatch(asked.generation, place.leader.term, 0.0, host=place.leader.host)
        machine = Keeping(schedule, 0, place.server_s, watch)
        saver = Saver(
            place.leader,
            plan,
            asked,
            place.section,
            place.checkpoints,
            self._newest_step,
            reporter.warn,
            sync=sync,
            host=place.leader.host,
            tried=reporter.tried_to_save,
            clock=clock,
        )
        super().__init__(machine, saver, reporter.warn, reporter.trace, clock)
        self.busy = False
        self.own_step: Callable[[], tuple[int, int]] = lambda: (0, 0)

    @property
    def first_version(self) -> int:
        return self._machine.first_version

    @property
    def saved_step(self) -> int:
        return self._saver.saved_step

    # In the program's own thread

    def begin(self, start: Start, *, save: bool) -> None:
        self._machine.max_steps = start.state.max_steps
        super().begin(start, save=save)

    def attach(self) -> None:
        self._receive()
        lineage = self._place.links[self._place.leader.host].reply.lineage
        last = lineage.first_step + self.asked.max_steps
        self._saver.state = self.asked.but(lineage=lineage, max_steps=last)
        self._machine.max_steps = last
        # A leader that was started by hand has begun another directory.
        empty = not checkpoints.list_checkpoints(self._place.checkpoints)
        found = self._machine.attach(lineage.rolled_back_steps, nothing_saved=empty, now=self._clock.now())
        self._carry_out(found)
        self._report_lineage()
        self._go_on()

    def ordered(self, until: int | None, end: int | None) -> None:
        """Note an order that the servers have: make no version beyond `until` for now, or end at `end`."""
        self._saver.until = until
        if end is not None:
            self._saver.state = self._saver.state.but(max_steps=end)
            self._machine.max_steps = end

    def give_back(self) -> None:
        """Give every server the newest checkpoint again: what an earlier process of the leader assigned has
        reached some only. Raises the keeper's error if it has given up.
        """
        self._ask(Request.GIVE_BACK)

    # In the background

    def _receive(self) -> None:
        self._machine.answers = [link.answer for link in self._place.links]
        self._machine.own_step = self.own_step()
        self._machine.notices = {
            notice for link in self._place.links for said in link.reply.statuses for notice in _notices(said)
        }

    def _newest_step(self) -> int:
        self._receive()
        return self._machine.step

    def _away(self) -> Sequence[int]:
        return [server for server, link in enumerate(self._place.links) if link.away]

    def _poll(self) -> Sequence[Action]:
        for link in self._place.links:
            if link.failure is not None:
                return self._machine.failed(None, link.failure, self._clock.now())
        return super()._poll()

    def _do(self, action: Action) -> Sequence[Action]:
        match action:
            case Restore():
                return self._restore()
            case BeginTerm():
                return self._begin_term(action)
            case ConcludeFit():
                self._place.leader.conclude(self.asked.generation, self._saver.rows)
                return self._machine.concluded()
        return super()._do(action)

    def _restore(self) -> Sequence[Action]:
        begun, asked = self._saver.state, self.asked
        start = restored(self._place.checkpoints, self.plan, asked, by_server=not self._sync)
        steps = begun.max_steps - begun.lineage.first_step
        start = start.going_on(asked.dealt.cut, steps, sync=self._sync)
        if start.warning:
            self._place.reporter.warn(start.warning)
        self._start = start
        return self._machine.restored(start.state.version, start.state.lineage.rolled_back_steps)

    def _begin_term(self, action: BeginTerm) -> Sequence[Action]:
        """Begin a term on every server; no version is made before the leader's order."""
        start = self._start
        leader = self._place.leader
        assert start is not None
        if action.again:
            leader.reconnect()
        lineage = msgspec.structs.replace(start.state.lineage, rolled_back_steps=action.rolled_back_steps)
        told = start.but(lineage=lineage)
        directory = str(self._place.run_dir)
        self.busy = True
        try:
            given_up = leader.initialise(
                told, self._place.training, action.term, directory, action.until, action.heard_of
            )
        finally:
            self.busy = False
        following = self._machine.begun(given_up, self._clock.now())
        self._start = None
        self._saver.state = start.state
        self._report_lineage()
        return following

    def _report_lineage(self) -> None:
        lost = self._machine.rolled_back_steps
        state = self._saver.state
        lineage = msgspec.structs.replace(state.lineage, rolled_back_steps=lost)
        self._saver.state = state.but(lineage=lineage)
        self._place.reporter.status.rolled_back_steps = lost


def _notices(said: TaskStatus) -> Iterator[Hashable]:
    process = said.task, said.attempt, said.pid
    if said.phase is TaskPhase.LEAVING:
        yield process
    if said.notices:
        yield process, said.notices
