"""The parameter server's machine: (message, now) -> actions. No socket, no thread, no clock.

It joins the rules (`protocol`) to one server's memory (`parameters`): who may talk about which generation of
variables, what becomes of a push (`update_rules`), what is asked (`questions`), what a checkpoint
contains (`Snapshots`). Beside it stands the control plane's machine (`control.machine`), which takes what is
about members and decisions; at the control host the rules ask it by a call. The driver calls `receive` under
one lock and carries out what it returns before anything else happens.

Rule *Orderly end* (docs/design/protocol.md#orderly-end): whoever tells every task of a run to stop at once,
as cluster managers do, loses no step, because servers outlive the leader's last checkpoint. A server that is
told alone gives its leader time for a checkpoint.
"""

from functools import cache

import msgspec

from dtrain.cluster import JOINING, ClusterSpec, Role, TaskId
from dtrain.config import ServerSection, WaitSection
from dtrain.control.interface import Action, Caller, End, Later, Redeliver, Send
from dtrain.control.machine import ControlPlane
from dtrain.control.roster import obstacle
from dtrain.control.sync_steps import SyncSteps
from dtrain.errors import DtrainError, InputError
from dtrain.messages import (
    AnyMessage,
    Commit,
    Complete,
    Control,
    Controlled,
    Hold,
    Holding,
    Initialise,
    Initialised,
    Load,
    LookupRows,
    Mark,
    NotReady,
    Operate,
    Pull,
    Push,
    Refusal,
    Release,
    Share,
    Snapshot,
    SnapshotRows,
    Subscribe,
)
from dtrain.parameters.store import Change
from dtrain.parameters.versions import BufferAllocator
from dtrain.protocol.membership import LEASE_S
from dtrain.protocol.part_dealer import NO_RANK
from dtrain.roles.parameter_server.questions import (
    PendingRequest,
    Question,
    Questions,
    Snapshots,
    moved_on,
    table_answer,
)
from dtrain.roles.parameter_server.shared_variables import SharedVariables
from dtrain.roles.parameter_server.term_state import TermState
from dtrain.roles.parameter_server.update_rules import SyncRule
from dtrain.types import Blocks

STEP_MESSAGES = frozenset({Push, Complete, Commit, Release})
"""Messages of every step; after one, no open question has an answer before a certain version."""
_name = cache(str)
WAIT_MAX_S = 3600.0
"""No question stays open for longer, whatever its sender says."""


class ParameterServer:
    """One ``ps`` task: a part of the variables, and the control plane as this task knows it.

    Attributes:
        held: None before the leader has initialised it.
        shared: the variables of a coordinator program.
    """

    def __init__(
        self,
        index: int,
        cluster: ClusterSpec,
        training: ServerSection,
        now: float,
        evaluators: int = 0,
        wait: WaitSection | None = None,
        allocator: BufferAllocator | None = None,
    ) -> None:
        self.index = index
        self.cluster = cluster
        task = TaskId(Role.PS, index)
        self.control = ControlPlane(task, cluster, training, now, evaluators, wait or WaitSection())
        self.held: TermState | None = None
        self._allocator = allocator or BufferAllocator()
        self._loading: TermState | None = None
        self._servers = cluster.count(Role.PS)
        self.shared = SharedVariables(index, self._servers)
        self._snapshots = Snapshots()
        self._questions = Questions(self.control, self._snapshots)

    def receive(
        self, caller: Caller, sender: TaskId, message: AnyMessage, blocks: Blocks, now: float
    ) -> list[Action]:
        """Deal with one message. The returned actions must all be carried out before the next call."""
        actions = self._handle(caller, sender, message, blocks, now)
        if self._questions.open or self._snapshots.waiting:
            actions += self._answers_after(message, now)
        return actions

    def _handle(
        self, caller: Caller, sender: TaskId, message: AnyMessage, blocks: Blocks, now: float
    ) -> list[Action]:
        if sender == JOINING:
            return self.control.receive(caller, sender, message, now)
        joins = sender.role is Role.WORKER and sender.index >= self.cluster.first_joined
        if joins and self.control.roster.let_join(sender):
            expected = self.control.expect(sender, message, now)
            return expected + self._handle(caller, sender, message, blocks, now)
        match message:
            case Push():
                return self._push(caller, sender, message, blocks, now)
            case Pull() | LookupRows():
                return self._ask(caller, sender, message, blocks, now)
            case Complete() if sender.role is Role.PS and sender.index < self._servers:
                return self._complete(sender.index, message)
            case Commit() | Release() if sender == self.cluster.control_host:
                return self._follow(message)
        if (why := obstacle(message, sender, self.cluster)) is not None:
            return [Send(caller, Refusal(reason=why))]
        match message:
            case Snapshot():
                self._snapshots.asked(message, now)
                return self._ask(caller, sender, message, blocks, now)
            case Operate() | Share():
                return [Send(caller, *self.shared.answer(message, blocks))]
        return self._lead(caller, sender, message, blocks, now)

    def _lead(
        self, caller: Caller, sender: TaskId, message: AnyMessage, blocks: Blocks, now: float
    ) -> list[Action]:
        match message:
            case Initialise():
                return self._initialise(caller, message, blocks, now)
            case Load():
                return self._load(caller, message, blocks, now)
            case Hold() | Control():
                return obey(caller, self.held, message, blocks, now)
            case Mark():
                return [self._mark(caller, message, now)]
            case SnapshotRows():
                return [self._read_snapshot(caller, message, blocks, now)]
        return self.control.handle(caller, sender, message, now)

    def go_on(self, later: Later, now: float) -> list[Action]:
        """Do what was left for later, now that all before it has been carried out."""
        if isinstance(later, Redeliver):
            return self.receive(later.caller, later.sender, later.message, later.blocks, now)
        assert self.held is not None
        assert isinstance(self.held.rule, SyncRule)
        actions = self.held.rule.follow(later.message, later.part)
        return actions + self._answers_after(later.message, now) if self._questions.open else actions

    # Answers to what is asked

    def _answers_after(self, message: AnyMessage, now: float) -> list[Action]:
        """Return the answers that a message may have made possible; between steps most wait for a version."""
        held = self.held
        if (
            type(message) in STEP_MESSAGES
            and not self._snapshots.waiting
            and held is not None
            and held.rule.version < self._questions.wakes_at
            and (held.steps is None or held.steps.failed is None)
        ):
            return []
        return self._answers(now)

    def _answers(self, now: float) -> list[Action]:
        """Answer what can be answered now; an answered snapshot releases pushes that have waited for it."""
        steps = self.held.steps if self.held is not None else None
        if self.held is not None and steps is not None and steps.version != self.held.version:
            return []  # a decision is about to be carried out: `go_on` answers
        answers: list[Action] = [*self._questions.answers(self.held, now)]
        return answers + [Redeliver(*delivery) for delivery in self._snapshots.released(now)]

    def _ask(
        self, caller: Caller, sender: TaskId, message: Question, blocks: Blocks, now: float
    ) -> list[Action]:
        steps = self.held.steps if self.held is not None else None
        if isinstance(message, Pull) and message.answered and steps is not None:
            steps.confirm(self.control.roster.ranks.get(str(sender), NO_RANK), message.answered)
        # What is no number waits as long as any other question: it would disorder the deadlines of all.
        deadline_s = now + min(WAIT_MAX_S, message.wait_s)
        why_not = self._questions.ask(PendingRequest(caller, str(sender), message, deadline_s, blocks))
        return [] if why_not is None else [Send(caller, Refusal(reason=why_not))]

    def _mark(self, caller: Caller, message: Mark, now: float) -> Send:
        held = self.held
        if held is None or held.term != message.term:
            return Send(caller, NotReady(reason=f"ps:{self.index} is not in term {message.term}"))
        self._snapshots.mark(message, now)
        return Send(caller, held.marked())

    def _read_snapshot(self, caller: Caller, message: SnapshotRows, blocks: Blocks, now: float) -> Send:
        if message.number != self._snapshots.number:
            reason = f"ps:{self.index} has been asked for its state again since"
            return Send(caller, Refusal(reason=reason))
        self._snapshots.read(now)
        return Send(caller, *table_answer(self.held, message, blocks))

    # Terms

    def _initialise(self, caller: Caller, message: Initialise, blocks: Blocks, now: float) -> list[Action]:
        before = self.held
        # One that was sent before its connection broke may arrive after its repetition, while tables are
        # loaded.
        latest = self._loading or before
        said = message.state.generation, message.term
        if latest is not None and said <= (latest.generation, latest.term):
            reason = f"ps:{self.index} holds term {latest.term} of generation {latest.generation} already"
            return [Send(caller, Refusal(reason=reason))]
        try:
            held = TermState.from_message(
                message, blocks, server=self.index, control=self.control, allocator=self._allocator
            )
        except (DtrainError, msgspec.ValidationError) as error:
            reason = f"the leader's plan, optimizer and values do not fit together: {error}"
            return [Send(caller, Refusal(reason=reason))]
        self.control.roster.heard_before(message.heard_of, now)
        same = before is not None and before.generation == message.state.generation
        answer = Send(caller, Initialised(given_up=before.version if before and same else -1))
        if message.loads:
            self._loading = held
            return [answer]
        return [answer, *self._begin(held, now)]

    def _load(self, caller: Caller, message: Load, blocks: Blocks, now: float) -> list[Action]:
        loading = self._loading
        held = loading if loading is not None and loading.term == message.term else None
        answer = Send(caller, *table_answer(held, message, blocks))
        return [answer, *self._begin(held, now)] if message.last and held is not None else [answer]

    def _begin(self, held: TermState, now: float) -> list[Action]:
        before = self.held
        self.held = held
        self._loading = None
        waiting = before.rule.waiting() if before else []
        moved: list[Action] = [moved_on(caller, held) for caller in waiting]
        return moved + self.control.begin(held, held.training, now)

    # Writing

    def _push(
        self, caller: Caller, sender: TaskId, message: Push, blocks: Blocks, now: float
    ) -> list[Action]:
        if now < self._snapshots.marked_until_s and self._snapshots.keeps((caller, sender, message, blocks)):
            return []
        replica, held, ranks = _name(sender), self._in_term(message), self.control.roster.ranks
        rank = ranks.get(replica)
        if rank is None:
            reason = f"{replica} is not a replica of this run; replicas are {', '.join(ranks)}"
            return [Send(caller, Refusal(reason=reason))]
        if held is None:
            # Its term is over, or this server has lost it and waits for a new one, of which it will be told.
            question = Pull(generation=message.generation, at_least=0, wait_s=LEASE_S, term=message.term)
            return self._ask(caller, sender, question, (), now)
        if held.steps is not None and held.steps.failed is not None:
            return [Send(caller, held.steps.failed)]
        try:
            blocks = held.received(replica, message, blocks)
        except InputError as error:
            return [Send(caller, Refusal(reason=str(error)))]
        row = held.seen.lookup(replica, message.incarnation, message.sequence)
        if isinstance(row, str):
            return [Send(caller, Refusal(reason=row))]
        if row is not None and row.verdict is not None:
            return [Send(caller, *held.repeat(rank, row))]
        if row is None and not message.finite:
            answers: list[Action] = [Send(caller, *held.refuse(replica, rank, message))]
            answers += [] if held.steps is None else held.steps.share_out(now)
            if held.halved:
                self.held = None
                self.control.give_up()
            return answers
        return held.rule.push(caller, replica, rank, message, blocks, now, again=row is not None)

    # The one decision of a synchronous run

    def _in_term(self, message: Push | Complete | Commit | Release) -> TermState | None:
        held = self.held
        same = held is not None and (held.generation, held.term) == (message.generation, message.term)
        return held if same else None

    def _complete(self, server: int, message: Complete) -> list[Action]:
        held = self._in_term(message)
        steps = None if held is None else held.steps
        return steps.reported(server, message) if isinstance(steps, SyncSteps) else []

    def _follow(self, message: Commit | Release) -> list[Action]:
        """Carry out what the control host has decided."""
        held = self._in_term(message)
        try:
            return held.rule.follow(message) if held is not None and isinstance(held.rule, SyncRule) else []
        except ValueError as error:
            return [End(f"ps:{self.index} cannot follow {self.cluster.control_host}: {error}")]

    def position(self) -> tuple[Subscribe, list[Complete]]:
        """Return what the control host must know on (re)connecting."""
        held = self.held
        if held is None or not isinstance(held.rule, SyncRule):
            return Subscribe(generation=0, version=0), []
        asks = Subscribe(generation=held.generation, version=held.version, term=held.term)
        return asks, held.rule.reports()

    # Time and the end

    def disconnected(self, caller: Caller, reading: Blocks = ()) -> None:
        """Answer nothing more on a lost connection, and drop the values that its peer was `reading`."""
        self._questions.disconnected(caller)
        self._snapshots.disconnected(caller)
        self.control.disconnected(caller)
        if self.held is not None:
            self.held.store.disconnected(reading)
            self.held.rule.disconnected(caller)

    def tick(self, now: float, connections: int) -> list[Action]:
        """Let time pass. To be called a few times a second; `connections` as in `Roster.end`."""
        self._snapshots.tick(self.held, now)
        actions = self.control.tick(now)
        actions += self._answers(now)
        return [*actions, *self.control.end(now, connections)]


def obey(
    caller: Caller, held: TermState | None, message: Hold | Control, blocks: Blocks, now: float
) -> list[Action]:
    """Hold, or change; what comes late, or a second time, changes nothing."""
    if held is None or held.generation != message.generation:
        return [Send(caller, NotReady(reason="this server holds no such variables"))]
    if isinstance(message, Hold):
        late = message.number <= held.order
        version = held.version if late else held.hold()
        return [
            Send(
                caller,
                Holding(
                    term=held.term,
                    version=version,
                    optimizer=held.store.optimizer_config,
                    stopped=held.stopped,
                    assigned=held.store.heard_assigned,
                ),
            )
        ]
    if held.term != message.term:
        return [Send(caller, NotReady(reason=f"this server does not hold term {message.term}"))]
    return _change(caller, held, message, blocks, now)


def _change(caller: Caller, held: TermState, message: Control, blocks: Blocks, now: float) -> list[Action]:
    answers: list[Action] = []
    if message.number > held.order:
        if message.stop:
            held.stopped, held.max_steps = True, message.version
            held.store.end_at(message.version, held.version)
        try:
            held.store.change(
                Change(message.version, message.optimizer, blocks, message.number), held.version
            )
        except DtrainError as error:
            return [Send(caller, Refusal(reason=str(error)))]
        held.order = message.number
        held.release(message.until)
        if message.stop:
            answers += held.rule.end_at(message.version)
            if held.steps is not None:
                held.steps.end_at(message.version)
    answers.append(Send(caller, Controlled()))
    return answers if held.steps is None else [*answers, *held.steps.share_out(now)]


LINGER_S = 2.0
"""How long after a checkpoint: the leader may have been told as well, and be about to save its last step."""
MARGIN_S = 2.0
"""How long before the end of the grace, when the process would be killed."""


class Departure(msgspec.Struct):
    """One server's leave: it was told at `told_s`, with `version`, and is killed `grace_s` later."""

    told_s: float
    grace_s: float
    version: int
    _saved_s: float | None = None

    def may_leave(self, leader_is_there: bool, saved_step: int | None, now_s: float) -> bool:
        """Return whether no task would miss the server, or its time is over."""
        if not leader_is_there or now_s >= self.told_s + max(0.0, self.grace_s - MARGIN_S):
            return True
        if self._saved_s is None and saved_step is not None and saved_step >= self.version:
            self._saved_s = now_s
        return self._saved_s is not None and now_s >= self._saved_s + LINGER_S
