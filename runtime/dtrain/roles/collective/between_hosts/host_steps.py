"""The steps of one host among several: its replica computes parts, and applies means when they are committed.

    steps = HostSteps(...)
    match steps.next(deadline):
        case Compute(parts): ... steps.complete(facts) for each
        case Apply(step):    ... update the variables by the mean, once; steps.applied(step)

A thread runs the host's agent, and another one the sums.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from dtrain.collectives.between_hosts.agent import BEAT_S, Agent
from dtrain.collectives.between_hosts.follower import (
    UNRECORDED,
    Action,
    Apply,
    BeginAttempt,
    ComputeParts,
    HoldStep,
    Vote,
)
from dtrain.errors import LeftBehindError, PeerError, WaitTimeoutError
from dtrain.messages.replicas import Direction, HostState, LedgerRecord, PartFacts, Seat
from dtrain.process.clock import SYSTEM, Clock, Running
from dtrain.roles.collective.between_hosts.calls import CallsToSend, SaidCall
from dtrain.roles.collective.between_hosts.links import Links, Open, Take, Ways
from dtrain.roles.collective.between_hosts.records import Records, StoredRecord
from dtrain.wire.interruptible import next_of

Done = ComputeParts | Apply | HoldStep | StoredRecord | SaidCall
"""What a replica does next, and what has come to it."""
Reduce = Callable[[BeginAttempt, Ways, float], None]
"""Makes the sums of an attempt on streams until a deadline; called from a thread, one call at a time."""


class HostSteps:
    """One host; `next` and `complete` belong to the replica's thread."""

    def __init__(
        self,
        vote: Vote,
        parts: int,
        reduce: Reduce,
        open_: Open,
        take: Take,
        *,
        lease_s: float,
        patience_s: float,
        keep: Callable[[Vote], None] = lambda vote: None,
        applied: int | None = None,
        commits: bool = False,
        wake: Callable[[], None] = lambda: None,
        clock: Clock = SYSTEM,
        alone: bool = False,
        needed: int = 0,
        longest_record: int = 1 << 20,
        learn: Callable[[Mapping[int, Sequence[Seat]]], None] = lambda seats: None,
    ) -> None:
        """Begin, or go on where another replica of this host has ended; all hosts call this.

        Args:
            vote: of this host; its first seat is this replica, which carries the host's sums out.
            patience_s: how long a sum waits for another host's bytes.
            keep: writes a vote into the memory of the host; called before anything follows from it.
            applied: the newest step that is in the variables; None: the one before that of the vote.
            learn: told, in another thread, of the replicas of other hosts before they are reached.
        """
        self._wake = wake
        self._reduce, self._open, self._take = reduce, open_, take
        self._patience_s, self._parts, self._clock = patience_s, parts, clock
        about = vote, parts, lease_s, clock.now()
        self._agent = Agent(*about, alone=alone, needed=needed, commits=commits)
        self._keep, self._kept = keep, vote
        keep(vote)
        self.welcome, self.awaited = self._agent.welcome, ""
        self._learn, self._known = learn, dict[int, Sequence[Seat]]()
        self.leads_in = self._agent.leads_in
        self._applied = vote.step - 1 if applied is None else applied
        self._come = vote.written
        self._changed = threading.Condition()
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._actions: queue.SimpleQueue[Action | StoredRecord | SaidCall | Exception] = queue.SimpleQueue()
        self._sums = _Sums(self)
        others = [host for host in vote.hosts if host != vote.host]
        self._records, self._calls = Records(others), CallsToSend(vote.host)
        told = self._records, longest_record, self._calls
        self._links = Links(vote.host, open_, take, self._heard, self._gone, clock, *told)
        self._thread = clock.start(self._run, "agreement of hosts")

    @property
    def waits_for(self) -> str:
        return self._agent.stands or f"the other hosts, step {self._agent.step}"

    @property
    def hosts(self) -> Sequence[int]:
        return self._agent.hosts

    @property
    def seats(self) -> Mapping[int, Sequence[Seat]]:
        return self._agent.seats

    def next(self, deadline: float) -> Done:
        """Wait for what the replica is to do next; `deadline` by `time.monotonic`. Raises a WaitTimeoutError,
        or a LeftBehindError if the others go on without this host.
        """
        try:
            action = next_of(self._actions, deadline)
        except queue.Empty:
            raise WaitTimeoutError(f"waited in vain for {self.waits_for}") from None
        return self._taken(action)

    def poll(self) -> Done | None:
        try:
            return self._taken(self._actions.get_nowait())
        except queue.Empty:
            return None

    def _taken(self, action: Action | StoredRecord | SaidCall | Exception) -> Done:
        if isinstance(action, Done):
            return action
        self._actions.put(action)
        if isinstance(action, Exception):
            raise action
        agent = self._agent
        if set(agent.hosts) - {agent.host} <= set(agent.vote.gone):
            names = ", ".join(seats[0].task for host, seats in agent.seats.items() if host != agent.host)
            raise LeftBehindError(
                f"{names} were silent for a lease, and ended. They may have gone on without this host: use "
                "the files that the last of them to lead has named, or start this again if they train"
            )
        raise LeftBehindError(
            "the other hosts had not heard of this one for its lease, and go on without it; start it again"
        )

    def complete(self, facts: PartFacts) -> None:
        self._events.put(partial(self._agent.complete, facts))

    def arrive(self, step: int, position: int = UNRECORDED, *, void: bool = False) -> None:
        """Note that the leading replica has arrived; all hosts need the records up to `position` first."""
        self._events.put(partial(self._agent.arrive, step, position, void=void))

    def written(self, position: int) -> None:
        self._events.put(partial(self._agent.write, position))

    def record(self, head: LedgerRecord, body: bytes) -> None:
        """Send a record of the leader's ledger, where it is written already, to all other hosts."""
        self._records.add(StoredRecord(head, body))
        self._events.put(partial(self._agent.write, head.position))
        self._links.send_unsent()

    def call(self, said: SaidCall) -> None:
        if self._calls.add(self._agent.host, said):
            self._links.send_unsent()

    def all_have(self, position: int) -> bool:
        others = [host for host in self._agent.hosts if host != self._agent.host]
        return all(self._records.acknowledged(host) >= position for host in others)

    def admit(self, seats: Sequence[Seat]) -> None:
        self._events.put(partial(self._agent.admit, seats))

    @property
    def membership(self) -> int:
        return self._agent.membership

    def seated(self, seats: Sequence[Seat]) -> None:
        self._events.put(partial(self._agent.seated, seats))

    def joining(self, step: int, *, joining: bool) -> None:
        self._events.put(partial(self._agent.joining, step, joining=joining))

    def applied(self, step: int) -> None:
        """Say that the variables are those of the next version, so that the mean may be written again."""
        with self._changed:
            self._applied = step
            self._changed.notify_all()

    def close(self) -> None:
        """Leave; from then on nothing is promised any more."""
        self._events.put(None)
        self._thread.join()
        self._sums.close()
        self._links.close()

    def _heard(self, host: int, message: HostState | Direction | StoredRecord | SaidCall) -> None:
        self._events.put(partial(self._receive, host, message))

    def _receive(self, host: int, message: HostState | Direction | StoredRecord | SaidCall) -> None:
        if isinstance(message, StoredRecord):
            if host in self._agent.hosts:
                self._take_record(message)
            return
        if isinstance(message, SaidCall):
            self._take_call(host, message)
            return
        if isinstance(message, HostState):
            self._records.acknowledge(host, message.written)
        self._agent.received(host, message, self._clock.now())

    def _take_record(self, record: StoredRecord) -> None:
        """Pass a record to the replica, unless it came before, or one before it is missing."""
        known = max(self._come, self._agent.written)
        if record.head.position == known + 1 or (record.head.whole and record.head.position > known):
            self._come = record.head.position
            self._act(record)

    def _take_call(self, host: int, said: SaidCall) -> None:
        """Pass a call to the replica, and to other hosts if this one leads, unless it came before."""
        agent, head = self._agent, said.head
        may_be = abs(head.step - agent.step) <= 1 and 0 <= head.part < self._parts
        if may_be and host in agent.hosts and self._calls.add(host, said):
            self._act(said)
            self._links.send_unsent()

    def _gone(self, host: int) -> None:
        self._events.put(partial(self._agent.gone, host))
        self._events.put(partial(self._sums.host_gone, host))

    def _run(self) -> None:
        try:
            while True:
                self._go_on()
                try:
                    event = self._events.get(timeout=BEAT_S)
                except queue.Empty:
                    continue
                if event is None:
                    return
                event()
        except Exception as error:  # it belongs to the replica's thread
            self._act(error)

    def _act(self, action: Action | StoredRecord | SaidCall | Exception) -> None:
        self._actions.put(action)
        self._wake()

    def _go_on(self) -> None:
        while True:
            messages, actions = self._agent.drain(self._clock.now())
            if (vote := self._agent.vote) != self._kept:
                self._keep(vote)
                self._kept = vote
            self._note_hosts()
            self._note_lead()
            if self._calls.follow(self._agent.leader):
                self._links.send_unsent()
            for host, message in messages:
                self._links.send(host, message)
            for action in actions:
                if isinstance(action, BeginAttempt):
                    self._sums.begin(action)
                else:
                    self._act(action)
            if not actions:
                return

    def _note_hosts(self) -> None:
        seats, own = self._agent.seats, self._agent.host
        if seats and seats != self._known:
            self._known = dict(seats)
            self._learn(seats)
            self._records.keep_for([host for host in self._agent.hosts if host != own])
            self._links.retain(seats)
            for host, seated in seats.items():
                if host != own:
                    self._links.know(host, seated)
        self.awaited = ", ".join(self._agent.awaited)
        if self.welcome != self._agent.welcome:
            self.welcome = self._agent.welcome
            self._wake()

    def _note_lead(self) -> None:
        if self.leads_in != self._agent.leads_in:
            self.leads_in = self._agent.leads_in
            self._wake()


class _Sums:
    """The attempts at sums, one after another, in a thread each; streams are kept while attempts succeed."""

    def __init__(self, steps: HostSteps) -> None:
        self._steps = steps
        self._ways: Ways | None = None
        self._attempt = -1
        self._running: Running | None = None

    def begin(self, begin: BeginAttempt) -> None:
        """Begin an attempt, and give up another one that is under way."""
        earlier = self._running
        tasks = {host: seated[0].task for host, seated in begin.seats.items()}
        if self._ways is None or begin.attempt != self._attempt:
            if self._ways is not None:
                self._ways.abort(f"attempt {begin.attempt} of step {begin.step} has begun")
            retired, self._ways = (
                self._ways,
                Ways(tasks, str(begin.attempt), self._steps._open, self._steps._take),
            )
            self._attempt = begin.attempt
        else:
            retired = None
        run = partial(self._sum, begin, self._ways, retired, earlier)
        self._running = self._steps._clock.start(run, "sum over hosts")

    def host_gone(self, host: int) -> None:
        if self._ways is not None:
            self._ways.blame(host)
            self._ways.abort(f"all processes of host {host} have ended")

    def close(self) -> None:
        if self._ways is not None:
            self._ways.abort("this host leaves")
        if self._running is not None:
            self._running.join(self._steps._patience_s)
        if self._ways is not None:
            self._ways.close()

    def _sum(self, begin: BeginAttempt, ways: Ways, retired: Ways | None, earlier: Running | None) -> None:
        if earlier is not None:
            earlier.join()
        if retired is not None:
            retired.close()
        agent, events = self._steps._agent, self._steps._events
        with self._steps._changed:
            self._steps._changed.wait_for(lambda: self._steps._applied == begin.step - 1)
        try:
            if not begin.void:
                self._steps._reduce(begin, ways, time.monotonic() + self._steps._patience_s)
        except PeerError:
            events.put(partial(agent.failed, begin.attempt, ways.blamed))
        except Exception as error:  # it belongs to the replica's thread
            self._steps._act(error)
        else:
            events.put(partial(agent.has_mean, begin.attempt))
