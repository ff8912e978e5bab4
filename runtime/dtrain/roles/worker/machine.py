"""The replica's machine: what a training task says to the parameter servers, and when it may compute.

When a server loses its memory, the leader gives all servers the newest checkpoint again, in a new term. A
replica that hears of a new term drops what it has, waits until every server has answered what was asked
before, and begins again by pulling; its pushes go on with the next number, so that nothing counts twice.
Until its last step is saved it may be needed again, so it stays.

A connection that broke is opened again by the driver, which then repeats what is unanswered: `unanswered`. A
push that was applied before the break is answered as a duplicate, so repeating is always right
(docs/design/protocol.md#exactly-once).

In async a pull tells ps:0 which push all servers have answered. Until then ps:0 takes the batch for one that
others may lack, and neither ends training nor lets the leader end an epoch; if the replica dies, another one
is given the batch again, to repair it. Where gradients may be too stale, ps:0 judges alone: the other servers
are sent a push when ps:0 has accepted it.

The phases of a replica:

pulling   servers have been asked for their values; in sync all must be of one version, the newest
ready     the values are there (and, in async, ps:0's ticket): compute a gradient
pushing   the gradient is on its way to every server; their answers carry the verdict and the next values
draining  the servers are in a later term: what was asked in the one before is still being answered
closing   the last step has been made and the final values are here; the leader has not saved them yet
finished  the leader has saved them
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dtrain.config.choices import NanPolicy
from dtrain.errors import DtrainError, NonFiniteGradientError, PeerRefusedError, TooFewReplicasError
from dtrain.messages import (
    AnyMessage,
    Conclude,
    LookupRows,
    NotReady,
    Pull,
    Push,
    Refusal,
    RefusalKind,
    Reply,
    Row,
    Rows,
    Sums,
    Values,
    Verdict,
)
from dtrain.protocol.contributions import Outcome
from dtrain.protocol.part_dealer import NO_PART
from dtrain.state.batch_cut import UNCUT, BatchCut

Outgoing = tuple[int, AnyMessage]
"""A server's index and the message for it. A Push is accompanied by that server's gradient blocks, a Lookup
by ids.
"""


class Pulling(Struct, frozen=True, gc=False):
    """Servers have been asked for their values.

    Attributes:
        aged: whether the values of the other servers have aged while ps:0 made the replica wait.
        last: whether these are the final values, which are asked for once.
    """

    aged: bool = False
    awaited: int = 0
    last: bool = False


class ValuesReady(Struct, frozen=True, gc=False):
    """The values are there: a gradient may be computed."""


class Pushing(Struct, frozen=True, gc=False):
    """A gradient is on its way.

    Attributes:
        ordinal: how many contributions to the same version were held before it.
        for_others: the pushes that wait until ps:0 has judged.
    """

    ordinal: int
    replies: dict[int, Reply]
    for_others: list[Outgoing]


class Draining(Struct, frozen=True, gc=False):
    """The replica begins again in a later term, when everything that it had asked before is answered."""


class Closing(Struct, frozen=True, gc=False):
    """The final values are here and not saved yet."""


class Finished(Struct, frozen=True, gc=False):
    """Training has ended; `rows` has the numbers of every epoch, in a task that was told of the end."""

    rows: Mapping[int, Row] = MappingProxyType({})


Phase = Pulling | ValuesReady | Pushing | Draining | Closing | Finished
READY = ValuesReady()


class Permit(Enum):
    """Whether a replica may push once more."""

    GRANTED = auto()
    HELD = auto()  # to the leader: the next version waits for its order, and so does the permit
    NONE = auto()


class NextPart(Struct, frozen=True, gc=False):
    """The last word of ps:0 on what a replica computes next.

    Attributes:
        part: the number of the part, if it may.
        repairs: whether the part makes no step, because ps:0 has it already and another server may not.
        settled: False where ps:0 makes nothing more before every server has what it has.
    """

    permit: Permit = Permit.GRANTED
    part: int = NO_PART
    repairs: bool = False
    settled: bool = True


SEVERITY = (Verdict.PENDING, Verdict.ACCEPTED, Verdict.STALE, Verdict.FINISHED, Verdict.REFUSED)


class ReplicaMachine(msgspec.Struct):
    """One replica of one generation.

    Attributes:
        trains: False for a leader that only looks on.
        saves: the leader: it need not wait until the last step is saved.
        first_judges: whether the other servers are sent a push only when ps:0 has accepted it.
        patience_s: how long a server may take to answer a pull before it must say why.
        versions: of the values at hand, a server.
        outcome: of the newest push, once every server has answered it.
        cut: how every batch is cut into parts.
        tally: leader: the sums of the epochs that it has not ended, as of the values at hand.
        inner: in local steps, the optimizer of the replicas, as of the values at hand.
    """

    servers: int
    generation: int
    incarnation: int
    plan_hash: str
    sync: bool
    trains: bool = True
    saves: bool = False
    nan_policy: NanPolicy = NanPolicy.REFUSE
    first_judges: bool = False
    patience_s: float = 5.0
    sequence: int = 0
    host: int = 0
    term: int = 0
    phase: Phase = msgspec.field(default_factory=Pulling)
    turn: NextPart = msgspec.field(default_factory=NextPart)
    max_steps: int = 0
    first_step: int = 0
    versions: list[int] = msgspec.field(default_factory=list)
    unanswered: dict[int, AnyMessage] = msgspec.field(default_factory=dict)
    outcome: Outcome | None = None
    cut: BatchCut = UNCUT
    tally: tuple[tuple[int, Sums], ...] = ()
    inner: dict[str, Any] | None = None
    _pending: tuple[int, int] = (-1, 0)  # a version, and how many contributions to it are held
    _answered: int = 0  # async: the newest push that every server has answered
    _ended_early: bool = False  # the leader has ended training before the step that was announced first

    def __post_init__(self) -> None:
        self.versions = [0] * self.servers

    @property
    def global_step(self) -> int:
        return self.versions[self.host]

    def _others(self) -> list[int]:
        return [server for server in range(self.servers) if server != self.host]

    @property
    def finished(self) -> bool:
        return type(self.phase) is Finished

    @property
    def repairs(self) -> bool:
        return self.turn.repairs

    @property
    def held(self) -> bool:
        """Leader: the next version waits for its order, and so does the permission to push."""
        return self.turn.permit is Permit.HELD

    @property
    def rows(self) -> Mapping[int, Row]:
        return self.phase.rows if isinstance(self.phase, Finished) else {}

    def start(self) -> list[Outgoing]:
        """Ask ps:0 for values and permission to begin; the other servers only once it agrees."""
        self.phase = Pulling(aged=True)
        self._pending = (-1, 0)
        self.versions = [0] * self.servers
        return [self._ask(self.host, at_least=0)]

    def wait_for(self, version: int) -> list[Outgoing]:
        awaited = min(version, self.max_steps)
        self.phase = Pulling(aged=True, awaited=awaited)
        return [self._ask(self.host, awaited)]

    def push(
        self,
        finite: bool = True,
        *,
        examples: int = 1,
        empty: int = 0,
        sums: Sums | None = None,
        steps: int = 1,
        step_s: float = 0.0,
    ) -> list[Outgoing]:
        """Contribute the gradient from the values at hand; other arguments as in `Push`.

        Args:
            finite: whether it is free of NaN and infinity.
            examples: 0 where the part has none: then there is no gradient.
            empty: how many parts of the batch have no examples.
        """
        if type(self.phase) is not ValuesReady:
            raise AssertionError(f"a replica that is {type(self.phase).__name__.lower()} has nothing to push")
        if self.turn.permit is Permit.HELD:
            raise AssertionError("a leader whose order is waited for may not push")
        self.sequence = self.sequence + 1
        step, held = self._pending
        ordinal = held if step == self.versions[self.host] else 0
        for_others: list[Outgoing] = []
        self.phase = Pushing(ordinal, {}, for_others)
        outgoing: list[Outgoing] = []
        for server, version in enumerate(self.versions):
            message = Push(
                generation=self.generation,
                incarnation=self.incarnation,
                sequence=self.sequence,
                base_version=version,
                plan_hash=self.plan_hash,
                ordinal=ordinal,
                finite=finite,
                part=self.turn.part,
                term=self.term,
                examples=examples,
                empty=empty,
                sums=sums if server == self.host else None,
                steps=steps,
                step_s=step_s,
            )
            if server != self.host and self.first_judges:
                for_others.append((server, message))
            else:
                self.unanswered[server] = message
                outgoing += [(server, message)]
        return outgoing

    def look_up(self, tables: Mapping[int, tuple[int, ...]]) -> list[Outgoing]:
        """Ask for rows of tables, by server. If a new term is heard of, that begins with values instead."""
        return [
            self._repeat(
                server,
                LookupRows(
                    generation=self.generation, tables=numbers, wait_s=self.patience_s, term=self.term
                ),
            )
            for server, numbers in tables.items()
        ]

    def awaits_values(self, message: AnyMessage) -> bool:
        """Return whether an answer has to come with values: not a pending one, nor news of a later term."""
        if type(self.phase) is Draining:
            return False
        if isinstance(message, Reply):
            return message.verdict is not Verdict.PENDING
        return (
            isinstance(message, Values)
            and message.generation == self.generation
            and self.term in (0, message.term)
        )

    def receive(self, server: int, message: AnyMessage) -> list[Outgoing]:
        """Process a server's answer. Raises a PeerRefusedError, a TooFewReplicasError, or a
        NonFiniteGradientError where the policy is ``fail``.
        """
        asked = self.unanswered.pop(server, None)
        if type(message) is Values and message.generation == self.generation:
            if 0 < self.term < message.term:
                self.phase = Draining()
            self.term = max(self.term, message.term)
        if type(self.phase) is Draining and isinstance(message, Values | Reply | Rows | NotReady):
            return self._begin_again()
        match message:
            case Reply() if type(self.phase) is Pushing:
                return self._reply(self.phase, server, message)
            case Values() if message.generation > self.generation:
                return self._end(server)
            case Conclude():
                self.phase = Finished(message.rows)
                return []
            case Values():
                return self._values(server, message)
            case Rows() if isinstance(asked, LookupRows):
                return []
            case NotReady() if asked is not None:
                again = isinstance(asked, Push)
                return [self._ask(server, at_least=0) if again else self._repeat(server, asked)]
            case _:
                raise _refused(server, asked, message)

    def _begin_again(self) -> list[Outgoing]:
        if self.unanswered:
            return []
        self.outcome = Outcome(Verdict.VOID)
        return self.start()  # a leader that waited for a version has to repeat its order first

    def _ask(self, server: int, at_least: int, concluded: bool = False) -> Outgoing:
        return self._repeat(
            server,
            Pull(
                generation=self.generation,
                at_least=at_least,
                wait_s=self.patience_s,
                term=self.term,
                concluded=concluded,
                answered=self._answered,
            ),
        )

    def _repeat(self, server: int, message: AnyMessage) -> Outgoing:
        self.unanswered[server] = message
        return server, message

    def _end(self, server: int) -> list[Outgoing]:
        """End without having seen the end: the servers train the next generation already."""
        self.outcome = Outcome(Verdict.FINISHED)
        self.versions = [self.max_steps] * self.servers
        asked = self.unanswered.get(self.host)
        self.unanswered.clear()
        if asked is not None and server != self.host:
            self.unanswered[self.host] = asked  # its answer is on the way
            return []
        if self.finished:
            return []
        self.phase = Closing()
        return [self._ask(self.host, 0, concluded=True)]

    def _values(self, server: int, message: Values) -> list[Outgoing]:
        self.versions[server] = message.version
        self._ended_early |= 0 < message.max_steps < self.max_steps
        self.max_steps = message.max_steps
        self.first_step = message.first_step
        if server == self.host:
            permit = Permit.GRANTED if message.ticket else Permit.HELD if message.held else Permit.NONE
            self.turn = NextPart(permit, message.part, message.repairs, message.settled)
            self.cut = BatchCut(message.parts, message.even, message.rest, message.speeds)
            self.tally = message.tally
            self.inner = message.inner or self.inner
        if self.unanswered:
            return []
        return self._settle(self.phase if isinstance(self.phase, Pulling) else Pulling())

    def _reply(self, pushed: Pushing, server: int, reply: Reply) -> list[Outgoing]:
        pushed.replies[server] = reply
        if reply.verdict is not Verdict.PENDING:
            self.versions[server] = reply.version
        if server == self.host:
            permit = Permit.GRANTED if reply.ticket else Permit.NONE
            self.turn = NextPart(permit, reply.part, reply.repairs, self.sync or self.servers == 1)
            if reply.speeds:
                self.cut = replace(self.cut, speeds=reply.speeds)
            self.inner = reply.inner or self.inner
            if reply.verdict is not Verdict.PENDING:
                self.tally = reply.tally
            if reply.verdict is Verdict.FINISHED:
                self.max_steps = min(self.max_steps, reply.version)  # the leader may have ended training
            if pushed.for_others and reply.verdict is Verdict.ACCEPTED:
                return [self._repeat(other, message) for other, message in pushed.for_others]
        if self.unanswered:
            return []
        self._answered = 0 if self.sync else self.sequence
        self.outcome = outcome = _together(list(pushed.replies.values()))
        if outcome.verdict is Verdict.REFUSED and self.nan_policy == NanPolicy.FAIL:
            raise NonFiniteGradientError(outcome.reason or "a gradient was refused")
        if outcome.verdict is Verdict.PENDING:
            self._pending = self.versions[self.host], pushed.ordinal + 1
        # Servers that were not sent what ps:0 did not accept have only newer values to give.
        first = pushed.replies[self.host]
        kept_back = bool(pushed.for_others) and first.verdict is not Verdict.ACCEPTED
        # An order may have come before ps:0 has answered again, and after the others have.
        return self._settle(Pulling(aged=kept_back or (self.sync and first.duplicate)))

    def _settle(self, pulled: Pulling) -> list[Outgoing]:
        """Every server has answered: ready, finished, or some must be asked (again)."""
        turn = self.turn
        first = self.versions[self.host]
        newest = max(self.versions)
        over = first >= self.max_steps
        if over and not (turn.settled or turn.repairs):
            return self._pull([self.host], self.max_steps, Pulling(True, pulled.awaited, pulled.last))
        if (over and not turn.repairs) or (self.sync and newest >= self.max_steps):
            return self._close(pulled)
        if first < pulled.awaited or not (self.trains or turn.settled):
            return self._pull([self.host], pulled.awaited, Pulling(True, pulled.awaited))
        if self.trains and turn.permit is Permit.NONE:
            return self._pull([self.host], 0, Pulling(aged=True))
        first_is_behind = first < newest
        differ = self.sync and self.versions.count(newest) != self.servers
        if differ and (first_is_behind or not pulled.aged):
            # ps:0 may answer after the leader has assigned values at the version that others have shown.
            behind = [s for s, v in enumerate(self.versions) if v < newest]
            return self._pull(behind, newest, Pulling(aged=first_is_behind))
        if pulled.aged and self.servers > 1:
            at_least = newest if self.sync else first if turn.permit is Permit.HELD else 0
            return self._pull(self._others(), at_least, Pulling())
        self.phase = READY
        return []

    def _close(self, pulled: Pulling) -> list[Outgoing]:
        """Get the final values, until they are saved; the leader may have changed the last version."""
        others = self._others() if self._ended_early else ()
        old = [s for s, v in enumerate(self.versions) if v < self.max_steps or s in others]
        if old and not pulled.last:
            return self._pull(old, self.max_steps, Pulling(pulled.aged, last=True))
        if self.saves:
            self.phase = Finished()
            return []
        self.phase = Closing()
        return [self._ask(self.host, self.max_steps, concluded=True)]

    def _pull(self, servers: Sequence[int], at_least: int, phase: Pulling) -> list[Outgoing]:
        self.phase = phase
        return [self._ask(server, at_least) for server in servers]


def _refused(server: int, asked: AnyMessage | None, message: AnyMessage) -> DtrainError:
    if not isinstance(message, Refusal):
        return PeerRefusedError(f"ps:{server} answered {type(asked).__name__} with {type(message).__name__}")
    too_few = message.kind is RefusalKind.TOO_FEW_REPLICAS
    return (TooFewReplicasError if too_few else PeerRefusedError)(message.reason)


def _together(replies: Sequence[Reply]) -> Outcome:
    gravest = replies[0]
    staleness = gravest.staleness
    accepted = gravest.accepted
    stale = gravest.stale
    for reply in replies[1:]:
        if reply.verdict is not gravest.verdict and SEVERITY.index(reply.verdict) > SEVERITY.index(
            gravest.verdict
        ):
            gravest = reply
        if reply.staleness > staleness:
            staleness = reply.staleness
        if reply.accepted < accepted:
            accepted = reply.accepted
        if reply.stale > stale:
            stale = reply.stale
    return Outcome(gravest.verdict, staleness, accepted, stale, gravest.reason)
