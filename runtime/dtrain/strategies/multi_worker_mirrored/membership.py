"""The other replicas of a run, outside of steps: who is awaited, who has come how far, and who leads.

A leader that was started again asks whether the run has gone on without it. Outside of a call of `fit` no
socket says that a leader cannot be reached, or does not lead; within one the end of a socket decides who
leads (see `ReplicaTraining`).
"""

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dtrain import checkpoints
from dtrain.cluster import TaskId
from dtrain.config.choices import TooFew
from dtrain.errors import CheckpointError, PeerError, TooFewReplicasError
from dtrain.messages import Enter, Entered, Over, Refusal
from dtrain.process.clock import SYSTEM
from dtrain.roles.collective.meeting import descriptors_of
from dtrain.runs.reporting import Reporter
from dtrain.runs.states import TaskState
from dtrain.strategies.cluster_task import ClusterTask
from dtrain.strategies.multi_worker_mirrored.hosting import Hosting
from dtrain.strategies.multi_worker_mirrored.orders import leadership_by
from dtrain.strategies.multi_worker_mirrored.rendezvous import SOCKET_ALONE, ledger_of, task_of
from dtrain.wire.channel import Channel
from dtrain.wire.connecting import Connector, LeaderFinder
from dtrain.wire.one_host.local import is_served
from dtrain.wire.one_host.shared_memory import GrowingMemory

PROBE_S = 0.5
_ANSWER_S = 5.0


class PeersState(msgspec.Struct, frozen=True):
    """The state of the other replicas as a leader is started again.

    Attributes:
        trains: whether one of them is in a call of `fit`, or leads the next one.
        ended: how many calls of `fit` have ended, where they wait for the leader of these.
        silent: the ranks that did not answer, but may live.
    """

    trains: bool = False
    ended: int = 0
    silent: frozenset[int] = frozenset()


class _Found(msgspec.Struct, frozen=True):
    """How the newest call of `fit` of one replica stands; `ended` and `leader` are set where it has ended."""

    trains: bool = False
    ended: int = 0
    leader: int | None = None


def meanwhile(
    connect: Callable[[int, float], Channel],
    others: Iterable[int],
    own: int,
    may_live: Callable[[int], bool] = lambda rank: False,
) -> PeersState:
    """Ask the replicas `others` how far they are, for the leader `own`, which was started again."""
    found: dict[int, _Found] = {}
    silent = set()
    for other in others:
        one = _under_way(connect, other)
        if one is not None and one.trains:
            return PeersState(trains=True)
        if one is not None:
            found[other] = one
        elif may_live(other):
            silent.add(other)
    last = max(found.values(), key=lambda each: each.ended, default=_Found())
    # The one that has ended the last call leads the next one. A process that was started again in its place
    # knows nothing of that call.
    knows_it = last.leader in found and found[last.leader].ended >= last.ended
    trains = last.leader != own and (knows_it or last.leader in silent)
    return PeersState(trains, last.ended, frozenset(silent))


def _under_way(connect: Callable[[int, float], Channel], other: int) -> _Found | None:
    """Return how the newest call of `fit` of a replica stands; None: it does not answer."""
    generation = 1
    while True:
        try:
            channel = connect(other, PROBE_S)
            try:
                channel.send(Enter(generation=generation, plan_hash=""))
                frame = channel.receive(deadline=SYSTEM.now() + _ANSWER_S)
            finally:
                channel.close()
        except PeerError:
            return None
        terms = frame.message
        if isinstance(terms, Entered):
            leader, concluded = terms.leader, terms.concluded
            if frame.passed:  # it is on this host
                arena_fd, ledger_fd, *others_fds = descriptors_of(frame)
                for descriptor in (arena_fd, *others_fds):
                    os.close(descriptor)
                ledger = ledger_of(GrowingMemory.received(ledger_fd))
                ledger.read()
                leader, concluded = leadership_by(ledger, terms.leader)()
            return _Found(ended=terms.state.generation, leader=leader) if concluded else _Found(trains=True)
        if not isinstance(terms, Over) or terms.generation <= generation:
            return _Found(trains=isinstance(terms, Refusal))  # it gathers others for the next one
        generation = terms.generation


class HasToLeadError(Exception):
    """The leader and every replica before this one are gone, or all have stopped training: this one leads.

    `gone` are their ranks; `ended` is how many calls of `fit` had ended, where this process replaces another.
    """

    def __init__(self, gone: Collection[int], ended: int = 0) -> None:
        super().__init__("this replica has to lead")
        self.gone = gone
        self.ended = ended


class HasEndedError(Exception):
    """The call of `fit` has ended, and all others have gone."""


class LeaderElection:
    """Decides who leads where the leader cannot be reached.

    A task of this host whose socket is not served has ended, or is being started again. `members` are the
    ranks that took part in the call of `fit` before this one; empty before the first. `heard` returns who
    leads, while this task has a lease there.
    """

    def __init__(
        self,
        connect: Callable[[int, float], Channel],
        finder: LeaderFinder,
        own: int,
        others: Collection[int],
        folder: Path | None,
        doings: Callable[[Collection[int]], PeersState],
        lost: Callable[[], Collection[int]],
    ) -> None:
        """Watch the tasks of other ranks.

        Args:
            connect: opens a connection to the task of a rank, within some seconds.
            finder: directs connections to another leader.
            own: the rank of this task; negative: an evaluator.
            others: the ranks that the cluster names.
            folder: of checkpoints, in a process that replaces another one of its task; else None.
            doings: asks the tasks of some ranks how far they are.
            lost: returns the ranks that the launcher will never start again.
        """
        self.members: Collection[int] = ()
        self.heard: Callable[[], str | None] = lambda: None
        self._last_step: int | None = None
        self._number = 0
        self._thread = threading.get_ident()
        self._connect = connect
        self._finder = finder
        self._own = own
        self._others = frozenset(others)
        self._folder = folder
        self._doings = doings
        self._lost = lost

    def begin(self, number: int, last_step: int | None) -> None:
        """Act for this thread, in a call of `fit` whose last step may be unknown."""
        self._thread = threading.get_ident()
        self._number = number
        self._last_step = last_step

    def not_leading(self, leads: str | None = None) -> None:
        """Ask another task from now on, as the last one does not lead; `leads` is the leader that it named.

        Where all who have trained are gone, or the first leader never comes, the first of the tasks that are
        not lost for good leads; raises as `poll`.
        """
        leads = leads or self.heard()
        self._finder.go_on(leads)
        if leads is not None or self._number == 0 or self._own < 0 or threading.get_ident() != self._thread:
            return
        lost = set(self._lost())
        others = self._others - lost - {self._own}
        if self._own > min(others, default=self._own):
            return
        found = self._doings(sorted(others))
        if not found.trains and not found.silent:
            if self.is_over():
                raise HasEndedError
            raise HasToLeadError(lost, found.ended)

    def heeded(self, connect: Callable[[float], Channel]) -> Callable[[float], Channel]:
        """Return `connect` that seeks the next leader where it fails in this thread of a replica."""

        def reach(timeout_s: float) -> Channel:
            try:
                return connect(timeout_s)
            except PeerError:
                looks = self._own >= 0 and threading.get_ident() == self._thread and self.heard() is None
                if looks and (rank := self.poll()) is not None:
                    self._finder.led_by_rank(rank)
                raise

        return reach

    def poll(self) -> int | None:
        """Return the rank that leads next; None: unknown, or the leader of before if it comes back.

        Raises:
            HasToLeadError: this replica leads.
            HasEndedError: there is nothing to lead any more.
        """
        everyone = sorted({*self._others, *self.members} - {self._own})
        before = [rank for rank in everyone if rank < self._own]
        for rank in before:  # many replicas that begin together do not ask all others
            if self._is_there(rank):
                return rank
        there = [rank for rank in everyone if rank > self._own and self._is_there(rank)]
        if before and self._is_there(before[0]):  # it may just have been started again
            return before[0]
        if not there and self.is_over():
            raise HasEndedError
        if not self.members:
            return None
        raise HasToLeadError(set(self.members) - {*there, self._own})

    def _is_there(self, rank: int) -> bool:
        try:
            self._connect(rank, PROBE_S).close()
        except PeerError:
            return False
        return True

    def is_over(self) -> bool:
        """Return whether the newest checkpoint is of a later call of `fit`, or of this one's last step."""
        if self._folder is None or self._last_step is None:
            return False
        try:
            found = checkpoints.list_checkpoints(self._folder)
            state = checkpoints.read_manifest(found[-1].path).state if found else None
        except (CheckpointError, OSError):
            return False
        if state is None or state.generation != self._number:
            return state is not None and state.generation > self._number
        return found[-1].step - state.lineage.first_step >= self._last_step


_LOOK_S = 0.1


class OtherReplicas:
    """All replicas of a run but this one; `hosting` is this one's service, once it serves."""

    def __init__(self, task: ClusterTask, connector: Connector) -> None:
        self.hosting: Hosting | None = None
        self._task = task
        self._connector = connector
        self._ranks = frozenset(range(len(task.assignment.cluster.replicas()))) - {task.context.rank}

    def name_of(self, rank: int) -> str:
        return str(task_of(self._task.assignment.cluster, rank))

    def connect(self, rank: int, timeout_s: float) -> Channel:
        """Open a connection over which one host shares memory; raise a `PeerError` if that fails in time."""
        cluster = self._task.assignment.cluster
        task = task_of(cluster, rank)
        if task not in cluster:  # it has joined, and serves at its socket
            self._connector.book.learn(str(task), SOCKET_ALONE, 1)
        return self.connect_task(task, timeout_s)

    def connect_task(self, task: TaskId, timeout_s: float) -> Channel:
        assert self.hosting is not None, "a replica serves"
        return self.hosting.sharing(self._connector.connect(task, timeout_s), task)

    def lost(self) -> set[int]:
        """Return the ranks that have failed or were stopped, as far as a launcher of this host says so.

        A rank that succeeded is not lost: its training is over, and nothing begins anew.
        """
        return self._in_state(TaskState.FAILED, TaskState.STOPPED)

    def succeeded(self) -> set[int]:
        return self._in_state(TaskState.SUCCEEDED)

    def gone(self) -> set[int]:
        """Return the ranks that are lost for good, or that this leading replica knows to be gone."""
        assert self.hosting is not None, "a leader serves"
        return self.hosting.gone() | self.lost()

    def _in_state(self, *states: TaskState) -> set[int]:
        tasks = self._task.tasks_in(*states)
        return {rank for rank in self._ranks if self.name_of(rank) in tasks}

    def ask(self, ranks: Collection[int]) -> PeersState:
        return meanwhile(self.connect, sorted(ranks), self._task.context.rank, self.may_live)

    def ask_all(self, patience_s: float, *, waits: bool = False) -> PeersState:
        """Ask all that are not lost; on this host, or with `waits`, ask again while some are silent."""
        others = self._ranks - self.lost()
        found = self.ask(others)
        until_s = SYSTEM.now() + patience_s
        while (self._on_this_host or waits) and found.silent and SYSTEM.now() < until_s:
            self._task.reporter.waiting(", ".join(map(self.name_of, sorted(found.silent))))
            SYSTEM.sleep(_LOOK_S)
            found = self.ask(others)
        return found

    @property
    def _on_this_host(self) -> bool:
        return self.hosting is not None and self.hosting.on_this_host

    def may_live(self, rank: int) -> bool:
        return not self._on_this_host or is_served(self.name_of(rank), self._task.credentials)


LOOK_S = 0.2


@dataclass
class Gathering:
    """The leader's wait, of at most `start_s`, for the others; `gone` returns those that were there once."""

    expected: Set[int]
    name_of: Callable[[int], str]
    gone: Callable[[], Set[int]]
    reporter: Reporter
    too_few: TooFew
    start_s: float
    since_s: float = field(default_factory=SYSTEM.now, init=False)

    def suffice(self, there: Mapping[int, str], more: threading.Condition) -> bool:
        """Return whether training begins with the replicas that are there; if not, wait a little for `more`.

        Raises:
            TooFewReplicasError: some are missing or gone, and the spec does not do without.
        """
        missing = self.expected - there.keys()
        awaited = missing - self.gone()
        waited_s = SYSTEM.now() - self.since_s
        if awaited and waited_s < self.start_s:
            self.reporter.waiting(self._names(awaited))
            more.wait(LOOK_S)
            return False
        self.reporter.waiting(None)
        if missing and self.too_few != TooFew.SHRINK:
            raise TooFewReplicasError(
                f"too few replicas: {self._names(missing)} did not come within {self.start_s:g} s "
                f"(wait.start_s), or have gone; training.too_few is {self.too_few}"
            )
        if missing:
            why = "it is gone" if not awaited else f"waited {waited_s:.0f} s (wait.start_s)"
            self.reporter.warn(f"begins without {self._names(missing)}: {why}")
        return True

    def _names(self, ranks: Set[int]) -> str:
        return ", ".join(map(self.name_of, sorted(ranks)))
