"""The replica's machine: what a training task says to the parameter servers, and when it may compute.
(message) -> messages.

    pulling   every server has been asked for its values; in sync all must be of one version, the newest
    ready     the values are there (and, in async, ps:0's ticket): compute a gradient
    pushing   the gradient is on its way to every server; their answers carry the verdict and the next values
    closing   the last step has been made and the final values are here; the leader has not saved them yet
    finished  it has

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
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from dtrain.errors import DtrainError, NonFiniteGradientError, PeerRefusedError, TooFewReplicasError
from dtrain.messages import (
    AnyMessage,
    Conclude,
    Lookup,
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
from dtrain.protocol.batch_cut import UNCUT, BatchCut
from dtrain.protocol.outcome import Outcome

Outgoing = tuple[int, AnyMessage]
"""A server's index and what it is told. A Push is accompanied by that server's gradient blocks, a Lookup by
ids.
"""

SEVERITY = (Verdict.PENDING, Verdict.ACCEPTED, Verdict.STALE, Verdict.FINISHED, Verdict.REFUSED)


class Phase(Enum):
    """The phase of a replica."""

    PULLING = "pulling"
    READY = "ready"
    PUSHING = "pushing"
    CLOSING = "closing"
    FINISHED = "finished"


@dataclass
class Replica:
    """One replica of one generation.

    Attributes:
        sync: whether all servers must show one version.
        trains: False for a leader that only looks on.
        saves: the leader: it need not wait until the last step is saved.
        term: the servers' newest, as far as it was heard; 0 before.
        first_judges: whether the other servers are sent a push only when ps:0 has accepted it.
        patience_s: how long a server may take to answer a pull before it must say why.
        versions: of the values at hand, a server.
        unanswered: by server, what was asked and not yet answered.
        first_step: at which this generation began.
        held: leader: the next version waits for its order, and so does the permission to push.
        awaited: the version that a leader which does not train waits for.
        part: which one to compute next, as ps:0 says.
        repairs: whether it makes no step, because ps:0 has it already and another server may not.
        cut: how every batch is cut into parts.
        tally: leader: the sums of the epochs that it has not ended, as of the values at hand.
        rows: when it is finished: the numbers of every epoch.
    """

    servers: int
    generation: int
    incarnation: int
    plan_hash: str
    sync: bool
    trains: bool = True
    saves: bool = False
    nan_policy: str = "refuse"
    first_judges: bool = False
    patience_s: float = 5.0
    term: int = 0
    phase: Phase = Phase.PULLING
    max_steps: int = 0
    first_step: int = 0
    held: bool = False
    awaited: int = 0
    sequence: int = 0
    versions: list[int] = field(default_factory=list)
    unanswered: dict[int, AnyMessage] = field(default_factory=dict)
    outcome: Outcome | None = None
    part: int = -1
    repairs: bool = False
    cut: BatchCut = UNCUT
    tally: tuple[tuple[int, Sums], ...] = ()
    rows: dict[int, Row] = field(default_factory=dict)
    _ordinal: int = 0
    _contributed_to: int = -1
    _ticket: bool = True
    _refresh: bool = True
    _final_pulls: int = 0
    _ended_early: bool = False
    _replies: dict[int, Reply] = field(default_factory=dict)
    _void: bool = False
    _settled: bool = True
    _answered: int = 0
    _for_others: list[Outgoing] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.versions = [0] * self.servers

    @property
    def global_step(self) -> int:
        """The global step, by ps:0's count."""
        return self.versions[0]

    @property
    def finished(self) -> bool:
        """True if the last step is done."""
        return self.phase is Phase.FINISHED

    def start(self) -> list[Outgoing]:
        """Ask ps:0 for its values and permission to begin; the other servers are asked once it has said
        yes.
        """
        self.phase = Phase.PULLING
        self._void = False
        self._replies = {}
        self._for_others = []
        self._contributed_to = -1
        self._ticket = True
        self._refresh = True
        self._final_pulls = 0
        self.versions = [0] * self.servers
        return [self._ask(0, at_least=0)]

    def wait_for(self, version: int) -> list[Outgoing]:
        """Look again when this version has been made, or the last one."""
        self.phase = Phase.PULLING
        self._refresh = True
        self.awaited = min(version, self.max_steps)
        return [self._ask(0, self.awaited)]

    def fetch_again(self, server: int) -> list[Outgoing]:
        """Get the values of this server again, or newer ones: those at hand have not come whole."""
        self.phase = Phase.PULLING
        return [self._ask(server, self.versions[server])]

    def push(
        self, finite: bool = True, *, examples: int = 1, empty: int = 0, sums: Sums | None = None
    ) -> list[Outgoing]:
        """Contribute the gradient from the values at hand; other arguments as in `Push`.

        Args:
            finite: whether it is free of NaN and infinity.
            examples: 0 where the part has none: then there is no gradient.
            empty: how many parts of the batch have no examples.
            sums: for ps:0.
        """
        if self.phase is not Phase.READY:
            raise AssertionError(f"a replica that is {self.phase.value} has nothing to push")
        if self.held:
            raise AssertionError("a leader whose order is waited for may not push")
        self.phase = Phase.PUSHING
        self.sequence = self.sequence + 1
        self._replies = {}
        step = self.versions[0]
        if self._contributed_to != step:
            self._contributed_to = step
            self._ordinal = 0
        outgoing: list[Outgoing] = []
        for server, version in enumerate(self.versions):
            message = Push(
                generation=self.generation,
                incarnation=self.incarnation,
                sequence=self.sequence,
                base_version=version,
                plan_hash=self.plan_hash,
                ordinal=self._ordinal,
                finite=finite,
                part=self.part,
                term=self.term,
                examples=examples,
                empty=empty,
                sums=sums if server == 0 else None,
            )
            if server and self.first_judges:
                self._for_others.append((server, message))
            else:
                self.unanswered[server] = message
                outgoing += [(server, message)]
        return outgoing

    def look_up(self, tables: Mapping[int, tuple[int, ...]]) -> list[Outgoing]:
        """Rows are needed: by server, the numbers of tables. If what is heard is a new term, that begins with
        values instead.
        """
        return [
            self._repeat(
                server,
                Lookup(generation=self.generation, tables=numbers, wait_s=self.patience_s, term=self.term),
            )
            for server, numbers in tables.items()
        ]

    def receive(self, server: int, message: AnyMessage) -> list[Outgoing]:
        """Take a server's answer.

        Raises:
            PeerRefusedError: it will not talk to this replica (another plan, another model).
            TooFewReplicasError: the servers have given up waiting for others.
            NonFiniteGradientError: the gradient held NaN and the policy is ``fail``.
        """
        asked = self.unanswered.pop(server, None)
        if type(message) is Values and message.generation == self.generation:
            self._void |= 0 < self.term < message.term
            self.term = max(self.term, message.term)
        if self._void and isinstance(message, Values | Reply | Rows | NotReady):
            return self._begin_again()
        match message:
            case Reply():
                return self._reply(server, message)
            case Values() if message.generation > self.generation:
                return self._end(server)
            case Conclude():
                self.phase = Phase.FINISHED
                self.rows = message.rows
                return []
            case Values():
                return self._values(server, message)
            case Rows() if isinstance(asked, Lookup):
                return []
            case NotReady() if asked is not None:
                again = isinstance(asked, Push)
                return [self._ask(server, at_least=0) if again else self._repeat(server, asked)]
            case _:
                raise _refused(server, asked, message)

    def _begin_again(self) -> list[Outgoing]:
        """Pull, when every server has answered what was asked in the earlier term."""
        if self.unanswered:
            return []
        self.outcome = Outcome(Verdict.VOID)
        self.awaited = 0  # a leader that waits for a version has to repeat its order first
        return self.start()

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
        """End without having seen the end: the servers train the next generation, and ps:0 still knows what
        came of this one.
        """
        known = self.phase is Phase.FINISHED
        self.phase = Phase.FINISHED if known else Phase.CLOSING
        self.outcome = Outcome(Verdict.FINISHED)
        self.versions = [self.max_steps] * self.servers
        asked = self.unanswered.get(0)
        self.unanswered.clear()
        if asked is not None and server > 0:
            self.unanswered[0] = asked  # its answer is on the way
            return []
        return [] if known else [self._ask(0, 0, concluded=True)]

    def _values(self, server: int, message: Values) -> list[Outgoing]:
        self.versions[server] = message.version
        self._ended_early |= 0 < message.max_steps < self.max_steps
        self.max_steps = message.max_steps
        self.first_step = message.first_step
        if server == 0:
            self._ticket = message.ticket
            self.part = message.part
            self.held = message.held and not message.ticket
            self.cut = BatchCut(message.parts, message.even)
            self.tally = message.tally
            self.repairs = message.repairs
            self._settled = message.settled
        return [] if self.unanswered else self._settle()

    def _reply(self, server: int, reply: Reply) -> list[Outgoing]:
        self._replies[server] = reply
        if reply.verdict is not Verdict.PENDING:
            self.versions[server] = reply.version
        if server == 0:
            self._ticket = reply.ticket
            self.part = reply.part
            self.repairs = reply.repairs
            self._settled = self.sync or self.servers == 1
            if reply.verdict is not Verdict.PENDING:
                self.tally = reply.tally
            if reply.verdict is Verdict.FINISHED:
                self.max_steps = min(self.max_steps, reply.version)  # the leader may have ended training
            if self._for_others and (outgoing := self._pass_on(reply.verdict)):
                return outgoing
        if self.unanswered:
            return []
        self._answered = 0 if self.sync else self.sequence
        self.outcome = outcome = _together(list(self._replies.values()))
        if outcome.verdict is Verdict.REFUSED and self.nan_policy == "fail":
            raise NonFiniteGradientError(outcome.reason or "a gradient was refused")
        self._ordinal += outcome.verdict is Verdict.PENDING
        return self._settle()

    def _pass_on(self, verdict: Verdict) -> list[Outgoing]:
        """Send the other servers what ps:0 has judged; where it was not accepted they have only newer values
        to give.
        """
        outgoing = self._for_others
        self._for_others = []
        self._refresh |= verdict is not Verdict.ACCEPTED
        accepted = verdict is Verdict.ACCEPTED
        return [self._repeat(server, message) for server, message in outgoing] if accepted else []

    def _settle(self) -> list[Outgoing]:
        """Every server has answered: ready, finished, or some must be asked (again)."""
        first = self.versions[0]
        newest = max(self.versions)
        over = first >= self.max_steps
        if over and not (self._settled or self.repairs):
            self._refresh = True
            return self._pull([0], self.max_steps)
        if (over and not self.repairs) or (self.sync and newest >= self.max_steps):
            return self._close()
        if first < self.awaited or not (self.trains or self._settled):
            self._refresh = True
            return self._pull([0], self.awaited)
        if self.trains and not (self._ticket or self.held):
            self._refresh = True
            return self._pull([0], 0)
        first_is_behind = first < newest
        differ = self.sync and self.versions.count(newest) != self.servers
        if differ and (first_is_behind or not self._refresh):
            # ps:0 may answer after the leader has assigned values at the version that others have shown.
            self._refresh = first_is_behind
            return self._pull([s for s, v in enumerate(self.versions) if v < newest], newest)
        if self._refresh:
            # The other servers' values have aged while ps:0 made us wait.
            self._refresh = False
            return self._pull(range(1, self.servers), newest if self.sync else first if self.held else 0)
        self.phase = Phase.READY
        return []

    def _close(self) -> list[Outgoing]:
        """Get the final values, and wait until they are saved.

        Where the leader has ended training it may also have changed the last version, after it was answered
        with.
        """
        old = [s for s, v in enumerate(self.versions) if v < self.max_steps or (self._ended_early and s > 0)]
        behind = old if self._final_pulls == 0 else []
        self._final_pulls += 1
        outgoing = self._pull(behind, self.max_steps, then=Phase.CLOSING)
        if self.phase is Phase.CLOSING and self.saves:
            self.phase = Phase.FINISHED
        elif self.phase is Phase.CLOSING:
            outgoing += [self._ask(0, self.max_steps, concluded=True)]
        return outgoing

    def _pull(self, behind: Sequence[int], at_least: int, then: Phase = Phase.READY) -> list[Outgoing]:
        self.phase = Phase.PULLING if behind else then
        return [self._ask(server, at_least) for server in behind]


def _refused(server: int, asked: AnyMessage | None, message: AnyMessage) -> DtrainError:
    """Return the error for an answer that ends this replica's part in the training."""
    match message:
        case Refusal(reason=reason, kind=RefusalKind.TOO_FEW_REPLICAS):
            return TooFewReplicasError(reason)
        case Refusal(reason=reason):
            return PeerRefusedError(reason)
        case _:
            return PeerRefusedError(
                f"ps:{server} answered {type(asked).__name__} with {type(message).__name__}"
            )


def _together(replies: Sequence[Reply]) -> Outcome:
    """Return what the servers' answers to one push come to."""
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
