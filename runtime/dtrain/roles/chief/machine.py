"""The leader's machine: where it begins, when it saves and restores, and what is a checkpoint.

A synchronous checkpoint is one version on all servers. The leader asks every server for its state *at* a
version a little ahead of where training stands, so the question arrives before the version does; if it came
too late somewhere, it asks again further ahead. At the end all servers stand at the last step and agree at
once. For an asynchronous one all servers are marked first; it contains the same batches on all of them; see
`Snapshots`.

Rule *Terms* (docs/design/protocol.md#terms):

1. All servers hold the same term of the same generation. One that says otherwise was started again and has
  lost its memory.
2. Then the leader begins a new term: the newest checkpoint on *every* server, so that all go on from one
  version.
3. Terms only rise, also from one process of the leader to the next.
4. What a server says counts if it was asked after the term had begun everywhere.
5. The leader remembers which tasks ps:0 had heard of, and tells the next ps:0: a task that is not heard of
  again within a lease is dead.
6. A leader that is started again passes over every `fit` before the one that the servers, or the newest
  checkpoint, are in.

(event, now) -> actions. Pure. Every method is an event and returns what is to be done next; the end of an
action is an event too: `saved`, `restored`, `begun`, `concluded` or `failed`.

1. One action is carried out at a time. So nothing is saved of servers that are in different terms, and
   nothing is given back while it is being saved.
2. Servers that have lost their memory come first, then the last step, then what the program asks for, then
   tasks that are about to end, then the schedule.
3. The checkpoint of a beginning is written before any server trains.
4. A term that failed somewhere is never used again: the next attempt is another term.
5. The last step is saved before its replicas may go. If the servers had to go back before that, training
   goes on.
6. A server that is gone is waited for; any other failure ends training, except that of a checkpoint on the
   way.

A process that trains alone has no servers: it saves on the schedule and the last step, by the same rules.
"""

from collections.abc import Collection, Hashable, Iterable, Sequence
from enum import Enum

import msgspec

from dtrain.cluster import Role, TaskId
from dtrain.config import CheckpointSection
from dtrain.errors import DtrainError, PeerLostError, PeerRefusedError, WaitTimeoutError
from dtrain.messages import HeartbeatReply, Mark, Marked, Snapshot, SnapshotReply
from dtrain.protocol.applied_batches import union, without
from dtrain.runs.events import AnyEvent, Saved, TermBegun

FIRST_MARGIN_STEPS = 2
ANSWER_WAIT_S = 0.5
"""Ask for a version two steps ahead. Where steps take longer, servers answer with the one that there is."""
ARRIVAL_S = 2.0
"""The time for a push to arrive on every server."""
MARK_S = 2.0
"""The time from a server's mark to the question for its state: the others are marked in between."""


class CheckpointSchedule(msgspec.Struct):
    """A schedule by seconds or steps, whichever comes first; step 0 and the end are saved too."""

    section: CheckpointSection
    last_s: float
    last_step: int

    def due(self, step: int, now: float) -> bool:
        """Return whether to write a checkpoint of `step`, never twice of the same step."""
        if step <= self.last_step:
            return False
        by_time = self.section.every_s is not None and now - self.last_s >= self.section.every_s
        by_steps = self.section.every_steps is not None and step - self.last_step >= self.section.every_steps
        return by_time or by_steps

    def saved(self, step: int, now: float) -> None:
        self.last_s = now
        self.last_step = step

    def wait_s(self, now: float) -> float:
        if self.section.every_steps is not None:
            return 0.05
        until = self.last_s + self.section.every_s - now if self.section.every_s is not None else 1.0
        return min(1.0, max(0.05, until))


class Cut(msgspec.Struct):
    """One attempt after another to get the same state from every server.

    Attributes:
        sync: whether a checkpoint is one version.
    """

    sync: bool
    term: int = 0
    margin_steps: int = FIRST_MARGIN_STEPS
    host: int = 0

    def question(self, newest: int, last: int) -> Snapshot:
        """Return the question to every server in sync; versions beyond `last` wait for the leader."""
        return Snapshot(at_least=min(newest + self.margin_steps, last), wait_s=ANSWER_WAIT_S, term=self.term)

    def mark(self) -> Mark:
        """Return the first message to every server in async."""
        return Mark(wait_s=MARK_S, term=self.term)

    def marked(self, answers: Sequence[Marked]) -> Snapshot:
        """Return the second question to every server in async: for all that any of them had applied.

        Batches that wait at ps:0 to be computed again are left out: no replica is sending them.
        """
        own = answers[self.host]
        covers = without(union([answer.applied for answer in answers]), own.again)
        return Snapshot(at_least=0, wait_s=ARRIVAL_S, term=self.term, covers=covers, settled=own.settled)

    def whole(self, replies: Sequence[SnapshotReply]) -> bool:
        """Return whether, in async, equal batches are applied on all servers."""
        applied = {tuple(each.batches for each in reply.state.contents) for reply in replies}
        return self.sync or len(applied) == 1

    def accept(self, versions: Sequence[int], assigned: Sequence[tuple[int, int]] = ()) -> bool:
        """Return whether the answers make a checkpoint; if not, the next question looks further ahead.
        `assigned` are the orders whose values the servers have: all of them must have the same.
        """
        if self.sync and len(set(versions)) > 1:
            self.margin_steps *= 2
            return False
        return len(set(assigned)) <= 1


Answer = tuple[float, HeartbeatReply]
"""The last answer of a server about itself, and when it was asked, in seconds."""


class Beginning(Enum):
    """The way in which a leader begins a call of `fit`."""

    PASS_OVER = "pass over"
    """It has ended before this process was started."""
    ATTACH = "attach"
    """The servers are training it."""
    RESTORE = "restore"
    """It was begun, and must be given to the servers again from its newest checkpoint."""
    START = "start"
    """It is new."""


def beginning(fit: int, servers: Sequence[HeartbeatReply], saved: int) -> Beginning:
    """Return how the leader begins.

    Args:
        fit: which call of `fit` of the program this is, from 1.
        saved: the generation of the newest checkpoint; 0 without one.
    """
    reached = max([saved, *(reply.generation for reply in servers)])
    if reached > fit:
        return Beginning.PASS_OVER
    if reached < fit:
        return Beginning.START
    together = len({(reply.generation, reply.term) for reply in servers}) == 1
    return Beginning.ATTACH if servers and together and servers[0].generation == fit else Beginning.RESTORE


def next_term(servers: Iterable[HeartbeatReply], own: int, incarnation: int) -> int:
    """Return a term later than all that were begun before.

    Args:
        own: the last term that this leader has begun, or tried to.
    """
    return max(incarnation, own, *(reply.term for reply in servers)) + 1


class TermWatch(msgspec.Struct):
    """Looks for servers that have lost the term.

    Attributes:
        since_s: when the term had begun everywhere.
        heard_of: what ps:0 said of this last while it held the term.
    """

    generation: int
    term: int
    since_s: float
    heard_of: tuple[str, ...] = ()
    host: int = 0

    def lost(self, answers: Sequence[Answer]) -> list[int]:
        term = (self.generation, self.term)
        own = answers[self.host][1]
        if (own.generation, own.term) == term:
            self.heard_of = own.heard_of
        return [
            i
            for i, (asked_s, said) in enumerate(answers)
            if asked_s > self.since_s and (said.generation, said.term) != term
        ]


LOOK_S = 0.2
NOTICE_S = 1.0
"""How late a notice may be found where no server has to be watched."""


class Reason(Enum):
    """Why a checkpoint is written."""

    START = "the beginning"
    FOUND = "the servers train, and there is none yet"
    SCHEDULE = "the schedule"
    REQUEST = "the program"
    LAST = "the last step"
    STOP = "an early end"
    NOTICE = "a task that is about to end"


class Request(Enum):
    """A request of the program, which waits for it."""

    FINISH = "save the last step"
    SAVE = "write a checkpoint out of turn"
    GIVE_BACK = "give every server the newest checkpoint again"


class Save(msgspec.Struct, frozen=True):
    """Write a checkpoint: of the start, or of what all servers hold in this term.

    Attributes:
        at_least: nothing is written where ps:0 has not reached this step.
    """

    reason: Reason
    term: int
    step: int
    at_least: int = 0

    @property
    def final(self) -> bool:
        return self.reason in (Reason.LAST, Reason.STOP)


class Restore(msgspec.Struct, frozen=True):
    """Read the newest checkpoint."""


class BeginTerm(msgspec.Struct, frozen=True):
    """Give every server its variables; no version is made beyond `until` before the leader's order.

    Attributes:
        until: the version that the variables belong to.
        again: whether a term was begun before, so that all connections are opened anew.
    """

    term: int
    until: int
    rolled_back_steps: int
    heard_of: tuple[str, ...]
    again: bool


class ConcludeFit(msgspec.Struct, frozen=True):
    """Tell ps:0 that the last step is saved."""


class Tell(msgspec.Struct, frozen=True):
    """Tell the program what became of its request."""

    request: Request
    done: bool = True


class Warn(msgspec.Struct, frozen=True):
    """Warn the user."""

    text: str


class WriteEvent(msgspec.Struct, frozen=True):
    """Write an event to the trace."""

    event: AnyEvent


class GiveUp(msgspec.Struct, frozen=True):
    """End training with this error."""

    error: DtrainError


Action = Save | Restore | BeginTerm | ConcludeFit | Tell | Warn | WriteEvent | GiveUp
GONE = (PeerLostError, WaitTimeoutError)
"""Errors of a server that may come back."""


class Keeping(msgspec.Struct):
    """One generation as it is kept.

    Attributes:
        watch: looks for servers that have lost the term; None: there are no servers.
        answers: what each server last said, and when it was asked.
        own_step: the term and step of the leader's own replica, which knows sooner than a heartbeat says.
        first_version: the version at which the present term began, or was found.
    """

    schedule: CheckpointSchedule
    max_steps: int
    patience_s: float = 0.0
    watch: TermWatch | None = None
    answers: Sequence[Answer] = ()
    own_step: tuple[int, int] = (0, 0)
    notices: Collection[Hashable] = ()
    first_version: int = 0
    rolled_back_steps: int = 0
    stopped: bool = False
    failure: DtrainError | None = None
    _noticed: set[Hashable] = msgspec.field(default_factory=set)
    _requests: dict[Request, float] = msgspec.field(default_factory=dict)
    _deadline_s: float | None = None
    _reached: int = 0
    _given: int = 0
    _empty: str = ""

    @property
    def term(self) -> int:
        return 0 if self.watch is None else self.watch.term

    @property
    def step(self) -> int:
        heard = [(said.term, said.version) for said in self._said[:1]]
        return max(
            [self.first_version, *(step for term, step in [*heard, self.own_step] if term == self.term)]
        )

    @property
    def _said(self) -> list[HeartbeatReply]:
        return [said for _, said in self.answers]

    def wait_s(self, now: float) -> float:
        """Return when to poll again, in seconds from now."""
        longest_s = NOTICE_S if self.watch is None else LOOK_S
        return min(longest_s, self.schedule.wait_s(now))

    # How it begins

    def begin(self, version: int, rolled_back_steps: int, *, save: bool, now: float) -> list[Action]:
        self._deadline_s = now + self.patience_s
        self._given = version
        self._reached = 0
        self.rolled_back_steps = rolled_back_steps
        if save:
            return [Save(Reason.START, 0, version)]
        return self._next_term()

    def attach(self, rolled_back_steps: int, *, nothing_saved: bool, now: float) -> list[Action]:
        said = self._said[0 if self.watch is None else self.watch.host]
        if self.watch is not None:
            self.watch.term = said.term
            self.watch.since_s = now
        self._took_up(said.version, rolled_back_steps, now)
        return [Save(Reason.FOUND, said.term, said.version)] if nothing_saved else []

    # What goes on

    def ask(self, request: Request, now: float) -> list[Action]:
        if self.stopped:
            return [Tell(request)]
        self._requests.setdefault(request, now)
        return []

    def poll(self, now: float) -> list[Action]:
        if self.stopped or self.failure is not None:
            return []
        lost = self.watch.lost(self.answers) if self.watch is not None else []
        if lost or Request.GIVE_BACK in self._requests:
            return [Restore()]
        if Request.FINISH in self._requests:
            return [Save(Reason.LAST, self.term, self.step, at_least=self.max_steps)]
        if Request.SAVE in self._requests:
            return [Save(Reason.REQUEST, self.term, self.step)]
        if not self._noticed.issuperset(self.notices):
            self._noticed |= set(self.notices)
            return [Save(Reason.NOTICE, self.term, self.step)]
        if self.schedule.due(self.step, now):
            return [Save(Reason.SCHEDULE, self.term, self.step)]
        return []

    def stop(self, away: Sequence[int], *, save: bool) -> list[Action]:
        """End early: only a last checkpoint is still made, if all servers are there."""
        self.stopped = True
        if not save:
            return []
        if away:
            return [Warn(f"no last checkpoint: {_names(away)} is not there")]
        return [Save(Reason.STOP, self.term, self.step)]

    # How an action ended

    def saved(self, save: Save, reached: int | None, *, whole: bool, now: float) -> list[Action]:
        """Go on after a checkpoint of `reached`; None: ps:0 was not at the last step, none was written."""
        if reached is None:
            return self._answer(Request.FINISH, done=False)
        return [
            WriteEvent(Saved(step=reached, why=save.reason.value)),
            *self._after(save, whole=whole, now=now),
        ]

    def _after(self, save: Save, *, whole: bool, now: float) -> list[Action]:
        if save.reason is Reason.START:
            self.schedule.saved(save.step, now)
            return self._next_term()
        if save.reason is Reason.LAST:
            return [ConcludeFit()] if self.watch is not None else self.concluded()
        if save.reason not in (Reason.SCHEDULE, Reason.REQUEST, Reason.NOTICE):
            return []
        self.schedule.saved(save.step, now)
        half = f"the checkpoint of step {save.step} has a batch on some servers only, which is dealt again"
        told = [] if save.reason is Reason.NOTICE else self._answer(Request.SAVE)
        return [*([] if whole else [Warn(half)]), *told]

    def concluded(self) -> list[Action]:
        self.stopped = True
        return self._answer(Request.FINISH)

    def restored(self, version: int, rolled_back_steps: int) -> list[Action]:
        of_this = [
            said.version for said in self._said if self.watch and said.generation == self.watch.generation
        ]
        self._given = version
        self._reached = max([self.own_step[1], *of_this])
        self.rolled_back_steps = max(rolled_back_steps, self.rolled_back_steps)
        return self._next_term()

    def begun(self, given_up: int, now: float) -> list[Action]:
        """Go on in the new term; `given_up` is the highest version that a server held before."""
        assert self.watch is not None
        self.watch.since_s = now
        self._deadline_s = None
        reached = max(self._reached, given_up)
        given = self._given
        self._took_up(given, self._rolled_back(reached), now)
        why = f"{self._empty or 'a server'} had lost all variables"
        if Request.GIVE_BACK in self._requests:
            why = "the leader died while it assigned values"
        back = f"{why}: every server goes back from step {reached} to the checkpoint of step {given}"
        warning = [Warn(back)] if reached > given else []
        begun = WriteEvent(TermBegun(term=self.watch.term, step=given))
        return [begun, *warning, *self._answer(Request.FINISH, done=False), *self._answer(Request.GIVE_BACK)]

    def failed(self, action: Action | None, error: DtrainError, now: float) -> list[Action]:
        """Go on after an action that failed; None: a server is gone for good."""
        match action:
            case Save(reason=Reason.SCHEDULE | Reason.REQUEST | Reason.NOTICE):
                self.schedule.saved(action.step, now)
                warning = [] if self.stopped else [Warn(f"no checkpoint of step {action.step}: {error}")]
                return [*warning, *self._answer(Request.SAVE)]
            case Save(reason=Reason.LAST) | ConcludeFit() if isinstance(error, (*GONE, PeerRefusedError)):
                # A server that has died is seen by its lease; one that refuses for other reasons is given up.
                if now - self._requests[Request.FINISH] < self.patience_s:
                    return []
            case BeginTerm() | Restore() if isinstance(error, GONE):
                if self._deadline_s is None:
                    return [Warn(f"the servers cannot be restored yet: {error}")]
                if now < self._deadline_s:
                    return self._next_term()
        if self.stopped and not (isinstance(action, Save) and action.reason is Reason.STOP):
            return []
        self.failure = error
        return [GiveUp(error)]

    def _next_term(self) -> list[Action]:
        """Begin a term that no server knows; where there is no server, training has begun."""
        if self.watch is None:
            self.first_version = self._given
            return []
        said = self._said
        self._empty = _names([server for server, each in enumerate(said) if each.generation == 0])
        self.watch.term = next_term(said, self.watch.term, said[self.watch.host].incarnation)
        again = self._deadline_s is None
        lost = self._rolled_back(self._reached)
        return [BeginTerm(self.watch.term, self._given, lost, self.watch.heard_of, again)]

    def _rolled_back(self, reached: int) -> int:
        return self.rolled_back_steps + max(0, reached - self._given)

    def _took_up(self, version: int, rolled_back_steps: int, now: float) -> None:
        self.first_version = version
        self.rolled_back_steps = rolled_back_steps
        self.schedule.saved(version, now)

    def _answer(self, request: Request, *, done: bool = True) -> list[Action]:
        return [Tell(request, done)] if self._requests.pop(request, None) is not None else []


def _names(servers: Sequence[int]) -> str:
    return ", ".join(str(TaskId(Role.PS, server)) for server in servers)
