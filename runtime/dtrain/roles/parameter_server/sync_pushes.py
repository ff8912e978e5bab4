"""What a server does with pushes in synchronous training: rules 1 to 3, 5 and 10, and ps:0's part of rule 2.

Machine: no socket, no thread, no clock. The rules themselves stand in `protocol.sync_round`,
`protocol.part_dealer` and `protocol.exactly_once`; here they are joined to a server's memory and to its
callers.

A push is answered when the version that it contributes to has been made, or as soon as ps:0 has another part
for its replica: ps:0 then says `Release` to the other servers, so that all of them answer it as pending.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dtrain.config import SyncSection
from dtrain.messages import Commit, Complete, Push, Refusal, RefusalKind, Release, Reply, Subscribe, Verdict
from dtrain.parameters.means import mean
from dtrain.parameters.store import Store
from dtrain.protocol.exactly_once import Seen, SeenPushes
from dtrain.protocol.part_dealer import NO_PART
from dtrain.protocol.sync_round import Contribution, SyncRound
from dtrain.protocol.tally import Open
from dtrain.roles.parameter_server.actions import Action, Caller, Report, Send
from dtrain.roles.parameter_server.sync_step import SyncStep

Blocks = Sequence[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Waiting:
    """A connection on which the version being made is waited for; after a break there may be an old and a new
    one for a while.
    """

    caller: Caller
    duplicate: bool = False


@dataclass(frozen=True)
class Offered:
    """A gradient that is held.

    Attributes:
        blocks: as they were pushed.
        examples: of how many examples it is the mean.
    """

    blocks: Blocks
    examples: int


class SyncPushes:
    """Contributions to the newest version, held until ps:0 has decided which of them make the next one."""

    def __init__(
        self,
        store: Store,
        training: SyncSection,
        subscribers: Sequence[Caller],
        step: SyncStep | None,
        *,
        generation: int,
        term: int,
        version: int,
        max_steps: int,
        until: int | None = None,
        leader: int | None = None,
    ) -> None:
        """Begin a term.

        Args:
            store: changed by every step.
            training: the rules.
            subscribers: the connections of other servers to ps:0.
            step: at ps:0.
            generation, term, version, max_steps, until: as in `Initialise`.
            leader: its rank; None if it does not train.
        """
        self._store = store
        self._step = step
        self._training = training
        self._subscribers = subscribers
        self._generation = generation
        self._term = term
        self._leader = leader
        self._round: SyncRound[Offered] = SyncRound(version)
        self._max_steps = max_steps
        self._until = until
        self._undecided: dict[str, Contribution] = {}
        self._pushes: dict[Contribution, Push] = {}
        self._waiting: dict[Contribution, list[Waiting]] = {}
        self._released: set[Contribution] = set()
        self._last_commit: Commit | None = None
        self.failed: Refusal | None = None
        self.missing = ""  # ps:0: which replicas have gone, and how

    @property
    def too_few(self) -> bool:
        """ps:0: whether fewer can contribute than are needed."""
        return self._step is not None and self._step.decision.too_few_since_s is not None

    @property
    def version(self) -> int:
        """The newest version."""
        return self._round.version

    @property
    def finished(self) -> bool:
        """Whether the last version has been made."""
        return self._round.version >= self._max_steps

    @property
    def held_back(self) -> bool:
        """ps:0: whether the next version waits for the leader."""
        return self._until is not None and self._round.version >= self._until

    def hold(self) -> int:
        """ps:0: make no version; returns the newest."""
        self._until = self.version
        return self.version

    def release(self, until: int | None) -> None:
        """ps:0: go on, to this version."""
        self._until = until

    def end_at(self, version: int, seen: SeenPushes) -> Iterator[Action]:
        """End training at this version, and answer the replicas that wait for a later one."""
        self._max_steps = version
        if not self.finished:
            return  # the commit that makes it is under way
        for replica in self._undecided:
            seen.decide(replica, Verdict.FINISHED)
        for contribution, each in self._waiting.items():
            told = self.told_to(contribution[0])
            for waiting in each:
                verdict, duplicate = Verdict.FINISHED, waiting.duplicate
                reply = Reply(verdict=verdict, version=version, duplicate=duplicate, tally=told)
                yield Send(waiting.caller, reply, self._shown())
        self._forget_pushes()

    def permit(self, rank: int) -> tuple[bool, int]:
        """Return whether a replica may push next, and the part that it is to compute; other servers than ps:0
        always say yes.

        With `deterministic` no replica begins with values that the leader may be about to change.
        """
        if self._step is None:
            return True, NO_PART
        waits = self.finished or (self.held_back and self._training.deterministic)
        part = NO_PART if waits else self._step.permit(rank, self._max_steps - self.version)
        return part != NO_PART, part

    def refused(self, rank: int, part: int) -> tuple[bool, int]:
        """Note that the gradient of a part was refused, and return what `permit` says then."""
        if self._step is not None:
            self._step.refused(rank, part)
        return self.permit(rank)

    # Pushes

    def push(
        self,
        caller: Caller,
        replica: str,
        rank: int,
        push: Push,
        blocks: Blocks,
        seen: SeenPushes,
        now: float,
    ) -> Iterator[Action]:
        """Deal with a gradient that has passed every check and has not been seen before, or whose verdict is
        still open.
        """
        contribution = (rank, push.incarnation, push.ordinal)
        if seen.lookup(replica, push.incarnation, push.sequence) is not None:
            self._waiting.setdefault(contribution, []).append(Waiting(caller, duplicate=True))
            return
        if self._step is not None:
            self._step.dealer.pushed(rank, push.part)
        if self.finished or push.base_version < self.version:
            comes_back = self._step is not None and self._step.too_late(rank, push.part)
            yield self._too_late(caller, replica, rank, push, seen)
            if comes_back:
                yield from self.share_out(seen, now)
            return
        seen.record(replica, Seen(push.incarnation, push.sequence))
        self._undecided[replica] = contribution
        self._waiting.setdefault(contribution, []).append(Waiting(caller))
        self._pushes[contribution] = push
        if push.examples:
            self._round.offer(contribution, push.base_version, Offered(blocks, push.examples))
        if self._step is not None:
            passes_over = self._step.offered(contribution, push)
            yield from self.share_out(seen, now) if passes_over else self.decide(seen, now)
            if contribution in self._waiting and self._step.may_have_another(rank):
                yield from self._deal_to(contribution, seen)
            return
        if push.examples:
            yield Report(self._report(contribution))
        if contribution in self._released:
            yield from self._answer_pending(contribution, NO_PART, seen)

    def _too_late(self, caller: Caller, replica: str, rank: int, push: Push, seen: SeenPushes) -> Send:
        late = push.base_version < self.version and push.examples > 0
        verdict = Verdict.STALE if late else Verdict.FINISHED if push.examples else Verdict.ACCEPTED
        seen.record(replica, Seen(push.incarnation, push.sequence, verdict))
        ticket, part = self.permit(rank)
        reply = Reply(
            verdict=verdict,
            version=self.version,
            stale=int(late),
            ticket=ticket,
            part=part,
            tally=self.told_to(rank),
        )
        return Send(caller, reply, self._shown())

    def _deal_to(self, contribution: Contribution, seen: SeenPushes) -> Iterator[Action]:
        """ps:0: if there is another part for a replica that waits, let it go on, on every server."""
        may, part = self.permit(contribution[0])
        if may:
            self._released.add(contribution)
            yield from self._answer_pending(contribution, part, seen)
            for subscriber in self._subscribers:
                yield Send(subscriber, self._release(contribution))

    def _release(self, contribution: Contribution) -> Release:
        return Release(
            generation=self._generation, version=self.version, contribution=contribution, term=self._term
        )

    def release_replica(self, message: Release, seen: SeenPushes) -> Iterator[Action]:
        """ps:i: ps:0 has another part for a replica that waits, or will wait as soon as its push arrives."""
        if message.version == self.version:
            contribution = message.contribution
            self._released.add(contribution)
            if contribution in self._waiting:
                yield from self._answer_pending(contribution, NO_PART, seen)

    def _answer_pending(self, contribution: Contribution, part: int, seen: SeenPushes) -> Iterator[Action]:
        offered = self._round.held.get(contribution)
        if offered is not None:  # the replica's memory, which it is about to write again
            copies = [np.array(block) for block in offered.blocks]
            self._round.held[contribution] = replace(offered, blocks=copies)
        for replica in [replica for replica, its in self._undecided.items() if its == contribution]:
            seen.decide(replica, Verdict.PENDING)
            del self._undecided[replica]
        for waiting in self._waiting.pop(contribution):
            yield Send(
                waiting.caller,
                Reply(
                    verdict=Verdict.PENDING,
                    version=self.version,
                    duplicate=waiting.duplicate,
                    ticket=True,
                    part=part,
                ),
            )

    # The decision

    def complete(self, server: int, message: Complete, seen: SeenPushes, now: float) -> Iterator[Action]:
        """ps:0: another server holds a contribution whole."""
        if self._step is not None:
            contribution = (message.rank, message.incarnation, message.ordinal)
            self._step.reported(server, contribution, message.version)
            yield from self.decide(seen, now)

    def said_since(self, message: Subscribe) -> list[Commit | Release]:
        """ps:0: what a server that connects (again) has missed; servers are never more than one version
        apart.

        Where it stood when it asked may be long ago: it may have been initialised since.
        """
        last = self._last_commit
        said: list[Commit | Release] = []
        if last is not None and (message.generation, message.term, message.version) <= (
            last.generation,
            last.term,
            last.version,
        ):
            said.append(last)
        return said + [self._release(contribution) for contribution in sorted(self._released)]

    def reports(self) -> list[Complete]:
        """ps:i: everything that ps:0 must hear again after a reconnect."""
        return [self._report(contribution) for contribution in self._round.held]

    def _report(self, contribution: Contribution) -> Complete:
        rank, incarnation, ordinal = contribution
        return Complete(
            generation=self._generation,
            rank=rank,
            incarnation=incarnation,
            version=self.version,
            ordinal=ordinal,
            term=self._term,
        )

    def commit(self, message: Commit, seen: SeenPushes) -> Iterator[Action]:
        """ps:i: the decision has arrived."""
        yield from self._carry_out(message, seen)

    def members_changed(
        self, live: Set[int], anew: Collection[int], seen: SeenPushes, now: float
    ) -> Iterator[Action]:
        """ps:0: these ranks are alive or still expected; of those in `anew` another process has come."""
        if self._step is not None:
            self._step.members_changed(live, anew)
            yield from self.share_out(seen, now)

    def share_out(self, seen: SeenPushes, now: float) -> Iterator[Action]:
        """ps:0: parts may have come back, or a batch may have begun: replicas that wait may have another
        part.
        """
        if self._step is None:
            return
        self._step.shared_out += 1
        for contribution in list(self._waiting):
            yield from self._deal_to(contribution, seen)
        yield from self.judge(seen, now)

    def judge(self, seen: SeenPushes, now: float) -> Iterator[Action]:
        """ps:0: time has passed, or members have changed: decide, or give up waiting for those who are not
        there.
        """
        yield from self.decide(seen, now)
        if self._step is None or self.failed or self.finished or self.held_back:
            return
        found = self._step.decision.too_few(now)
        if found is None:
            return
        waited_s = now - found.since_s
        if self._training.too_few == "fail" or waited_s >= self._training.too_few_timeout_s:
            reason = (
                f"too few replicas: {found.needed} contributions are needed for version {self.version + 1} "
                f"and at most {found.possible} can come, for {waited_s:.1f} s (training.too_few: "
                f"{self._training.too_few}): {self.missing}"
            )
            self.failed = Refusal(reason=reason, kind=RefusalKind.TOO_FEW_REPLICAS)

    def decide(self, seen: SeenPushes, now: float) -> Iterator[Action]:
        """ps:0: make the next version if enough contributions are complete everywhere."""
        if self._step is None or self.failed or self.finished or self.held_back:
            return
        decided = self._step.decision.decided()
        if decided is None:
            return
        commit = Commit(
            generation=self._generation,
            version=self.version,
            contributors=decided.contributors,
            term=self._term,
            parts=decided.parts,
        )
        self._last_commit = commit
        self._step.made(decided, self._pushes)
        for subscriber in self._subscribers:
            yield Send(subscriber, commit)
        yield from self._carry_out(commit, seen)

    def _carry_out(self, commit: Commit, seen: SeenPushes) -> Iterator[Action]:
        held = _by_process(self._round.held)
        offered = self._round.commit(commit.version, commit.contributors)
        if offered is None:
            return
        examples = [each.examples for each in offered] if self._training.weighting == "examples" else None
        trainable = [group.trainable for group in self._store.groups]
        blocks = [each.blocks for each in offered]
        gradient = mean(blocks, trainable, parts=commit.parts, weights=examples, present=self._store.values)
        self._store.apply(gradient, commit.version)
        del offered, blocks, gradient  # the answers, which are as large, are made while this waits
        counted = set(commit.contributors)
        counted_of = _by_process(counted)
        for replica, contribution in self._undecided.items():
            # Also for one whose connection is broken: its repetition is answered with this verdict.
            seen.decide(replica, self._verdict(contribution, counted))
        for contribution, each in self._waiting.items():
            rank, process, verdict = contribution[0], contribution[:2], self._verdict(contribution, counted)
            accepted = counted_of.get(process, 0)
            stale = held.get(process, 0) - accepted
            for waiting in each:
                ticket, part = self.permit(rank)
                reply = Reply(
                    verdict=verdict,
                    version=self.version,
                    duplicate=waiting.duplicate,
                    accepted=accepted,
                    stale=stale,
                    ticket=ticket,
                    part=part,
                    tally=self.told_to(rank),
                )
                yield Send(waiting.caller, reply, self._shown())
        self._forget_pushes()

    def _verdict(self, contribution: Contribution, counted: Set[Contribution]) -> Verdict:
        """What has no examples counts as it is."""
        empty = not self._pushes[contribution].examples
        return Verdict.ACCEPTED if empty or contribution in counted else Verdict.STALE

    def _forget_pushes(self) -> None:
        for of_this_version in (self._undecided, self._pushes, self._waiting, self._released):
            of_this_version.clear()

    # Answers

    def told(self) -> Open:
        """ps:0: return the sums of the epochs that the leader has not ended."""
        return self._step.tally.open() if self._step is not None else ()

    def told_to(self, rank: int) -> Open:
        """Return what an answer to a push of this replica tells of them; only the leader needs them."""
        return self.told() if rank == self._leader else ()

    def values_for(self, rank: int, whole: bool = False) -> Blocks:
        """The newest values, to be sent to a replica that goes on from them; see `Store.shown`."""
        return self._shown(whole)

    def _shown(self, whole: bool = False) -> Blocks:
        """Where the next version waits for the leader, it looks at this one."""
        return self._store.shown(self.version, whole or self.held_back)

    def rows_for(self, rank: int | None, tables: Sequence[int], ids: Blocks) -> list[np.ndarray[Any, Any]]:
        """The newest rows of tables; see `Store.look_up`."""
        return self._store.look_up(tables, ids)

    def disconnected(self, caller: Caller) -> None:
        """Answer nothing on this connection any more; what was contributed stays (it may be complete
        everywhere).
        """
        for contribution, each in list(self._waiting.items()):
            self._waiting[contribution] = [waiting for waiting in each if waiting.caller != caller]

    def callers(self) -> list[Caller]:
        """Return the connections on which the next version is waited for."""
        return [waiting.caller for each in self._waiting.values() for waiting in each]

    def awaited(self) -> tuple[Collection[int], Collection[int]]:
        """Return the ranks whose contribution the next version still lacks, and the servers that lack one
        which ps:0 has.
        """
        return self._step.awaited() if self._step is not None else ((), ())

    @property
    def standing(self) -> Hashable:
        """All that `permit` depends on beside what each rank has done: while it stays, those who were refused
        would be again.
        """
        return self.version, self._step.shared_out if self._step is not None else 0


def _by_process(contributions: Iterable[Contribution]) -> dict[tuple[int, int], int]:
    """Return how many contributions are of each process: a rank and an incarnation."""
    counts: dict[tuple[int, int], int] = {}
    for rank, incarnation, _ in contributions:
        counts[rank, incarnation] = counts.get((rank, incarnation), 0) + 1
    return counts
