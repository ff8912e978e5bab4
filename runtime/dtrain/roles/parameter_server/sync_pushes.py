"""What a server does with pushes in synchronous training: rules 1 to 3 and 5, and ps:0's part of rule 2.

Machine: no socket, no thread, no clock. The rules themselves stand in `protocol.sync_round` and `protocol.exactly_once`; here
they are joined to a server's memory and to its callers.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.config import TrainingSection
from dtrain.messages import Commit, Complete, Push, Reply, Subscribe, Verdict
from dtrain.protocol.batch_dealer import BatchDealer
from dtrain.protocol.exactly_once import Seen, SeenPushes
from dtrain.protocol.sync_round import Contribution, SyncDecision, SyncRound, TooFew, quota
from dtrain.roles.parameter_server.actions import Action, Caller, Report, Send
from dtrain.roles.parameter_server.means import mean
from dtrain.roles.parameter_server.store import Store

Blocks = Sequence[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Waiting:
    """A connection on which the version being made is waited for; after a break there may be an old and a new one for a while."""

    caller: Caller
    contribution: Contribution
    duplicate: bool = False


class SyncPushes:
    """Contributions to the newest version, held until ps:0 has decided which of them make the next one."""

    def __init__(
        self,
        store: Store,
        dealer: BatchDealer,
        training: TrainingSection,
        subscribers: Sequence[Caller],
        *,
        generation: int,
        term: int,
        version: int,
        max_steps: int,
        replicas: int,
        server: int,
        servers: int,
        until: int | None = None,
    ) -> None:
        self._store = store
        self._dealer = dealer
        self._training = training
        self._subscribers = subscribers
        self._generation = generation
        self._term = term
        self._server = server
        needed = training.replicas_needed(replicas)
        self._quota = quota(needed, replicas)
        self._round: SyncRound[Blocks] = SyncRound(version)
        self._ranks = frozenset(range(replicas))
        self._live: Set[int] = self._ranks
        shrink = training.too_few == "shrink"
        self._decision = SyncDecision(version, servers, needed, self._quota, shrink, self._live) if server == 0 else None
        self._max_steps = max_steps
        self._until = until
        self._replicas = replicas
        self._undecided: dict[str, Contribution] = {}
        self._batches: dict[Contribution, int] = {}
        self._waiting: list[Waiting] = []
        self._last_commit: Commit | None = None
        self.failed: str | None = None
        self.too_few = False  # ps:0: fewer can contribute than are needed
        self.missing = ""  # ps:0: which replicas have gone, and how

    @property
    def version(self) -> int:
        """The newest version."""
        return self._round.version

    @property
    def finished(self) -> bool:
        """Whether the last version has been made."""
        return self.version >= self._max_steps

    @property
    def held_back(self) -> bool:
        """ps:0: whether the next version waits for the leader."""
        return self._until is not None and self.version >= self._until

    def hold(self) -> int:
        """ps:0: make no version; returns the newest."""
        self._until = self.version
        return self.version

    def release(self, until: int | None) -> None:
        """ps:0: go on, to this version."""
        self._until = until

    def end_at(self, version: int, seen: SeenPushes) -> Iterator[Action]:
        """This version is the last one: who waits for a later one is told."""
        self._max_steps = version
        if not self.finished:
            return  # the commit that makes it is under way
        for replica in self._undecided:
            seen.decide(replica, Verdict.FINISHED)
        for waiting in self._waiting:
            yield Send(waiting.caller, Reply(Verdict.FINISHED, version, duplicate=waiting.duplicate), self._shown())
        self._undecided.clear()
        self._waiting.clear()

    def push(
        self, caller: Caller, replica: str, rank: int, push: Push, blocks: Blocks, seen: SeenPushes, now: float
    ) -> Iterator[Action]:
        """A gradient that has passed every check and has not been seen before, or whose verdict is still open."""
        contribution = (rank, push.incarnation, push.ordinal)
        row = seen.lookup(replica, push.incarnation, push.sequence)
        if row is not None:
            self._waiting.append(Waiting(caller, contribution, duplicate=True))
            return
        last = push.ordinal + 1 >= self._quota
        # What is answered now may change while it is held.
        held = blocks if last else [np.array(block) for block in blocks]
        if self.finished or not self._round.offer(contribution, push.base_version, held):
            late = push.base_version < self.version
            verdict = Verdict.STALE if late else Verdict.FINISHED
            seen.record(replica, Seen(push.incarnation, push.sequence, verdict))
            self._too_late(push.batch)
            reply = Reply(verdict, self.version, stale=int(late), batch=self._dealer.give(rank))
            yield Send(caller, reply, self._shown())
            return
        self._batches[contribution] = push.batch
        if not last:
            seen.record(replica, Seen(push.incarnation, push.sequence, Verdict.PENDING))
            yield Send(caller, Reply(Verdict.PENDING, self.version, batch=self._dealer.give(rank)))
        else:
            seen.record(replica, Seen(push.incarnation, push.sequence))
            self._undecided[replica] = contribution
            self._waiting.append(Waiting(caller, contribution))
        if self._decision is None:
            yield Report(self._report(contribution))
        else:
            self._decision.report(self._server, contribution, push.base_version)
            yield from self.decide(seen, now)

    def complete(self, server: int, message: Complete, seen: SeenPushes, now: float) -> Iterator[Action]:
        """ps:0: another server holds a contribution whole."""
        if self._decision is not None:
            contribution = (message.rank, message.incarnation, message.ordinal)
            self._decision.report(server, contribution, message.version)
            yield from self.decide(seen, now)

    def commits_since(self, message: Subscribe) -> list[Commit]:
        """ps:0: what a server that connects (again) has missed; servers are never more than one version apart.

        Where it stood when it asked may be long ago: it may have been initialised since.
        """
        last = self._last_commit
        if last is None:
            return []
        asked = (message.generation, message.term, message.version)
        return [last] if asked <= (last.generation, last.term, last.version) else []

    def reports(self) -> list[Complete]:
        """ps:i: everything that ps:0 must hear again after a reconnect."""
        return [self._report(contribution) for contribution in self._round.held]

    def _report(self, contribution: Contribution) -> Complete:
        rank, incarnation, ordinal = contribution
        return Complete(self._generation, rank, incarnation, self.version, ordinal, self._term)

    def commit(self, message: Commit, seen: SeenPushes) -> Iterator[Action]:
        """ps:i: the decision has arrived."""
        yield from self._carry_out(message.version, message.contributors, seen)

    def members_changed(self, live: Set[int], seen: SeenPushes, now: float) -> Iterator[Action]:
        """ps:0: these ranks are alive or still expected."""
        self._live = live
        if self._decision is not None:
            joined = len(live - self._ranks)
            self._decision.resize(self._training.replicas_needed(self._replicas + joined))
            self._decision.members_changed(live)
        yield from self.decide(seen, now)

    def decide(self, seen: SeenPushes, now: float) -> Iterator[Action]:
        """ps:0: make the next version if enough contributions are complete everywhere."""
        if self._decision is None or self.failed or self.finished or self.held_back:
            return
        decided = self._decision.decide(now)
        self.too_few = isinstance(decided, TooFew)
        if isinstance(decided, TooFew):
            self._judge_too_few(decided, now)
        elif decided is not None:
            version = self._decision.version
            self._decision.committed()
            self._last_commit = Commit(self._generation, version, decided, self._term)
            for subscriber in self._subscribers:
                yield Send(subscriber, self._last_commit)
            yield from self._carry_out(version, decided, seen)

    def _judge_too_few(self, found: TooFew, now: float) -> None:
        waited_s = now - found.since_s
        if self._training.too_few == "fail" or waited_s >= self._training.too_few_timeout_s:
            self.failed = (
                f"too few replicas: {found.needed} contributions are needed for version {self.version + 1} and at most "
                f"{found.possible} can come, for {waited_s:.1f} s (training.too_few: {self._training.too_few}): {self.missing}"
            )

    def _carry_out(self, version: int, contributors: Sequence[Contribution], seen: SeenPushes) -> Iterator[Action]:
        held = Counter(contribution[:2] for contribution in self._round.held)
        gradients = self._round.commit(version, contributors)
        if gradients is None:
            return
        self._store.apply(mean(gradients, [group.trainable for group in self._store.groups]), version)
        del gradients  # the answers, which are as large, are made while this waits
        counted = set(contributors)
        counted_of = Counter(contribution[:2] for contribution in counted)
        self._settle_batches(counted)
        for replica, contribution in self._undecided.items():
            # Also for one whose connection is broken: its repetition is answered with this verdict.
            seen.decide(replica, Verdict.ACCEPTED if contribution in counted else Verdict.STALE)
        for waiting in self._waiting:
            process = waiting.contribution[:2]
            accepted, stale = counted_of[process], held[process] - counted_of[process]
            verdict = Verdict.ACCEPTED if waiting.contribution in counted else Verdict.STALE
            batch = self._dealer.give(waiting.contribution[0])
            reply = Reply(verdict, self.version, duplicate=waiting.duplicate, accepted=accepted, stale=stale, batch=batch)
            yield Send(waiting.caller, reply, self._shown())
        self._undecided.clear()
        self._waiting.clear()

    def _settle_batches(self, counted: Collection[Contribution]) -> None:
        """A version was made of the counted contributions; the others that are held have come too late."""
        for contribution, batch in self._batches.items():
            if contribution in counted:
                self._dealer.done(batch)
            elif contribution[0] in self._live:
                self._too_late(batch)
            else:
                self._dealer.give_back(batch)
        self._batches.clear()

    def _too_late(self, batch: int) -> None:
        if self._training.on_stale == "retry_same_batch":
            self._dealer.repeat(batch)
        else:
            self._dealer.done(batch)

    def values_for(self, rank: int, whole: bool = False) -> Blocks:
        """The newest values, to be sent to a replica that goes on from them; see `Store.shown`."""
        return self._shown(whole)

    def _shown(self, whole: bool = False) -> Blocks:
        """Where the next version waits for the leader, it looks at this one."""
        return self._store.shown(self.version, whole or self.held_back)

    def rows_for(self, rank: int | None, tables: Sequence[int], ids: Blocks) -> list[np.ndarray[Any, Any]]:
        """The newest rows of tables; see `Store.look_up`."""
        return self._store.look_up(tables, ids)

    def ticket(self, rank: int) -> bool:
        """Whether `rank` may push next: always, the newest-version rule needs no permission."""
        return True

    def refused(self, rank: int) -> bool:
        """A push of `rank` was refused; whether it may try again at once."""
        return True

    def disconnected(self, caller: Caller) -> None:
        """Nobody to answer any more; what was contributed stays (it may be complete everywhere)."""
        self._waiting = [waiting for waiting in self._waiting if waiting.caller != caller]

    def callers(self) -> list[Caller]:
        """Who waits for the next version."""
        return [waiting.caller for waiting in self._waiting]

    def awaited(self) -> tuple[Collection[int], Collection[int]]:
        """Ranks whose contribution the next version still lacks; servers that lack one which ps:0 has."""
        return self._decision.awaited() if self._decision is not None else ((), ())

    @property
    def standing(self) -> Hashable:
        """See `AsyncPushes.standing`: here nobody is refused."""
        return None
