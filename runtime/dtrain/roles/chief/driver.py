"""The leader's way to the servers: makes the variables exist on every one, asks for their state, says
farewell.

On connections of its own, beside those of training; the `keeper` uses it to save and to restore.
"""

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count, zip_longest
from typing import TypeVar, cast

import msgspec

from dtrain.cluster import Role, TaskId
from dtrain.config import ServerSection, on_servers
from dtrain.errors import PeerError, PeerLostError, PeerRefusedError
from dtrain.messages import (
    AnyMessage,
    Conclude,
    Farewell,
    Initialise,
    Initialised,
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
from dtrain.parameters.replica_memory import cut
from dtrain.process.clock import SYSTEM, Clock
from dtrain.protocol.applied_batches import lacking
from dtrain.roles.chief.machine import Cut
from dtrain.roles.chief.start import Start
from dtrain.roles.chief.table_loads import descriptions, loads
from dtrain.roles.server_answers import check_marks, check_numbers
from dtrain.types import Array
from dtrain.wire.connecting import ConnectTask
from dtrain.wire.frames import Frame
from dtrain.wire.peer import Peer

Answer = TypeVar("Answer", Marked, SnapshotReply)

FAREWELL_S = 5.0
RECONNECT_S = 10.0


class Leader:
    """The leader's connections to all servers, for one thread; only `abort` may come from another."""

    def __init__(
        self, servers: int, connect: ConnectTask, connect_s: float, clock: Clock = SYSTEM, host: int = 0
    ) -> None:
        """Connect to every server; `host` hosts the control plane.

        Raises:
            WaitTimeoutError: one is not there within `connect_s`.
        """
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
        """Begin a term: give every server its variables; return the highest version given up for it, or -1.

        `until` and `heard_of` are those of `Initialise`. It is never repeated within a term: a server might
        have begun it, trained, and died in the meantime.

        Raises:
            PeerLostError: a server is gone: all servers need a new term.
            PeerRefusedError: a server will not have it.
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
                peer.tell(message, [*values[server], *own_slots])
            frames = [peer.receive() for peer in self._peers]
            answers = [_expect(Initialised, frame).message for frame in frames]
            for together in zip_longest(*parts):
                pairs = zip(self._peers, together, strict=True)
                asked = [(peer, part) for peer, part in pairs if part is not None]
                for peer, (load, source) in asked:
                    peer.tell(load, source())
                for peer, _ in asked:
                    _expect(Loaded, peer.receive())
        return max(answer.given_up for answer in answers if isinstance(answer, Initialised))

    def snapshot_rows(self, server: int, question: SnapshotRows) -> Array:
        """Return rows of the last snapshot, flat; raise a `PeerError` if the server has none."""
        with self._asking():
            self._say(server, question)
            blocks = _expect(Rows, self._hear(server, question)).blocks
        if len(blocks) != 1:
            raise PeerRefusedError(f"{server_name(server)} sent {len(blocks)} blocks of rows for one array")
        return blocks[0]

    def snapshot(self, cut: Cut, newest: int, last: int) -> list[SnapshotReply]:
        """Return every server's state; arguments as in `Cut.question`.

        Raises:
            PeerError: a server is gone, or will not answer.
        """
        if cut.sync:
            return self._ask(cut.question(newest, last), SnapshotReply)
        marks = self._ask(cut.mark(), Marked)
        check_marks(marks)
        return self._ask(cut.marked(marks), SnapshotReply)

    def _ask(self, question: AnyMessage, kind: type[Answer]) -> list[Answer]:
        """Ask every server, before the first answer is awaited."""
        with self._asking():
            for server in range(len(self._peers)):
                self._say(server, question)
            frames = [self._hear(server, question) for server in range(len(self._peers))]
        answers = [cast(Answer, _expect(kind, frame).message) for frame in frames]
        for server, answer in enumerate(answers):
            check_numbers(server_name(server), answer)
        return answers

    def conclude(self, generation: int, rows: Mapping[int, Row]) -> None:
        """Tell ps:0 that the last step of a generation is saved, and the numbers of its epochs: it may have
        been started again.

        Raises:
            PeerError: ps:0 is gone, or will not answer.
        """
        question = Conclude(generation=generation, rows=dict(rows))
        with self._asking():
            self._say(self.host, question)
            frame = self._hear(self.host, question)
        _expect(Conclude, frame)

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Ask on new connections after a failure, so that no late answer is taken for another question's."""
        if self._answers_open:
            self.reconnect()
        self._answers_open = True
        yield
        self._answers_open = False

    def _say(self, server: int, question: AnyMessage) -> None:
        """Send a question; each one for a server's state has a number, by which its rows are asked for."""
        if isinstance(question, Snapshot):
            self._number[server] = next(self._numbers)
        if isinstance(question, Snapshot | SnapshotRows):
            question = msgspec.structs.replace(question, number=self._number[server])
        self._peers[server].tell(question)

    def _hear(self, server: int, question: AnyMessage) -> Frame:
        """Return a server's answer; if the connection is broken, that to another question on a new one."""
        peer = self._peers[server]
        try:
            return peer.receive()
        except PeerLostError:
            peer.open(RECONNECT_S)
        self._say(server, question)
        return peer.receive()

    def reconnect(self) -> None:
        """Open every connection again; raise a `WaitTimeoutError` if a server is not there."""
        for peer in self._peers:
            peer.open(RECONNECT_S)
        self._answers_open = False

    def farewell(self, rows: Mapping[int, Mapping[int, Row]] | None = None) -> None:
        """Tell every server that no task will train any more, and the numbers of epochs by call of `fit`.

        A server has heard it when it has answered: closing the connection would drop what is still under way.
        """
        message = Farewell(rows={fit: dict(epochs) for fit, epochs in (rows or {}).items()})
        deadline = self._clock.now() + FAREWELL_S
        for peer in self._peers:
            peer.tell(message)
        for peer in self._peers:
            with contextlib.suppress(PeerError):  # a server that is gone needs no farewell
                peer.receive(deadline=deadline)

    def abort(self, reason: str) -> None:
        """Give up, from another thread, whatever is being waited for."""
        for peer in self._peers:
            peer.abort(reason)

    def break_with(self, server: int, reason: str) -> None:
        """Break a server's connection from another thread; open questions are asked again on a new one."""
        self._peers[server].break_with(reason)

    def close(self) -> None:
        """Close the connections."""
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
    """Return a server's name in messages: ``ps:0``."""
    return str(TaskId(Role.PS, server))
