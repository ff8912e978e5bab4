"""The members of a run as one task knows them: their rights, ranks, leases, and when the task may end.

Every task of the run has its secret. A task that sends what its role never sends is broken, or no task of
ours: it is refused, and changes nothing.
"""

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import msgspec
from msgspec.structs import replace

from dtrain.cluster import JOINING, ClusterSpec, Moved, Role, TaskId
from dtrain.config import ClusterTraining, WaitSection, address_problem
from dtrain.control.async_steps import AsyncSteps
from dtrain.control.interface import End
from dtrain.control.sync_steps import SyncSteps
from dtrain.errors import SpecError
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
    Join,
    JoinPlace,
    Lineage,
    LinkProbe,
    Load,
    Mark,
    NotReady,
    Operate,
    Record,
    Refusal,
    Release,
    Row,
    Share,
    Snapshot,
    SnapshotRows,
    Subscribe,
    VoidTerm,
)
from dtrain.messages.membership import TaskStatus
from dtrain.protocol.membership import LEASE_S, Membership, MemberState

Steps = AsyncSteps | SyncSteps
"""The part of the control host that decides which pushes make the versions of one term."""
NAMED = 8
"""How many of the replicas that are waited for are named; the others are counted."""


class TermProgress(Protocol):
    """How training stands in one term, as the part of a task that holds arrays knows it."""

    term: int
    max_steps: int
    directory: str

    @property
    def generation(self) -> int: ...

    @property
    def lineage(self) -> Lineage: ...

    @property
    def steps(self) -> Steps | None:
        """At the control host: what makes versions."""

    @property
    def version(self) -> int: ...

    @property
    def finished(self) -> bool:
        """Whether the last version has been made; at the control host, on every server."""

    @property
    def held_back(self) -> bool: ...

    @property
    def failed(self) -> Refusal | None: ...


@dataclass
class Roster:
    """The tasks that talk to one task. The control host expects all, every other server the leader alone.

    Attributes:
        ranks: rank of each replica, by task name; of those that have joined as well.
        farewell: no task will train any more.
        rows: with the farewell, the numbers of every epoch, by call of `fit`.
        concluded_generation: the newest one whose last step is saved.
        watched: whether a launcher watches this task, and decides how long a leader may take to appear.
    """

    hosts: bool
    cluster: ClusterSpec
    chief_trains: bool
    now: float
    evaluators: int = 0
    wait: WaitSection = field(default_factory=WaitSection)
    leader: str = field(init=False)
    ranks: dict[str, int] = field(init=False)
    membership: Membership = field(init=False)
    statuses: dict[str, TaskStatus] = field(default_factory=dict, init=False)
    farewell: bool = field(default=False, init=False)
    rows: dict[int, dict[int, Row]] = field(default_factory=dict, init=False)
    _heard_s: dict[str, float] = field(default_factory=dict, init=False)
    _names: dict[int, str] = field(init=False)
    _live: set[int] = field(init=False)
    _gone: set[int] = field(init=False)
    _anew: set[str] = field(default_factory=set, init=False)
    _joined: list[TaskId] = field(default_factory=list, init=False)
    _promised: set[int] = field(default_factory=set, init=False)
    concluded_generation: int = field(default=0, init=False)
    watched: bool = field(default=False, init=False)
    _leader_lost_since_s: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.leader = str(self.cluster.leader)
        replicas = map(str, self.cluster.replicas(self.chief_trains))
        evaluators = [str(TaskId(Role.EVALUATOR, index)) for index in range(self.evaluators)]
        expected = dict.fromkeys([*replicas, self.leader, *evaluators] if self.hosts else [self.leader])
        self.membership = Membership(expected, lease_s=LEASE_S, join_s=self.wait.start_s, now=self.now)
        self.rank(self.chief_trains)

    def rank(self, chief_trains: bool) -> None:
        self.chief_trains = chief_trains
        replicas = self.cluster.replicas(chief_trains)
        joined = [(str(task), self.cluster.rank(task, chief_trains)) for task in self._joined]
        self.ranks = {str(task): rank for rank, task in enumerate(replicas)}
        self.ranks |= {name: rank for name, rank in joined if rank is not None}
        self._names = {rank: name for name, rank in self.ranks.items()}
        self._gone = {rank for name, rank in self.ranks.items() if name in self.membership.gone}
        self._live = self._names.keys() - self._gone

    def refusal(self, sender: TaskId) -> str | None:
        joined = len(self._joined) - (str(sender) in self.ranks)
        return newcomer_obstacle(sender, self.cluster, joined)

    def let_join(self, sender: TaskId) -> bool:
        """Give a rank to a worker that the cluster does not name; return whether it is new."""
        if new := str(sender) not in self.ranks:
            self._joined.append(sender)
            self.rank(self.chief_trains)
        return new

    def promise(self, is_free: Callable[[int], bool]) -> int | None:
        """Return the lowest index above the cluster's own that no worker has and `is_free` admits, asked once
        for each; None: too many have been given.
        """
        joined = {task.index for task in self._joined}
        if len(self._promised | joined) >= JOINED_MAX:
            return None
        taken = {*self._promised, *joined, *_workers(self.membership.members)}
        index = self.cluster.first_joined
        while index in taken or not is_free(index):
            index += 1
        self._promised.add(index)
        return index

    def heard_before(self, tasks: Iterable[str], now: float) -> None:
        """Note which tasks the control host had known before it was started again."""
        self.membership.heard_before(tasks, now)
        self._promised |= set(_workers(tasks))

    def heard(self, task: str, message: Heartbeat, now: float) -> tuple[int | None, bool]:
        """Note that a task is alive; return its incarnation, None if it is replaced, and whether members
        changed.
        """
        before, known_as = self.membership.state(task), self.membership.incarnation(task)
        incarnation = self.membership.heartbeat(task, message.process, message.incarnation, now)
        if incarnation is None:
            return None, False
        if message.status is not None:
            self.statuses[task] = message.status
            self._heard_s[task] = now
        if message.leaving:
            self.membership.leave(task)
        self._sort(task)
        anew = before is MemberState.LIVE and incarnation != known_as and task in self.ranks
        if anew:
            self._anew.add(task)
        return incarnation, message.leaving or anew or before not in (MemberState.LIVE, MemberState.EXPECTED)

    def expire(self, now: float) -> list[str]:
        lost = self.membership.expire(now)
        for task in lost:
            self._sort(task)
        return lost

    def _sort(self, task: str) -> None:
        rank = self.ranks.get(task)
        if rank is not None:
            now, before = (
                (self._gone, self._live) if task in self.membership.gone else (self._live, self._gone)
            )
            now.add(rank)
            before.discard(rank)

    def report(
        self, sender: TaskId, incarnation: int, held: TermProgress | None, moved: Moved, now: float
    ) -> HeartbeatReply:
        leads = sender == self.cluster.leader
        return HeartbeatReply(
            incarnation=incarnation,
            generation=held.generation if held else 0,
            version=held.version if held else 0,
            ended=self.farewell,
            waiting_for=self.awaited(held),
            failed=held.failed if held else None,
            directory=held.directory if held else None,
            statuses=tuple(self._as_heard(now)) if leads else (),
            term=held.term if held else 0,
            lineage=held.lineage if held else Lineage(),
            max_steps=held.max_steps if held else 0,
            heard_of=self.membership.tasks(MemberState.LIVE, MemberState.LEFT, MemberState.LOST)
            if leads
            else (),
            moved=moved,
        )

    def _as_heard(self, now: float) -> Iterator[TaskStatus]:
        """Yield each task's last status, and how long ago it came: clocks of two machines have nothing in
        common.
        """
        for task, said in self.statuses.items():
            silent_s = now - self._heard_s.get(task, now)  # this task's own status is as of now
            yield replace(said, silent_s=silent_s, lost=self.membership.state(task) is MemberState.LOST)

    def awaited(self, held: TermProgress | None) -> str | None:
        """Return the tasks without which a replica cannot go on, in words; None if there are none."""
        ended = held is not None and held.finished and not self.concluded(held.generation)
        if held is None or ended or held.held_back:
            return self.leader
        steps = held.steps
        if steps is None:
            return None
        if steps.too_few:
            return ", ".join(self._named(self._gone))
        ranks, servers = steps.awaited()
        return ", ".join([*(f"ps:{server}" for server in servers), *self._named(ranks)]) or None

    def _named(self, ranks: Collection[int]) -> list[str]:
        named = [self._names[rank] for rank in sorted(islice(ranks, NAMED))]
        return [*named, f"{len(ranks) - NAMED} more"] if len(ranks) > NAMED else named

    def newcomers(self) -> list[int]:
        """Return, once, the ranks of which another process has come since the last call."""
        anew = sorted(self.ranks[task] for task in self._anew)
        self._anew.clear()
        return anew

    @property
    def live(self) -> Set[int]:
        return self._live.copy()

    def missing(self) -> str:
        """Return which replicas have gone, and how: ``worker:1 left at step 9``."""
        gone = [self._names[rank] for rank in sorted(self._gone)]
        more = [f"{len(gone) - NAMED} more"] if len(gone) > NAMED else []
        return ", ".join([*map(self._how_it_went, gone[:NAMED]), *more])

    def _how_it_went(self, task: str) -> str:
        if self.membership.state(task) is MemberState.LEFT:
            step = self.statuses[task].step if task in self.statuses else None
            return f"{task} left" + (f" at step {step}" if step is not None else "")
        return f"{task} has not been heard of" + (
            f" for more than {LEASE_S:g} s" if task in self.statuses else ""
        )

    def conclude(self, message: Conclude) -> None:
        self.concluded_generation = message.generation
        self.rows[message.generation] = message.rows

    def concluded(self, generation: int) -> bool:
        return self.farewell or self.concluded_generation >= generation

    def latecomers(self, held: TermProgress | None) -> list[str]:
        """Return the tasks that have not come yet, after the last step, to learn what came of training."""
        return self._still_to_hear(held, MemberState.EXPECTED)

    def _still_to_hear(self, held: TermProgress | None, *states: MemberState) -> list[str]:
        if not self.farewell or held is None or held.version < held.max_steps:
            return []
        servers = {
            str(TaskId(Role.PS, index)) for index in range(self.cluster.count(Role.PS))
        }  # they follow the control host to its end
        return [
            task for task in self.membership.tasks(*states) if task != self.leader and task not in servers
        ]

    def end(self, held: TermProgress | None, now: float, connections: int) -> list[End]:
        """End the task when no other will talk to it any more: after the farewell, or long after the leader
        was lost.
        """
        ends = []
        # A task that is alive without a connection was killed, and may be started again within its lease.
        if (
            self.farewell
            and connections == 0
            and not self._still_to_hear(held, MemberState.EXPECTED, MemberState.LIVE)
        ):
            ends.append(End())
        if self.farewell or self.membership.state(self.leader) not in (MemberState.LOST, MemberState.LEFT):
            self._leader_lost_since_s = None
        elif self._leader_lost_since_s is None:
            self._leader_lost_since_s = now
        elif now - self._leader_lost_since_s >= self._leader_away_s:
            ends.append(End(self._leader_is_gone()))
        return ends

    def _leader_is_gone(self) -> str:
        if self.membership.members[self.leader].incarnation > 0:
            return f"{self.leader} has not been heard of for {LEASE_S + self.wait.leader_s:g} s"
        waited_s = self.wait.start_s + self._leader_away_s
        return f"{self.leader} did not come within {waited_s:g} s (wait.start_s)"

    @property
    def _leader_away_s(self) -> float:
        """Seconds for which a lost leader is awaited; one by hand that never came is not."""
        came = self.membership.members[self.leader].incarnation > 0
        return self.wait.leader_s if came or self.watched else 0.0


def _workers(names: Iterable[str]) -> Iterator[int]:
    for name in names:
        with contextlib.suppress(SpecError):
            if (task := TaskId.parse(name)).role is Role.WORKER:
                yield task.index


LEADERS: dict[type[AnyMessage], str] = {
    Initialise: "initialise variables",
    Load: "load tables",
    Hold: "give orders",
    Control: "give orders",
    Mark: "mark a checkpoint",
    Snapshot: "ask for a snapshot",
    SnapshotRows: "ask for a snapshot",
    Record: "record epochs",
    Conclude: "conclude a generation",
    Farewell: "say farewell",
    Share: "share variables",
    VoidTerm: "end a term",
    LinkProbe: "measure a connection",
}
"""Messages that only the leader sends."""
SERVERS = frozenset({Complete, Subscribe})
"""Messages that only servers send, to the control host."""
DECISIONS = frozenset({Commit, Release})
"""Messages that only the control host sends."""
TRAINERS = frozenset({Operate})
"""Messages that only the chief and workers send."""


STATUS_LIMIT_BYTES = 16 * 1024
"""The longest status: the leader is sent those of all tasks in one message."""
EVALUATOR_LIMIT_BYTES = 256 * 1024
"""The longest status of the evaluator, with its last evaluations."""
JOINED_MAX = 2_000
"""The limit of workers that join a run. The status of each takes memory and is sent to the leader."""
_encode = msgspec.msgpack.Encoder().encode


def newcomer_obstacle(sender: TaskId, cluster: ClusterSpec, joined: int) -> str | None:
    """Return why a task may not connect at all, of which `joined` others have come; None if it may."""
    if sender in cluster or sender in (TaskId(Role.EVALUATOR, 0), JOINING):
        return None
    if sender.role is not Role.WORKER or sender.index < cluster.first_joined:
        return f"the cluster of this run has no {sender}"
    return None if joined < JOINED_MAX else f"{joined} workers have joined this run, and no more may"


def obstacle(message: AnyMessage, sender: TaskId, cluster: ClusterSpec) -> str | None:
    kind = type(message)
    if (deed := LEADERS.get(kind)) is not None:
        return None if sender == cluster.leader else f"only {cluster.leader} may {deed}, not {sender}"
    if kind in SERVERS and (sender.role is not Role.PS or sender not in cluster):
        return f"only servers report to {cluster.control_host}, not {sender}"
    if kind in DECISIONS and sender != cluster.control_host:
        return f"only {cluster.control_host} decides, not {sender}"
    if kind in TRAINERS and not sender.trains:
        return f"{sender} takes no closures, and may not see or change their variables"
    return _false_beat(message, sender) if isinstance(message, Heartbeat) else None


def _false_beat(message: Heartbeat, sender: TaskId) -> str | None:
    if not math.isfinite(message.process[1]):  # it would be neither earlier nor later than any other
        return f"{sender} reports no time at which its process began"
    if message.moved_to is not None and (reason := address_problem(message.moved_to)):
        return f"{sender} reports where it serves: {reason}"
    status = message.status
    if status is None:
        return None
    limit = EVALUATOR_LIMIT_BYTES if sender.role is Role.EVALUATOR else STATUS_LIMIT_BYTES
    if (nbytes := len(_encode(status))) > limit:
        return f"{sender} reports a status of {nbytes} bytes; at most {limit} make sense"
    if not (math.isfinite(status.monotonic_s) and math.isfinite(status.progress_monotonic_s)):
        return f"{sender} reports a status of no time"
    if status.task != str(sender):
        return f"{sender} reports the status of {status.task[:40]!r}"
    if status.evaluations and sender.role is not Role.EVALUATOR:
        return f"only an evaluator reports evaluations, not {sender}"
    if not all(isinstance(evaluation.get("global_step"), int) for evaluation in status.evaluations):
        return f"{sender} reports an evaluation of no step"
    return None


class Admission(msgspec.Struct):
    """One task's answers to workers that would like to join.

    Attributes:
        take: takes a worker's index for good, or returns False; None: what is given is forgotten with this
            task, so that only the leader, who comes with a term, knows which workers there have been.
    """

    place: JoinPlace | None = None
    take: Callable[[int], bool] | None = None

    def answer(
        self, message: AnyMessage, roster: Roster, progress: TermProgress | None, training: ClusterTraining
    ) -> JoinPlace | NotReady | Refusal:
        place = self.place
        if place is None or not isinstance(message, Join):
            return Refusal(reason="a worker that has no index may only ask a server for one")
        if roster.farewell:
            return Refusal(reason=f"run {place.run_id} is over")
        if not roster.hosts:
            return place
        if progress is None and self.take is None:
            return NotReady(reason="training has not begun")
        if (index := roster.promise(self.take or (lambda index: True))) is None:
            return Refusal(reason=f"run {place.run_id} takes no more workers: {JOINED_MAX} have asked")
        return msgspec.structs.replace(place, index=index, spec=replace(place.spec, training=training))
