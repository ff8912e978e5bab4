"""Runs a `ReplicaMachine`: one connection to each server, in the training loop's own thread. It decides
nothing.

A connection that breaks is opened again and what was unanswered is said again, until the server has been away
for too long; see `wire.peer`.
"""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from dtrain.cluster import Role, TaskId
from dtrain.errors import PeerLostError, ProgramError
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.messages import AnyMessage, LookupRows, NotReady, Push, Rows, Sums, Verdict
from dtrain.parameters.replica_memory import Packing, ReplicaMemory, RowRoutes, ServedIds, any_non_finite
from dtrain.process.clock import SYSTEM, Clock
from dtrain.protocol.contributions import Outcome
from dtrain.roles.server_answers import check_blocks, check_numbers
from dtrain.roles.worker.machine import Finished, Outgoing, Pulling, ReplicaMachine
from dtrain.runs.reporting import Reporter
from dtrain.types import Array, Blocks
from dtrain.variables import VariableSpec
from dtrain.variables.lazy_table import LazyTable
from dtrain.wire.connecting import ConnectTask
from dtrain.wire.frames import Frame
from dtrain.wire.peer import Peer

VOID = Outcome(Verdict.VOID)
WITH_BLOCKS = (Push, LookupRows)
"""What a replica says with blocks of its own."""


class ReplicaDriver:
    """Moves a replica from one version to the next.

    Attributes:
        row_gradients: of these, sent with the next push; ids int64, ascending, each once.
        overtaken: the servers went back to a checkpoint while rows were fetched: what is computed with them
            is void.
    """

    def __init__(
        self,
        machine: ReplicaMachine,
        weights: ReplicaMemory,
        gradients: ReplicaMemory,
        connect: ConnectTask,
        reporter: Reporter,
        *,
        connect_s: float,
        patience_s: float,
        packing: Packing | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """Connect to every server.

        Args:
            gradients: sent from; the new values of variables that are not trained as well.
            connect_s, patience_s: how long a server may take to be there at first, and be away later.
            packing: how weights and gradients travel, if not as they lie.

        Raises:
            WaitTimeoutError: a server is not there in time.
        """
        self.machine = machine
        self._clock = clock
        self._weights = weights
        self._gradients = gradients
        self._packing = packing or Packing(weights, gradients)
        self._reporter = reporter
        self._moved_in_all: tuple[int, int] | None = None
        self._routes = RowRoutes(weights.plan)
        self._outgoing: Sequence[Sequence[Array]] = ()
        self._timed_send = reporter.trace.timed("send", self._send)
        self.row_gradients: dict[str, SparseRows] = {}
        self.tables: dict[str, Any] = {}
        for spec in weights.plan.variables:
            if spec.sparse:
                self.tables[spec.name] = LazyTable(spec.shape, spec.dtype, partial(self._look_up, spec))
        weights.variables.update(self.tables)
        self.weights = weights.variables
        self._nothing: Sequence[Sequence[Array]] = [()] * machine.servers
        self.overtaken, self._told_term = False, 0
        servers = [TaskId(Role.PS, server) for server in range(machine.servers)]
        self._names = list(map(str, servers))
        self._kinds = [[(block.dtype, block.size) for block in blocks] for blocks in weights.blocks]
        to_server = partial(Peer, patience_s=patience_s, clock=clock, note=reporter.trace.event)
        self._peers = [to_server(str(server), partial(connect, server)) for server in servers]
        Peer.together(self._peers)
        for peer in self._peers:
            reporter.waiting(peer.name)
            peer.open(connect_s)
        reporter.waiting(None)

    def start(self) -> None:
        self._exchange(self.machine.start())

    def wait_for(self, version: int) -> None:
        """Get the values of this version, or of the last one, as soon as it has been made."""
        self._exchange(self.machine.wait_for(version))

    def push(
        self, examples: int, empty: int, sums: Sums | None, steps: int = 1, step_s: float = 0.0
    ) -> Outcome:
        """Send the gradients, unless they are void; return when the next values allow computing."""
        if self.overtaken:
            self.overtaken = False
            return VOID
        finite = True
        self._outgoing = self._nothing
        if examples:
            if not self._packing.in_place:
                self._gradients.split()
            rows = self._routes.blocks(self.row_gradients) if self.tables else ()
            finite = not any_non_finite(chain(self._gradients.buffers.values(), *rows))
            self._outgoing = self._packing.pack(rows)
        about = {"examples": examples, "empty": empty, "steps": steps}
        self._exchange(self.machine.push(finite, sums=sums, step_s=step_s, **about))
        self.row_gradients.clear()
        if self.machine.outcome is None:
            raise AssertionError("a push that was answered everywhere has an outcome")
        return self.machine.outcome

    def _look_up(self, spec: VariableSpec, ids: Array) -> Array:
        pieces = self._routes.pieces(spec.name, ids)
        servers = {piece.server: [each for each in pieces if each.server == piece.server] for piece in pieces}
        rows = np.empty((len(ids), *spec.shape[1:]), spec.dtype)
        found = False
        over = self.machine.finished
        if over and self.overtaken:
            return np.zeros_like(rows)  # training ended at an earlier lookup of this step, which is void
        while not found:
            self._outgoing = [
                [each.ids for each in servers.get(server, ())] for server in range(self.machine.servers)
            ]
            answers = self._exchange(
                self.machine.look_up({s: tuple(each.table for each in servers[s]) for s in servers})
            )
            found = all(isinstance(answers[server].message, Rows) for server in servers)
            self.overtaken |= not found
            if not found and self.machine.finished:
                if over:
                    raise ProgramError(
                        f"{spec.name} cannot be read any more: another model or a later fit has the "
                        "servers now"
                    )
                return np.zeros_like(rows)  # training has ended without this replica
            for server in servers if found else ():
                blocks = self._rows_of(server, spec, servers[server], answers[server].blocks)
                for piece, block in zip(servers[server], blocks, strict=True):
                    rows[piece.where] = self._packing.unpack_rows(block, spec.dtype).reshape(
                        len(piece.ids), *spec.shape[1:]
                    )
        return rows

    def _rows_of(
        self, server: int, spec: VariableSpec, pieces: Sequence[ServedIds], blocks: Blocks
    ) -> Blocks:
        """Return the blocks with which a server has answered, if they hold the rows that were asked for."""
        allowed = self._packing.row_dtypes(spec.dtype)
        dtype = next((each for each in allowed if blocks and blocks[0].dtype == each), spec.dtype)
        kinds = [(dtype, len(piece.ids) * math.prod(spec.shape[1:])) for piece in pieces]
        check_blocks(self._names[server], f"rows of {spec.name}", blocks, kinds)
        return blocks

    @property
    def bytes_moved(self) -> tuple[int, int]:
        """Bytes sent and received on the connections that are open now, or were when all were closed."""
        if self._moved_in_all is not None:
            return self._moved_in_all
        channels = [peer.channel for peer in self._peers if peer.channel is not None]
        return sum(each.bytes_sent for each in channels), sum(each.bytes_received for each in channels)

    def abort(self, reason: str) -> None:
        for peer in self._peers:
            peer.abort(reason)

    def heard_term(self, term: int) -> None:
        """From another thread: this is the term at ps:0. Ask anew whoever owes an answer from before it.

        A machine that goes without a word breaks no connection for 15 s. ps:0 knows sooner that a new process
        has the place of its server. Answers of the new term may be on their way at the first such word, so
        the second one counts; what is said again is recognised.
        """
        if not 0 < self.machine.term < term:
            return
        if self._told_term == term:
            for server in list(self.machine.unanswered):
                peer = self._peers[server]
                peer.break_with(f"{peer.name} has not answered since ps:0 began a new term")
        self._told_term = term

    def close(self) -> None:
        self._moved_in_all = self.bytes_moved
        for peer in self._peers:
            peer.close()

    def _exchange(self, outgoing: Iterable[Outgoing]) -> dict[int, Frame]:
        """Ask, and hear answers until nothing is open; returns each server's last one."""
        answers: dict[int, Frame] = {}
        read = False
        over = type(self.machine.phase) is Finished
        for server, message in outgoing:
            self._timed_send(server, message)
        while self.machine.unanswered:
            server = next(iter(self.machine.unanswered))
            frame = answers[server] = self._receive(server)
            message = frame.message
            if type(message) is NotReady and over:
                raise PeerLostError(
                    f"ps:{server} has lost what was trained: read it from the last checkpoint"
                )
            read = read or type(message) is not Rows
            for next_server, answer in self.machine.receive(server, message):
                self._timed_send(next_server, answer)
        self._reporter.waiting(None)
        if read and not self._packing.in_place:
            self._weights.join()
        if type(self.machine.phase) is Pulling:
            raise AssertionError("a replica that pulls waits for an answer")
        return answers

    def _send(self, server: int, message: AnyMessage) -> None:
        blocks = self._outgoing[server] if type(message) in WITH_BLOCKS else ()
        self._peers[server].send(message, blocks)

    def _receive(self, server: int) -> Frame:
        self._reporter.waiting(self._names[server])
        if type(self.machine.unanswered[server]) is LookupRows:
            return self._peers[server].receive()
        frame = self._peers[server].receive(self._packing.offered[server])
        check_numbers(self._names[server], frame.message)
        if frame.blocks or self.machine.awaits_values(frame.message):
            blocks = frame.blocks
            if not self._packing.in_place:
                blocks = self._packing.unpack(server, blocks)
            check_blocks(self._names[server], "values", blocks, self._kinds[server])
            if blocks:
                self._weights.read_at(server, blocks)
        return frame
