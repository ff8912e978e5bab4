"""The parameter server's machine: (message, now) -> actions. No socket, no thread, no clock.

It joins the rules (`protocol`) to one server's memory (`store`): who may talk about which generation of
variables, what becomes of a push (`sync_pushes`, `async_pushes`), what is asked (`questions`), who is alive
and when the server may go (`attendance`), what a checkpoint contains (`snapshots`). The driver calls it under
one lock and carries out what it returns before anything else happens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec
import numpy as np

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config import ServerSection, WaitSection
from dtrain.errors import DtrainError, InputError
from dtrain.messages import (
    AnyMessage,
    Commit,
    Complete,
    Conclude,
    Control,
    Farewell,
    Heartbeat,
    Hold,
    Initialise,
    Initialised,
    Load,
    Mark,
    NotReady,
    Pull,
    Push,
    Record,
    Recorded,
    Refusal,
    RefusalKind,
    Release,
    Snapshot,
    SnapshotRows,
    Subscribe,
)
from dtrain.parameters.published import Room
from dtrain.protocol.membership import LEASE_S
from dtrain.protocol.part_dealer import NO_RANK
from dtrain.roles.parameter_server.actions import Action, Caller, End, Send
from dtrain.roles.parameter_server.attendance import Attendance
from dtrain.roles.parameter_server.held import Held
from dtrain.roles.parameter_server.obedience import obey
from dtrain.roles.parameter_server.questions import Questions, moved_on
from dtrain.roles.parameter_server.request import Question, Request
from dtrain.roles.parameter_server.snapshots import Snapshots
from dtrain.roles.parameter_server.sync_pushes import SyncPushes
from dtrain.roles.parameter_server.table_answers import table_answer

Blocks = Sequence[np.ndarray[Any, Any]]
Actions = Iterator[Action]

LEADERS_DEEDS: dict[type[AnyMessage], str] = {
    Initialise: "initialise variables",
    Hold: "give orders",
    Control: "give orders",
    Mark: "mark a checkpoint",
    Record: "record epochs",
    Conclude: "conclude a generation",
    Farewell: "say farewell",
}


@dataclass
class ParameterServer:
    """One ``ps`` task. `index` 0 also keeps the membership and makes the decisions for all.

    Attributes:
        held: None before the leader has initialised it.
        room: where values are kept.
        evaluators: how many tasks beside those of the cluster will come to ps:0.
        wait: how long others are waited for.
    """

    index: int
    cluster: ClusterSpec
    training: ServerSection
    now: float
    evaluators: int = 0
    wait: WaitSection = field(default_factory=WaitSection)
    room: Room = field(default_factory=Room)
    attendance: Attendance = field(init=False)
    held: Held | None = field(default=None, init=False)
    _loading: Held | None = field(default=None, init=False)
    _subscribers: list[Caller] = field(default_factory=list, init=False)
    _snapshots: Snapshots = field(default_factory=Snapshots, init=False)
    _questions: Questions = field(init=False)

    def __post_init__(self) -> None:
        self.attendance = Attendance(
            self.index, self.cluster, self.training.chief_trains, self.now, self.evaluators, self.wait
        )
        self._questions = Questions(self.attendance, self._snapshots)

    # What is held

    def receive(
        self, caller: Caller, sender: TaskId, message: AnyMessage, blocks: Blocks, now: float
    ) -> Actions:
        """Deal with one message. The returned actions must all be carried out before the next call."""
        self.attendance.let_join(sender)
        if (deed := LEADERS_DEEDS.get(type(message))) and sender != self.cluster.leader:
            yield Send(caller, Refusal(reason=f"only {self.cluster.leader} may {deed}, not {sender}"))
            return
        handle: Callable[..., Iterator[Action]] | None = getattr(self, _handler(type(message)), None)
        if handle is None:
            yield Send(
                caller, Refusal(reason=f"a parameter server does not take {type(message).__name__} messages")
            )
            return
        yield from handle(caller, sender, message, blocks, now)
        if self._questions.open or self._snapshots.waiting:
            yield from self._answers(now)

    def _answers(self, now: float) -> Actions:
        """To whatever can be answered now; a snapshot that is lets the pushes go that have waited for it."""
        yield from self._questions.answers(self.held, now)
        if released := self._snapshots.released(now):
            for caller, sender, push, blocks in released:
                yield from self._on_push(caller, sender, push, blocks, now)
            yield from self._answers(now)

    def _on_initialise(
        self, caller: Caller, sender: TaskId, message: Initialise, blocks: Blocks, now: float
    ) -> Actions:
        before = self.held
        # One that was sent before its connection broke may arrive after its repetition, while tables are
        # loaded.
        latest = self._loading or before
        if latest is not None and (message.generation, message.term) <= (latest.generation, latest.term):
            yield Send(
                caller,
                Refusal(
                    reason=f"ps:{self.index} holds term {latest.term} of generation "
                    f"{latest.generation} already"
                ),
            )
            return
        try:
            held = Held.of(message, blocks, self.cluster, self.index, self._subscribers, self.room)
        except (DtrainError, msgspec.ValidationError) as error:
            yield Send(
                caller,
                Refusal(reason=f"the leader's plan, optimizer and values do not fit together: {error}"),
            )
            return
        self.attendance.membership.heard_before(message.heard_of, now)
        same = before is not None and before.generation == message.generation
        yield Send(caller, Initialised(given_up=before.pushes.version if before and same else -1))
        if message.loads:
            self._loading = held
        else:
            yield from self._begin(held, now)

    def _on_load(self, caller: Caller, sender: TaskId, message: Load, blocks: Blocks, now: float) -> Actions:
        held, leads = self._loading, sender == self.cluster.leader
        held = held if leads and held is not None and held.term == message.term else None
        yield Send(caller, *table_answer(held, message, blocks))
        if message.last and held is not None:
            yield from self._begin(held, now)

    def _begin(self, held: Held, now: float) -> Actions:
        """Begin a term, and answer the tasks that wait in the one before."""
        before, self.held, self._loading = self.held, held, None
        self.training = held.training
        self.attendance.rank(held.training.chief_trains)
        for waiting in before.pushes.callers() if before else ():
            yield moved_on(waiting, held)
        yield from self.attendance.change(self.held, now)

    # Reading

    def _on_pull(
        self, caller: Caller, sender: TaskId, message: Question, blocks: Blocks, now: float
    ) -> Actions:
        if isinstance(message, Pull) and message.answered and self.held is not None:
            self.held.confirm(self.attendance.ranks.get(str(sender), NO_RANK), message.answered)
        self._questions.ask(Request(caller, str(sender), message, now + message.wait_s, blocks))
        return iter(())

    _on_lookup = _on_pull

    def _on_mark(self, caller: Caller, sender: TaskId, message: Mark, blocks: Blocks, now: float) -> Actions:
        held = self.held
        if held is None or held.term != message.term:
            yield Send(caller, NotReady(reason=f"ps:{self.index} is not in term {message.term}"))
            return
        self._snapshots.mark(message, now)
        yield Send(caller, held.marked())

    def _on_snapshot(
        self, caller: Caller, sender: TaskId, message: Snapshot, blocks: Blocks, now: float
    ) -> Actions:
        self._snapshots.asked(message, now)
        return self._on_pull(caller, sender, message, blocks, now)

    def _on_snapshotrows(
        self, caller: Caller, sender: TaskId, message: SnapshotRows, blocks: Blocks, now: float
    ) -> Actions:
        if message.number == self._snapshots.number:
            self._snapshots.read(now)
            yield Send(caller, *table_answer(self.held, message, blocks))
        else:
            yield Send(caller, Refusal(reason=f"ps:{self.index} has been asked for its state again since"))

    # Writing

    def _on_push(self, caller: Caller, sender: TaskId, message: Push, blocks: Blocks, now: float) -> Actions:
        if self._snapshots.keeps((caller, sender, message, blocks), now):
            return
        replica, held, ranks = str(sender), self.held, self.attendance.ranks
        if replica in ranks and (
            held is None or (held.generation, held.term) != (message.generation, message.term)
        ):
            # Its term is over, or this server has lost it and waits for a new one, of which it will be told.
            yield from self._on_pull(
                caller,
                sender,
                Pull(generation=message.generation, at_least=0, wait_s=LEASE_S, term=message.term),
                (),
                now,
            )
            return
        if replica not in ranks:
            yield Send(
                caller,
                Refusal(reason=f"{replica} is not a replica of this run; replicas are {', '.join(ranks)}"),
            )
            return
        assert held is not None
        if held.pushes.failed is not None:
            yield Send(caller, held.pushes.failed)
            return
        try:
            blocks = held.received(replica, message, blocks)
        except InputError as error:
            yield Send(caller, Refusal(reason=str(error)))
            return
        row = held.seen.lookup(replica, message.incarnation, message.sequence)
        rank = ranks[replica]
        if isinstance(row, str):
            yield Send(caller, Refusal(reason=row))
        elif row is not None and row.verdict is not None:
            yield Send(caller, *held.repeat(rank, row))
        elif row is None and not message.finite:
            yield Send(caller, *held.refuse(replica, rank, message))
            yield from held.pushes.share_out(held.seen, now)
            if held.halved:
                self.held = None  # the leader finds that, and gives every server the newest checkpoint
        else:
            yield from held.pushes.push(caller, replica, rank, message, blocks, held.seen, now)

    # The one decision of a synchronous run

    def _sync(self, generation: int, term: int) -> SyncPushes | None:
        """The synchronous rule of a term; None if it is not what this server holds."""
        held = self.held
        rule = (
            held.pushes if held is not None and (held.generation, held.term) == (generation, term) else None
        )
        return rule if isinstance(rule, SyncPushes) else None

    def _on_complete(
        self, caller: Caller, sender: TaskId, message: Complete, blocks: Blocks, now: float
    ) -> Actions:
        if (rule := self._sync(message.generation, message.term)) and self.held is not None:
            yield from rule.complete(sender.index, message, self.held.seen, now)

    def _on_subscribe(
        self, caller: Caller, sender: TaskId, message: Subscribe, blocks: Blocks, now: float
    ) -> Actions:
        self._subscribers.append(caller)
        if self.held is not None and (rule := self._sync(self.held.generation, self.held.term)):
            yield from (Send(caller, said) for said in rule.said_since(message))

    def _on_commit(
        self, caller: Caller, sender: TaskId, message: Commit, blocks: Blocks, now: float
    ) -> Actions:
        if (rule := self._sync(message.generation, message.term)) and self.held is not None:
            try:
                yield from rule.commit(message, self.held.seen)
            except ValueError as error:
                yield End(f"ps:{self.index} cannot follow ps:0: {error}")

    def _on_release(
        self, caller: Caller, sender: TaskId, message: Release, blocks: Blocks, now: float
    ) -> Actions:
        if (rule := self._sync(message.generation, message.term)) and self.held is not None:
            yield from rule.release_replica(message, self.held.seen)

    def position(self) -> tuple[Subscribe, list[Complete]]:
        """ps:i: what to tell ps:0 on connecting to it (again): where this server stands, and what it
        holds.
        """
        held = self.held
        rule = self._sync(held.generation, held.term) if held else None
        if held is None or rule is None:
            return Subscribe(generation=0, version=0), []
        return Subscribe(generation=held.generation, version=rule.version, term=held.term), rule.reports()

    # What the leader changes

    def _on_hold(
        self, caller: Caller, sender: TaskId, message: Hold | Control, blocks: Blocks, now: float
    ) -> Actions:
        yield from obey(caller, self.held, message, blocks, now)

    _on_control = _on_hold

    # Who is alive

    def _on_heartbeat(
        self, caller: Caller, sender: TaskId, message: Heartbeat, blocks: Blocks, now: float
    ) -> Actions:
        incarnation, news = self.attendance.heard(str(sender), message, now)
        if incarnation is None:
            yield Send(caller, Refusal(reason=f"another process has taken the place of {sender}"))
            return
        yield Send(caller, self.attendance.report(sender, incarnation, self.held))
        if news:
            yield from self.attendance.change(self.held, now)

    def disconnected(self, caller: Caller) -> None:
        """A connection is gone: whatever waited on it is not answered."""
        self._questions.forget(caller)
        self._snapshots.forget(caller)
        if caller in self._subscribers:
            self._subscribers.remove(caller)
        if self.held is not None:
            self.held.pushes.disconnected(caller)

    # Time and the end

    def tick(self, now: float, connections: int) -> Actions:
        """Time has passed. To be called a few times a second; `connections` as in `Attendance.end`."""
        self._snapshots.tick(self.held, now)
        if self.attendance.membership.expire(now):
            yield from self.attendance.change(self.held, now)
        if self.held is not None:
            yield from self.held.pushes.judge(self.held.seen, now)
        yield from self._answers(now)
        yield from self.attendance.end(self.held, now, connections)

    def _on_record(
        self, caller: Caller, sender: TaskId, message: Record, blocks: Blocks, now: float
    ) -> Actions:
        held = self.held
        if held is None or held.tally is None or held.generation != message.generation:
            yield Send(
                caller, NotReady(reason=f"ps:{self.index} does not hold generation {message.generation}")
            )
        elif message.epoch is None:
            yield Send(caller, Recorded(term=held.term, rows=held.tally.rows))
        else:
            # In another term the leader has not heard yet that the servers went back. What comes late on a
            # connection that broke was said again since, and more after it.
            if held.term == message.term and message.number > held.recorded:
                held.tally.record(message.epoch, message.rows)
                held.recorded = message.number
            yield Send(caller, Recorded(term=held.term, rows={}))

    def _on_conclude(
        self, caller: Caller, sender: TaskId, message: Conclude, blocks: Blocks, now: float
    ) -> Actions:
        self.attendance.conclude(message)
        yield Send(caller, message)

    def _on_farewell(
        self, caller: Caller, sender: TaskId, message: Farewell, blocks: Blocks, now: float
    ) -> Actions:
        self.attendance.farewell, held = True, self.held
        self.attendance.rows.update(message.rows)
        if self.index == 0 and held is not None and held.pushes.version < held.max_steps:
            held.pushes.failed = Refusal(
                reason=f"{sender} has ended training at step {held.pushes.version} of {held.max_steps}",
                kind=RefusalKind.ENDED,
            )
        yield Send(caller, Farewell())


@cache
def _handler(kind: type[AnyMessage]) -> str:
    return f"_on_{kind.__name__.lower()}"
