"""The control plane's machine: (message, now) -> actions. No socket, no thread, no clock, no arrays.

Every task that serves has one. The one of `ClusterSpec.control_host` decides for the run: which tasks are
members, their ranks, which part of a batch each replica computes, what makes the next version, and the end.
Those of other tasks keep a lease of the leader, so that each task knows when it may go.

A host that dies is started again and knows nothing. Members renew their leases with it, servers report what
they hold, and the leader brings it with a new term what the last checkpoint remembers.
"""

from dataclasses import dataclass, field

from dtrain.cluster import JOINING, AddressBook, ClusterSpec, Role, TaskId
from dtrain.config import (
    AsyncSection,
    ClusterTraining,
    ServerSection,
    SyncSection,
    WaitSection,
    outer_of,
    shares_by_speed,
)
from dtrain.config.choices import OnStale, TooFew
from dtrain.control.async_steps import AsyncSteps
from dtrain.control.interface import Action, Caller, End, Note, Send
from dtrain.control.learned import LearnedStates
from dtrain.control.roster import Admission, Roster, Steps, TermProgress, obstacle
from dtrain.control.sync_steps import SyncSteps
from dtrain.messages import (
    AnyMessage,
    AskLearned,
    Conclude,
    Farewell,
    Heartbeat,
    Initialise,
    Learned,
    NotReady,
    Record,
    Recorded,
    Refusal,
    RefusalKind,
    Row,
    Subscribe,
)
from dtrain.protocol.async_updates import Repairs, TicketGate
from dtrain.protocol.membership import LEASE_S, MemberState
from dtrain.protocol.part_dealer import Lanes, PartDealer
from dtrain.protocol.tally import Tally
from dtrain.runs.events import MemberJoined, MemberLeft, MemberLost
from dtrain.state.batch_cut import Dealt

TAKEN: frozenset[type[AnyMessage]] = frozenset(
    {Heartbeat, Subscribe, Record, Conclude, Farewell, Learned, AskLearned}
)
"""The messages that are for the control plane; a part of the task that holds arrays takes all others."""


@dataclass
class ControlPlane:
    """The control plane, as one task knows it.

    Attributes:
        training: the rules in force: of the spec, then of the newest term.
        followers: connections of the servers that follow the decisions.
    """

    task: TaskId
    cluster: ClusterSpec
    training: ClusterTraining
    now: float
    evaluators: int = 0
    wait: WaitSection = field(default_factory=WaitSection)
    roster: Roster = field(init=False)
    progress: TermProgress | None = field(default=None, init=False)
    followers: list[Caller] = field(default_factory=list, init=False)
    admission: Admission = field(default_factory=Admission, init=False)
    learned: LearnedStates = field(default_factory=LearnedStates, init=False)
    _recorded: tuple[int, int] = field(default=(0, 0), init=False)
    book: AddressBook = field(init=False)
    _leader_caller: Caller | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.hosts = self.task == self.cluster.control_host
        self.book = AddressBook(self.cluster)
        self.roster = Roster(
            self.hosts, self.cluster, self.training.chief_has_rank, self.now, self.evaluators, self.wait
        )

    def take_over(self) -> None:
        """Host the control plane in place of the task that did."""
        self.hosts = self.roster.hosts = True

    def receive(self, caller: Caller, sender: TaskId, message: AnyMessage, now: float) -> list[Action]:
        """Deal with one message, if its sender may send it.

        Every action and decision must be carried out before the next call.
        """
        if sender == JOINING:
            return [Send(caller, self.admission.answer(message, self.roster, self.progress, self.training))]
        if reason := obstacle(message, sender, self.cluster):
            return [Send(caller, Refusal(reason=reason))]
        if sender.index >= self.cluster.first_joined:
            self.roster.let_join(sender)
        return self.handle(caller, sender, message, now)

    def handle(self, caller: Caller, sender: TaskId, message: AnyMessage, now: float) -> list[Action]:
        match message:
            case Heartbeat():
                return self._heartbeat(caller, sender, message, now)
            case Subscribe():
                return self._subscribe(caller, message)
            case Record():
                return [Send(caller, self._record(message))]
            case Conclude():
                self.roster.conclude(message)
                return [Send(caller, message)]
            case Farewell():
                return self._farewell(caller, sender, message)
            case Learned():
                return self._learned(caller, sender, message)
            case AskLearned():
                fits = self.progress.generation if self.progress is not None else 0
                return list(self.learned.ask(caller, message, fits, self.roster.farewell))
        return [Send(caller, Refusal(reason=f"{self.task} does not take {type(message).__name__} messages"))]

    # Terms

    def steps_of(self, message: Initialise, training: ServerSection) -> Steps | None:
        """Return what makes the versions of a term; None where another task hosts the control plane."""
        if not self.hosts:
            return None
        host = self.task.index if self.task.role is Role.PS else 0  # the part of the variables that it holds
        state = message.state
        leader = (
            self.cluster.rank(self.cluster.leader, training.chief_has_rank) if self.cluster.leader else None
        )
        ranks = frozenset([0] if state.alone else range(len(self.cluster.replicas(training.chief_has_rank))))
        dealer = _dealer(state.dealt, training, len(ranks))
        tally = Tally.of(state)
        servers = max(1, self.cluster.count(Role.PS))  # parts that hold arrays
        if isinstance(training, AsyncSection):
            warmup_steps = state.max_steps if state.alone else training.warmup_steps
            return AsyncSteps(
                gate=TicketGate(
                    state.version,
                    state.max_steps,
                    warmup_steps,
                    training.staleness_bound,
                    until=message.until,
                    leader=leader,
                ),
                dealer=dealer,
                tally=tally,
                missing=self.roster.missing,
                repairs=Repairs(dict.fromkeys(message.repairs)) if servers > 1 else None,
                alone=state.alone,
                retry=training.on_stale == OnStale.RETRY_SAME_BATCH,
                max_staleness=training.max_staleness,
                torn=bool(state.contents),
                too_few_timeout_s=0.0 if training.too_few == TooFew.FAIL else training.too_few_timeout_s,
            )
        return SyncSteps(
            dealer=dealer,
            version=state.version,
            servers=servers,
            replicas=len(ranks),
            live=ranks,
            shrink=training.too_few == TooFew.SHRINK,
            host=host,
            tally=tally,
            training=training,
            followers=self.followers,
            generation=state.generation,
            term=message.term,
            max_steps=state.max_steps,
            missing=self.roster.missing,
            until=message.until,
            retry=training.repeats_late,
            rests_held=training.deterministic or outer_of(training) is not None,
            ranks=ranks if state.alone else None,
            leader=leader,
            by_speed=isinstance(training, SyncSection) and shares_by_speed(training),
        )

    def begin(self, progress: TermProgress, training: ClusterTraining, now: float) -> list[Action]:
        self.progress = progress
        self.training = training
        self._recorded = (0, 0)
        self.roster.rank(training.chief_has_rank)
        return [*self.learned.passed(progress.generation), *self._members_changed(now)]

    def give_up(self) -> None:
        """End the term: the leader finds that, and gives every server the newest checkpoint."""
        self.progress = None

    # Members

    def _heartbeat(self, caller: Caller, sender: TaskId, message: Heartbeat, now: float) -> list[Action]:
        if sender == self.cluster.leader and self._keeps_place(caller, sender, message):
            reason = f"another process is {sender}: its lease or its connection must end before this one is"
            return [Send(caller, NotReady(reason=reason))]
        known_as = self.roster.membership.incarnation(str(sender))
        incarnation, news = self.roster.heard(str(sender), message, now)
        if incarnation is None:
            reason = f"another process has taken the place of {sender}"
            return [Send(caller, Refusal(reason=reason))]
        if sender == self.cluster.leader:
            self._leader_caller = caller
        if message.moved_to is not None:
            self.book.learn(str(sender), message.moved_to, incarnation)
        moved = {} if message.book == self.book.digest else self.book.moved
        reply = self.roster.report(sender, incarnation, self.progress, moved, now)
        answers: list[Action] = [Send(caller, reply)]
        if self.hosts and incarnation != known_as:
            answers.append(Note(MemberJoined(member=str(sender), incarnation=incarnation)))
        if self.hosts and message.leaving:
            answers.append(Note(MemberLeft(member=str(sender))))
        return [*answers, *self._members_changed(now)] if news else answers

    def _keeps_place(self, caller: Caller, sender: TaskId, message: Heartbeat) -> bool:
        """Return whether the leader's present process, which has a lease and a connection, keeps its place
        against a later process, or its address against a move that it has not sent itself.
        """
        held = self.roster.membership.members.get(str(sender))
        if held is None or held.state is not MemberState.LIVE or self._leader_caller in (None, caller):
            return False
        is_moved = message.moved_to != self.book.moved.get(str(sender), (None,))[0]
        return message.process > held.process or (message.process == held.process and is_moved)

    def expect(self, sender: TaskId, message: AnyMessage, now: float) -> list[Action]:
        """Wait for the first heartbeat of a worker that has joined with another message, for a lease."""
        if not self.hosts or isinstance(message, Heartbeat):
            return []
        self.roster.membership.expect(str(sender), now + LEASE_S)
        return self._members_changed(now)

    def _members_changed(self, now: float) -> list[Action]:
        steps = self.progress.steps if self.progress is not None else None
        if steps is None:
            return []
        return steps.members_changed(self.roster.live, self.roster.newcomers(), now)

    # Decisions

    def _subscribe(self, caller: Caller, message: Subscribe) -> list[Action]:
        self.followers.append(caller)
        steps = self.progress.steps if self.progress is not None else None
        if not isinstance(steps, SyncSteps):
            return []
        return [Send(caller, said) for said in steps.said_since(message)]

    # The leader's account of epochs, and the end

    def _record(self, message: Record) -> NotReady | Recorded:
        held = self.progress
        if held is None or held.steps is None or held.generation != message.generation:
            return NotReady(reason=f"{self.task} does not hold generation {message.generation}")
        if message.epoch is None:
            return Recorded(term=held.term, rows=held.steps.tally.rows)
        # In another term the leader has not heard yet that the servers went back. What comes late on a
        # connection that broke was said again since, and more after it.
        if held.term == message.term and message.number > self._recorded:
            held.steps.tally.record(message.epoch, message.rows)
            self._recorded = message.number
        return Recorded(term=held.term, rows={})

    def _farewell(self, caller: Caller, sender: TaskId, message: Farewell) -> list[Action]:
        self.roster.rows.update(message.rows)
        return [*self._end_training(str(sender)), Send(caller, Farewell())]

    def _learned(self, caller: Caller, sender: TaskId, message: Learned) -> list[Action]:
        if sender not in (self.cluster.leader, self.task):  # the host itself may lead in the leader's place
            return [Send(caller, Refusal(reason=f"{sender} does not lead: it learns for itself alone"))]
        return [*self.learned.store(message), Send(caller, Learned(key=message.key))]

    def say_farewell(self) -> list[Action]:
        """Tell every task from now on that none will train any more: the leader's own task hosts this."""
        return self._end_training(str(self.task))

    def conclude(self, generation: int, rows: dict[int, Row]) -> list[Action]:
        """Tell every task from now on that the last step of a call of `fit` is saved; as `say_farewell`."""
        self.roster.conclude(Conclude(generation=generation, rows=rows))
        return []

    def _end_training(self, leader: str) -> list[Action]:
        self.roster.farewell = True
        held = self.progress
        if held is not None and held.steps is not None and held.version < held.max_steps:
            reason = f"{leader} has ended training at step {held.version} of {held.max_steps}"
            held.steps.failed = Refusal(reason=reason, kind=RefusalKind.ENDED)
        return list(self.learned.passed(None))

    def disconnected(self, caller: Caller) -> None:
        if caller in self.followers:
            self.followers.remove(caller)
        self.learned.disconnected(caller)
        if caller == self._leader_caller:
            self._leader_caller = None

    def tick(self, now: float) -> list[Action]:
        lost = self.roster.expire(now)
        rulings = self._members_changed(now) if lost else []
        rulings += [Note(MemberLost(member=task)) for task in lost if self.hosts]
        steps = self.progress.steps if self.progress is not None else None
        return rulings if steps is None else [*rulings, *steps.judge(now)]

    def end(self, now: float, connections: int) -> list[End]:
        return self.roster.end(self.progress, now, connections)


def _dealer(dealt: Dealt, training: ServerSection, replicas: int) -> PartDealer:
    """Deal whole batches where no replica was a backup when the fit began, however many there are now;
    asynchronously in lanes, so that each of several replicas can read ahead.
    """
    lanes = Lanes(replicas, replicas) if isinstance(training, AsyncSection) and replicas > 1 else None
    return PartDealer.of(dealt, whole=isinstance(training, SyncSection) and not dealt.even, lanes=lanes)
