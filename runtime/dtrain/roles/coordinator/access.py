"""The way of one thread to the variables on the servers: it reads them, and changes them once."""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from dtrain.cluster import Role, TaskId
from dtrain.errors import PeerLostError, PeerRefusedError
from dtrain.messages import (
    Alter,
    Alteration,
    Altered,
    AnyMessage,
    Look,
    Refusal,
    RefusalKind,
    Share,
    Shared,
    Shown,
)
from dtrain.parameters.placement import Plan
from dtrain.process.clock import SYSTEM, Clock
from dtrain.runs.reporting import Account
from dtrain.types import Array, Blocks
from dtrain.wire.connecting import ConnectTask
from dtrain.wire.peer import Peer

Answer = tuple[AnyMessage, Blocks]
Question = tuple[int, Share | Look | Alter, Blocks]
"""For the server of this number."""
Ask = Callable[[Sequence[Question]], list[Answer]]
"""Asks servers, all at once; each may be asked one thing."""


class Servers:
    """Connections to all servers, for questions about variables. Threads take turns."""

    def __init__(
        self,
        servers: int,
        connect: ConnectTask,
        reporter: Account,
        *,
        connect_s: float,
        patience_s: float,
        clock: Clock = SYSTEM,
    ) -> None:
        """Connect to every server; raise a WaitTimeoutError if one is not there within `connect_s`."""
        self._lock = threading.Lock()
        self._clock = clock
        self._reporter = reporter
        self._patience_s = patience_s
        names = [TaskId(Role.PS, server) for server in range(servers)]
        self._peers = [
            Peer(str(task), partial(connect, task), patience_s=patience_s, clock=clock) for task in names
        ]
        for peer in self._peers:
            reporter.waiting(peer.name)
            peer.open(connect_s)
        reporter.waiting(None)

    def ask(self, questions: Sequence[Question]) -> list[Answer]:
        """Ask servers, and wait for all answers; see `Ask`.

        Raises:
            PeerLostError: a server is gone for good, or was started again and has no variables.
            PeerRefusedError: a server refuses what it is asked.
            WaitTimeoutError: a server that is there does not answer in time.
        """
        answers: list[Answer] = []
        with self._lock:
            for server, message, blocks in questions:
                self._peers[server].send(message, blocks)
            deadline_s = self._clock.now() + self._patience_s
            for server, _, _ in questions:
                peer = self._peers[server]
                self._reporter.waiting(peer.name)
                frame = peer.receive(deadline=deadline_s)
                self._reporter.waiting(None)
                answers.append((frame.message, [np.array(block) for block in frame.blocks]))
        return answers

    def abort(self, reason: str) -> None:
        """From any thread: end every wait with an error, also later ones."""
        for peer in self._peers:
            peer.abort(reason)

    def close(self) -> None:
        for peer in self._peers:
            peer.close()


class Access:
    """The variables of one session, as one thread reads and changes them."""

    def __init__(self, ask: Ask, plan: Plan, session: int) -> None:
        self._ask = ask
        self.plan = plan
        self.session = session
        self.iterations: dict[str, int] = {}
        self._attempt = 0
        self.within(0, 1)

    def within(self, closure: int, settled: int) -> None:
        """Make the changes of a closure from now on, none of which has been made in this attempt; 0: of none.

        Every closure below `settled` has ended.
        """
        self._closure = closure
        self._settled = settled
        self._attempt += 1
        self._numbers = [0] * self.plan.servers

    def as_of(self) -> int:
        """Return a number that is another one in every attempt at a closure."""
        return self._attempt

    def share(self, values: Mapping[str, Array]) -> None:
        blocks: list[list[Array]] = [[] for _ in range(self.plan.servers)]
        for shard in self.plan.shards:
            value = values[self.plan.variables[shard.variable].name]
            blocks[shard.server].append(_rows(value, shard.row_start, shard.row_stop))
        message = Share(session=self.session, plan=self.plan.to_dict())
        for answer, _ in self._ask([(server, message, each) for server, each in enumerate(blocks)]):
            _expect(Shared, answer)

    def read(self, variables: Sequence[int]) -> list[Array]:
        """Return the newest values of variables, by their numbers in the plan; the caller owns the arrays."""
        by_server = self._shards(variables)
        asked = [
            (server, Look(session=self.session, shards=tuple(shards)), ())
            for server, shards in enumerate(by_server)
            if shards or server == 0  # which tells of iterations
        ]
        answers = self._ask(asked)
        for (server, _, _), (answer, _) in zip(asked, answers, strict=True):
            shown: Shown = _expect(Shown, answer)
            if server == 0:
                self.iterations = dict(shown.iterations)
        return self._joined(
            variables, by_server, {each[0]: blocks for each, (_, blocks) in zip(asked, answers, strict=True)}
        )

    def alter(
        self,
        kind: Alteration,
        values: Mapping[int, Array],
        optimizer: str = "",
        config: Mapping[str, Any] | None = None,
    ) -> list[Array]:
        """Change variables once, by their numbers; return their new values, of an assignment or addition.

        Args:
            values: for each variable a gradient, new value or summand, of its shape and dtype.
            optimizer: for gradients: its key.
            config: for gradients: the optimizer as data.
        """
        by_server = self._shards(list(values))
        everywhere = kind is Alteration.GRADIENT  # so that every server counts the updates
        asked: list[Question] = []
        for server, shards in enumerate(by_server):
            if not (shards or everywhere):
                continue
            message = Alter(
                session=self.session,
                closure=self._closure,
                number=self._numbers[server],
                settled=self._settled,
                kind=kind,
                shards=tuple(shards),
                optimizer=optimizer,
                config=dict(config or {}),
            )
            asked.append((server, message, [self._part(values, shard) for shard in shards]))
        answers = self._ask(asked)
        for (server, _, _), (answer, _) in zip(asked, answers, strict=True):
            altered: Altered = _expect(Altered, answer)
            self._numbers[server] += 1
            if server == 0 and optimizer:
                self.iterations[optimizer] = altered.iterations
        if everywhere:
            return []
        told = {each[0]: blocks for each, (_, blocks) in zip(asked, answers, strict=True)}
        return self._joined(list(values), by_server, told)

    def _part(self, values: Mapping[int, Array], number: int) -> Array:
        shard = self.plan.shards[number]
        return _rows(values[shard.variable], shard.row_start, shard.row_stop)

    def _shards(self, variables: Sequence[int]) -> list[list[int]]:
        wanted = set(variables)
        result: list[list[int]] = [[] for _ in range(self.plan.servers)]
        for number, shard in enumerate(self.plan.shards):
            if shard.variable in wanted:
                result[shard.server].append(number)
        return result

    def _joined(
        self, variables: Sequence[int], by_server: Sequence[Sequence[int]], told: Mapping[int, Blocks]
    ) -> list[Array]:
        flat = {
            number: block
            for server, blocks in told.items()
            for number, block in zip(by_server[server], blocks, strict=True)
        }
        pieces: dict[int, list[Array]] = {variable: [] for variable in variables}
        for number in sorted(flat):
            pieces[self.plan.shards[number].variable].append(flat[number])
        return [
            np.concatenate(pieces[variable]).reshape(self.plan.variables[variable].shape)
            for variable in variables
        ]


def _rows(value: Array, start: int, stop: int) -> Array:
    return np.ascontiguousarray(value[start:stop] if value.ndim else value).reshape(-1)


def _expect(kind: type[Any], answer: AnyMessage) -> Any:
    if isinstance(answer, kind):
        return answer
    if isinstance(answer, Refusal):
        lost = answer.kind is RefusalKind.LOST
        raise (PeerLostError if lost else PeerRefusedError)(answer.reason)
    raise PeerRefusedError(f"a server answered {type(answer).__name__} where {kind.__name__} was expected")
