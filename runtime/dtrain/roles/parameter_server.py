"""The parameter server's machine: (message, now) -> actions. No socket, no thread, no clock.

It joins the rules (`protocol`) to one server's memory (`store`): who may talk about which generation of variables, what becomes
of a push (`sync_pushes`, `async_pushes`), who is alive, what a checkpoint contains, when the server may go. The driver calls it
under one lock and carries out what it returns before anything else happens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from dtrain.cluster import ClusterSpec, Role, TaskId
from dtrain.config import TrainingSection
from dtrain.errors import DtrainError
from dtrain.messages import (
    AnyMessage,
    Commit,
    Complete,
    Conclude,
    Control,
    Farewell,
    Heartbeat,
    HeartbeatReply,
    Hold,
    Initialise,
    Initialised,
    Lineage,
    Load,
    Lookup,
    NotReady,
    Pull,
    Push,
    Refusal,
    Resume,
    Snapshot,
    SnapshotRows,
    Subscribe,
    Values,
)
from dtrain.protocol.membership import JOIN_S, LEASE_S, Membership, MemberState
from dtrain.roles.actions import Action, Caller, End, Send
from dtrain.roles.held import Held
from dtrain.roles.obedience import obey
from dtrain.roles.published import Room
from dtrain.roles.request import Question, Request
from dtrain.roles.snapshots import Snapshots
from dtrain.roles.sync_pushes import SyncPushes
from dtrain.roles.table_answers import table_answer

Blocks = Sequence[np.ndarray[Any, Any]]
Actions = Iterator[Action]

LEADER_GRACE_S = 60.0

LEADERS_DEEDS: dict[type[AnyMessage], str] = {
    Initialise: "initialise variables",
    Hold: "give orders",
    Control: "give orders",
    Conclude: "conclude a generation",
    Farewell: "say farewell",
}


@dataclass
class ParameterServer:
    """One ``ps`` task. `index` 0 also keeps the membership and makes the decisions for all.

    Attributes:
        ranks: rank of each replica, by task name; of those that have joined as well.
        held: None before the leader has initialised it.
        room: where values are kept.
    """

    index: int
    cluster: ClusterSpec
    training: TrainingSection
    now: float
    room: Room = field(default_factory=Room)
    ranks: dict[str, int] = field(init=False)
    membership: Membership = field(init=False)
    held: Held | None = field(default=None, init=False)
    _loading: Held | None = field(default=None, init=False)
    statuses: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)
    _joined: list[TaskId] = field(default_factory=list, init=False)
    _subscribers: list[Caller] = field(default_factory=list, init=False)
    _requests: list[Request] = field(default_factory=list, init=False)
    _snapshots: Snapshots = field(default_factory=Snapshots, init=False)
    _concluded: int = field(default=0, init=False)
    _farewell: bool = field(default=False, init=False)
    _leader_lost_since_s: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.ranks = self._ranks(self.training)
        expected = list(self.ranks) if self.index == 0 else []
        self.membership = Membership(expected, lease_s=LEASE_S, join_s=JOIN_S, now=self.now)

    def _ranks(self, training: TrainingSection) -> dict[str, int]:
        tasks = [*self.cluster.replicas(training.chief_trains), *self._joined]
        return {str(task): rank for task in tasks if (rank := self.cluster.rank(task, training.chief_trains)) is not None}

    def _let_join(self, sender: TaskId) -> None:
        """A worker that the cluster does not name has been let in by the handshake: it joins."""
        if sender.role is Role.WORKER and sender.index >= self.cluster.first_joined and sender not in self._joined:
            self._joined.append(sender)
            self.ranks = self._ranks(self.training)

    # What is held

    def receive(self, caller: Caller, sender: TaskId, message: AnyMessage, blocks: Blocks, now: float) -> Actions:
        """Deal with one message. The returned actions must all be carried out before the next call."""
        self._let_join(sender)
        if (deed := LEADERS_DEEDS.get(type(message))) and sender != self.cluster.leader:
            yield Send(caller, Refusal(f"only {self.cluster.leader} may {deed}, not {sender}"))
            return
        handle: Callable[..., Iterator[Action]] | None = getattr(self, f"_on_{type(message).__name__.lower()}", None)
        if handle is None:
            yield Send(caller, Refusal(f"a parameter server does not take {type(message).__name__} messages"))
            return
        yield from handle(caller, sender, message, blocks, now)
        yield from self._answer_requests(now)

    def _on_initialise(self, caller: Caller, sender: TaskId, message: Initialise, blocks: Blocks, now: float) -> Actions:
        before = self.held
        if before is not None and (message.generation, message.term) <= (before.generation, before.term):
            yield Send(caller, Refusal(f"ps:{self.index} holds term {before.term} of generation {before.generation} already"))
            return
        try:
            held = Held.of(message, blocks, self.cluster, self.index, self._subscribers, self.room)
        except (DtrainError, msgspec.ValidationError) as error:
            yield Send(caller, Refusal(f"the leader's plan, optimizer and values do not fit together: {error}"))
            return
        same = before is not None and before.generation == message.generation
        yield Send(caller, Initialised(before.pushes.version if before and same else -1))
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
        """A term begins; whoever waits in the one before is told."""
        before, self.held, self._loading = self.held, held, None
        self.training, self.ranks = held.training, self._ranks(held.training)
        for waiting in before.pushes.callers() if before else ():
            yield self._moved_on(waiting)
        yield from self._members_changed(now)

    # Reading

    def _on_pull(self, caller: Caller, sender: TaskId, message: Question, blocks: Blocks, now: float) -> Actions:
        self._requests.append(Request(caller, str(sender), message, now + message.wait_s, blocks))
        return iter(())

    _on_lookup = _on_pull

    def _on_snapshot(self, caller: Caller, sender: TaskId, message: Snapshot, blocks: Blocks, now: float) -> Actions:
        self._snapshots.asked(self.held, message, now)
        return self._on_pull(caller, sender, message, blocks, now)

    def _on_resume(self, caller: Caller, sender: TaskId, message: Resume, blocks: Blocks, now: float) -> Actions:
        self._snapshots.resume(self.held)
        return iter(())

    def _on_snapshotrows(self, caller: Caller, sender: TaskId, message: SnapshotRows, blocks: Blocks, now: float) -> Actions:
        yield Send(caller, *table_answer(self.held, message, blocks))

    def _answer_requests(self, now: float) -> Actions:
        requests, self._requests = self._requests, []
        for request in requests:
            answer = self._answer(request, late=now >= request.deadline_s)
            if answer is None:
                self._requests.append(request)
            else:
                yield answer

    def _answer(self, request: Request, late: bool) -> Send | None:
        message, held = request.message, self.held
        if isinstance(message, Pull) and message.concluded and (self._farewell or self._concluded >= message.generation):
            return Send(request.caller, Conclude(message.generation))
        asked = 0 if isinstance(message, Snapshot) else message.generation
        if held is None or held.term < message.term or held.generation < asked:
            reason = f"ps:{self.index} waits for {self.cluster.leader} to initialise the variables"
            return Send(request.caller, NotReady(reason)) if late or isinstance(message, Snapshot) else None
        if asked and (held.generation > asked or 0 < message.term < held.term):
            return self._moved_on(request.caller)
        if held.pushes.failed:
            return Send(request.caller, Refusal(held.pushes.failed))
        if isinstance(message, Snapshot):
            answer = self._snapshots.answer(held, message, self.membership.tasks(MemberState.LIVE), late)
            return Send(request.caller, *answer) if answer else None
        if isinstance(message, Lookup):
            return Send(request.caller, *table_answer(held, message, request.blocks))
        if held.pushes.version < message.at_least and not late:
            return None
        if message.concluded:
            return Send(request.caller, NotReady(f"{self.cluster.leader} has not saved the last step")) if late else None
        return self._values(request, message, held, late)

    def _values(self, request: Request, message: Pull, held: Held, late: bool) -> Send | None:
        rank = self.ranks.get(request.task)
        finished = held.pushes.version >= held.max_steps
        if rank is None and self.index == 0 and held.pushes.version < message.at_least:
            # A leader that does not train waits for this version; values on the way would be one more copy.
            return Send(request.caller, NotReady("training goes on"))
        ticket = not finished and rank is not None and held.pushes.ticket(rank)
        held_back = held.pushes.held_back and request.task == str(self.cluster.leader)
        if rank is not None and not (ticket or finished or held_back or late):
            return None
        batch = held.dealer.give(rank) if rank is not None and ticket else -1
        step, plan, first_step = held.pushes.version, held.plan.to_dict(), held.lineage.first_step
        values = Values(held.generation, step, held.max_steps, plan, ticket, batch, held.term, first_step, held_back)
        return Send(request.caller, values, held.store.values if rank is None else held.pushes.values_for(rank))

    def _moved_on(self, caller: Caller) -> Send:
        """To one who is a generation or a term behind: there is another one now. Its values may be of another shape."""
        held = self.held
        assert held is not None
        return Send(caller, Values(held.generation, held.pushes.version, held.max_steps, {}, ticket=False, term=held.term))

    # Writing

    def _on_push(self, caller: Caller, sender: TaskId, message: Push, blocks: Blocks, now: float) -> Actions:
        replica, held = str(sender), self.held
        if replica in self.ranks and (held is None or (held.generation, held.term) != (message.generation, message.term)):
            # Its term is over, or this server has lost it and waits for a new one, of which it will be told.
            yield from self._on_pull(caller, sender, Pull(message.generation, 0, LEASE_S, message.term), (), now)
            return
        if replica not in self.ranks:
            yield Send(caller, Refusal(f"{replica} is not a replica of this run; replicas are {', '.join(self.ranks)}"))
            return
        assert held is not None
        if reason := held.push_refusal(replica, message, blocks):
            yield Send(caller, Refusal(reason))
            return
        row = held.seen.lookup(replica, message.incarnation, message.sequence)
        rank = self.ranks[replica]
        if isinstance(row, str):
            yield Send(caller, Refusal(row))
        elif row is not None and row.verdict is not None:
            yield Send(caller, *held.repeat(rank, row))
        elif row is None and not message.finite:
            held.dealer.pushed(rank, message.batch)
            yield Send(caller, *held.refuse(replica, rank, message))
        else:
            held.dealer.pushed(rank, message.batch)
            yield from held.pushes.push(caller, replica, rank, message, blocks, held.seen, now)

    # The one decision of a synchronous run

    def _sync(self, generation: int, term: int) -> SyncPushes | None:
        """The synchronous rule of a term; None if it is not what this server holds."""
        held = self.held
        rule = held.pushes if held is not None and (held.generation, held.term) == (generation, term) else None
        return rule if isinstance(rule, SyncPushes) else None

    def _on_complete(self, caller: Caller, sender: TaskId, message: Complete, blocks: Blocks, now: float) -> Actions:
        if (rule := self._sync(message.generation, message.term)) and self.held is not None:
            yield from rule.complete(sender.index, message, self.held.seen, now)

    def _on_subscribe(self, caller: Caller, sender: TaskId, message: Subscribe, blocks: Blocks, now: float) -> Actions:
        self._subscribers.append(caller)
        if self.held is not None and (rule := self._sync(self.held.generation, self.held.term)):
            yield from (Send(caller, commit) for commit in rule.commits_since(message))

    def _on_commit(self, caller: Caller, sender: TaskId, message: Commit, blocks: Blocks, now: float) -> Actions:
        if (rule := self._sync(message.generation, message.term)) and self.held is not None:
            try:
                yield from rule.commit(message, self.held.seen)
            except ValueError as error:
                yield End(f"ps:{self.index} cannot follow ps:0: {error}")

    def position(self) -> tuple[Subscribe, list[Complete]]:
        """ps:i: what to tell ps:0 on connecting to it (again): where this server stands, and what it holds."""
        held = self.held
        rule = self._sync(held.generation, held.term) if held else None
        if held is None or rule is None:
            return Subscribe(0, 0), []
        return Subscribe(held.generation, rule.version, held.term), rule.reports()

    # What the leader changes

    def _on_hold(self, caller: Caller, sender: TaskId, message: Hold | Control, blocks: Blocks, now: float) -> Actions:
        yield from obey(caller, self.held, message, blocks, now)

    _on_control = _on_hold

    # Who is alive

    def _on_heartbeat(self, caller: Caller, sender: TaskId, message: Heartbeat, blocks: Blocks, now: float) -> Actions:
        task = str(sender)
        before = self.membership.state(task)
        incarnation = self.membership.heartbeat(task, message.process, message.incarnation, now)
        if incarnation is None:
            yield Send(caller, Refusal(f"another process has taken the place of {task}"))
            return
        if message.status is not None:
            self.statuses[task] = message.status
        if message.leaving:
            self.membership.leave(task)
        yield Send(caller, self._heartbeat_reply(sender, incarnation))
        if message.leaving or before is not MemberState.LIVE:
            yield from self._members_changed(now)

    def _heartbeat_reply(self, sender: TaskId, incarnation: int) -> HeartbeatReply:
        held = self.held
        statuses = tuple(self.statuses.values()) if sender == self.cluster.leader else ()
        return HeartbeatReply(
            incarnation,
            held.generation if held else 0,
            held.pushes.version if held else 0,
            self._farewell,
            waiting_for=self._awaited(),
            failed=held.pushes.failed if held else None,
            directory=held.directory if held else None,
            statuses=statuses,
            term=held.term if held else 0,
            lineage=held.lineage if held else Lineage(),
        )

    def _awaited(self) -> str | None:
        """Who has to do something before a replica can go on."""
        held = self.held
        ended = held is not None and held.pushes.version >= held.max_steps and self._concluded < held.generation
        if held is None or ended or held.pushes.held_back:
            return str(self.cluster.leader)
        ranks, servers = held.pushes.awaited()
        names = [*(f"ps:{server}" for server in servers), *(name for name, rank in self.ranks.items() if rank in ranks)]
        return ", ".join(names) or None

    def _members_changed(self, now: float) -> Actions:
        if self.held is not None and self.index == 0:
            gone = self.membership.tasks(MemberState.LOST, MemberState.LEFT)
            live = [rank for task, rank in self.ranks.items() if task not in gone]
            self.held.dealer.lose([rank for rank in self.ranks.values() if rank not in live])
            yield from self.held.pushes.members_changed(live, self.held.seen, now)

    def disconnected(self, caller: Caller) -> None:
        """A connection is gone: whatever waited on it is not answered."""
        self._requests = [request for request in self._requests if request.caller != caller]
        if caller in self._subscribers:
            self._subscribers.remove(caller)
        if self.held is not None:
            self.held.pushes.disconnected(caller)

    # Time and the end

    def tick(self, now: float, connections: int) -> Actions:
        """Time has passed; `connections` are open. To be called a few times a second."""
        self._snapshots.tick(self.held, now)
        if self.membership.expire(now):
            yield from self._members_changed(now)
        if self.held is not None:
            yield from self.held.pushes.decide(self.held.seen, now)
        yield from self._answer_requests(now)
        if self._farewell and connections == 0:
            yield End()
        leader = str(self.cluster.leader)
        if self._farewell or self.membership.state(leader) not in (MemberState.LOST, MemberState.LEFT):
            self._leader_lost_since_s = None
        elif self._leader_lost_since_s is None:
            self._leader_lost_since_s = now
        elif now - self._leader_lost_since_s >= LEADER_GRACE_S:
            yield End(f"{leader} has not been heard of for {LEASE_S + LEADER_GRACE_S:g} s")

    def _on_conclude(self, caller: Caller, sender: TaskId, message: Conclude, blocks: Blocks, now: float) -> Actions:
        self._concluded = message.generation
        yield Send(caller, message)

    def _on_farewell(self, caller: Caller, sender: TaskId, message: Farewell, blocks: Blocks, now: float) -> Actions:
        self._farewell, held = True, self.held
        if self.index == 0 and held is not None and held.pushes.version < held.max_steps:
            held.pushes.failed = f"{sender} has ended training at step {held.pushes.version} of {held.max_steps}"
        yield Send(caller, message)
