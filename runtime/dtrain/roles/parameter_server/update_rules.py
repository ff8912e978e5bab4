"""A server's handling of pushes, in synchronous and in asynchronous training. Machine.

The rule *Exactly once* (docs/design/protocol.md#exactly-once), as far as pushes go:

1. A push is (replica, incarnation, sequence). A replica sends one push at a time; its next sequence is one
   higher.
2. The first arrival is new. A later arrival of the same push is a duplicate and is answered with the first
   verdict.
3. An older sequence, and an older incarnation, is refused: no replica waits for its answer any more.
4. The table is part of a checkpoint: a restored server remembers what the restored variables contain.

In synchronous training a server holds contributions until the control plane has decided
which of them make the next version: the host's server hears that by a call, the others by `Commit`. A push is
answered when the version that it contributes to has been made, or as soon as there is another part for its
replica: then a `Release` lets all servers answer it as pending.

In asynchronous training every server applies a batch on arrival, unless it has it already.
The control host's server besides asks the control plane, in the same process, who may push next; it refuses
what comes without permission and judges what is too stale.
"""

from collections.abc import Iterable, Sequence, Set

import msgspec
import numpy as np
from msgspec.structs import replace

from dtrain.config import AsyncSection, SyncSection
from dtrain.config.choices import Merge, StaleGradients, Weighting
from dtrain.control.async_steps import AsyncSteps
from dtrain.control.interface import Action, Caller, NextTurn, Report, Send
from dtrain.control.sync_steps import SyncSteps
from dtrain.messages import Commit, Complete, Initialise, Push, Release, Reply, Verdict
from dtrain.parameters.store import Store
from dtrain.parameters.updater import Contributions, merged_by_direction
from dtrain.protocol.applied_batches import AppliedBatches
from dtrain.protocol.async_updates import DelayCompensation, StalenessRule
from dtrain.protocol.part_dealer import NO_PART
from dtrain.steps.machine import Contribution
from dtrain.types import Array, Blocks


class Seen(msgspec.Struct, frozen=True):
    """The newest push of one replica and its verdict; None while it is undecided (sync: until the commit)."""

    incarnation: int
    sequence: int
    verdict: Verdict | None = None
    staleness: int = 0


class SeenPushes:
    """The table, one row a replica."""

    def __init__(self, rows: dict[str, Seen] | None = None) -> None:
        self._rows = dict(rows or {})

    def lookup(self, replica: str, incarnation: int, sequence: int) -> Seen | str | None:
        """Return None for a new push, the row of a duplicate, or the reason for which a push is refused."""
        row = self._rows.get(replica)
        if row is None or incarnation > row.incarnation:
            return None
        if incarnation < row.incarnation:
            return (
                f"{replica} is known as incarnation {row.incarnation}; this push comes from incarnation "
                f"{incarnation}"
            )
        if sequence < row.sequence:
            return f"{replica} has sent push {row.sequence} already; push {sequence} is older"
        return row if sequence == row.sequence else None

    def record(self, replica: str, seen: Seen) -> None:
        self._rows[replica] = seen

    def decide(self, replica: str, verdict: Verdict) -> None:
        row = self._rows.get(replica)
        if row is not None and row.verdict is None:
            self._rows[replica] = Seen(row.incarnation, row.sequence, verdict, row.staleness)

    def export(self) -> list[tuple[str, int, int]]:
        return [
            (name, row.incarnation, row.sequence)
            for name, row in sorted(self._rows.items())
            if row.verdict is not None
        ]

    @classmethod
    def restore(cls, rows: list[tuple[str, int, int]]) -> "SeenPushes":
        return cls(
            {name: Seen(incarnation, sequence, Verdict.ACCEPTED) for name, incarnation, sequence in rows}
        )


class Waiting(msgspec.Struct, frozen=True):
    """A connection that waits for the version being made; after a break an old and a new one for a while."""

    caller: Caller
    duplicate: bool = False


class Offered(msgspec.Struct, frozen=True):
    """A gradient that is held: `blocks` as pushed, the mean of so many `examples`; in local steps the
    difference that a round of so many `steps` has made.
    """

    blocks: Blocks
    examples: int
    steps: int = 1


class SyncRule:
    """Contributions to the newest version, held until it is decided which of them make the next one.

    Attributes:
        until: the version at which the leader reads the values, and every replica is shown them whole; None:
            no such version.
    """

    def __init__(
        self,
        store: Store,
        seen: SeenPushes,
        steps: SyncSteps | None,
        training: SyncSection,
        message: Initialise,
    ) -> None:
        self.version = message.state.version
        self.max_steps = message.state.max_steps
        self.until = message.until
        self._store = store
        self._seen = seen
        self._steps = steps
        self._by_examples = training.weighting == Weighting.EXAMPLES
        self._by_direction = training.merge == Merge.RDA
        self._generation = message.state.generation
        self._term = message.term
        self._held: dict[Contribution, Offered] = {}
        self._undecided: dict[str, Contribution] = {}
        self._empty: set[Contribution] = set()
        self._waiting: dict[Contribution, list[Waiting]] = {}
        self._released: set[Contribution] = set()

    @property
    def held_back(self) -> bool:
        return self.until is not None and self.version >= self.until

    def end_at(self, version: int) -> list[Action]:
        """Make this version the last one; answer the replicas that wait for a later one."""
        self.max_steps = version
        if self.version < version:
            return []  # the commit that makes it is under way
        for replica in self._undecided:
            self._seen.decide(replica, Verdict.FINISHED)
        answers: list[Action] = []
        for contribution, each in self._waiting.items():
            told = () if self._steps is None else self._steps.told_to(contribution[0])
            for waiting in each:
                verdict, duplicate = Verdict.FINISHED, waiting.duplicate
                reply = Reply(verdict=verdict, version=version, duplicate=duplicate, tally=told)
                answers.append(Send(waiting.caller, reply, self._shown()))
        self._forget_pushes()
        return answers

    # Pushes

    def push(
        self, caller: Caller, replica: str, rank: int, push: Push, blocks: Blocks, now: float, *, again: bool
    ) -> list[Action]:
        """Deal with a gradient that has passed every check.

        Args:
            blocks: `[group]`, each flat and of the group's dtype and size; the sender's memory until it is
                answered.
            again: whether it has been seen before, and its verdict is still open.
        """
        contribution = (rank, push.incarnation, push.ordinal)
        if again:
            self._waiting.setdefault(contribution, []).append(Waiting(caller, duplicate=True))
            return []
        if self.version >= self.max_steps or push.base_version < self.version:
            return self._too_late(caller, replica, rank, push, now)
        self._seen.record(replica, Seen(push.incarnation, push.sequence))
        self._undecided[replica] = contribution
        self._waiting.setdefault(contribution, []).append(Waiting(caller))
        if push.examples:
            self._held.setdefault(contribution, Offered(blocks, push.examples, push.steps))
        else:
            self._empty.add(contribution)
        if self._steps is not None:
            return self._steps.offered(contribution, push, now)
        reports: list[Action] = [Report(self._report(contribution))] if push.examples else []
        if contribution in self._released:
            reports += self._answer_pending(contribution, NO_PART)
        return reports

    def _too_late(self, caller: Caller, replica: str, rank: int, push: Push, now: float) -> list[Action]:
        late = push.base_version < self.version and push.examples > 0
        verdict = Verdict.STALE if late else Verdict.FINISHED if push.examples else Verdict.ACCEPTED
        steps = self._steps
        comes_back = steps is not None and steps.came_too_late(rank, push.part)
        self._seen.record(replica, Seen(push.incarnation, push.sequence, verdict))
        reply = Reply(
            verdict=verdict,
            version=self.version,
            stale=int(late),
            inner=self._store.optimizer.inner,
            **self._turn(rank),
        )
        answer = Send(caller, reply, self._shown())
        return [answer, *steps.share_out(now)] if steps is not None and comes_back else [answer]

    def _answer_pending(self, contribution: Contribution, part: int) -> list[Action]:
        offered = self._held.get(contribution)
        if offered is not None:  # the replica's memory, which it is about to write again
            copies = [np.array(block) for block in offered.blocks]
            self._held[contribution] = replace(offered, blocks=copies)
        for replica in [replica for replica, its in self._undecided.items() if its == contribution]:
            self._seen.decide(replica, Verdict.PENDING)
            del self._undecided[replica]
        return [
            Send(
                waiting.caller,
                Reply(
                    verdict=Verdict.PENDING,
                    version=self.version,
                    duplicate=waiting.duplicate,
                    ticket=True,
                    part=part,
                ),
            )
            for waiting in self._waiting.pop(contribution)
        ]

    # Decisions

    def follow(self, decision: Commit | Release, part: int = NO_PART) -> list[Action]:
        """Carry out a decision; `part` is dealt to a released replica. Raises a ValueError if a commit is for
        a version that this server has not reached, or names a contribution that it lacks.
        """
        if isinstance(decision, Commit):
            return self._commit(decision)
        if decision.version != self.version:
            return []
        self._released.add(decision.contribution)
        if decision.contribution not in self._waiting:  # its push has not arrived
            return []
        return self._answer_pending(decision.contribution, part)

    def reports(self) -> list[Complete]:
        return [self._report(contribution) for contribution in self._held]

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

    def _commit(self, commit: Commit) -> list[Action]:
        if commit.version < self.version:
            return []  # it has come again
        if commit.version > self.version or not self._held.keys() >= set(commit.contributors):
            raise ValueError(
                f"commit of version {commit.version} cannot follow version {self.version} with "
                f"{sorted(self._held)}"
            )
        held = _by_process(self._held)
        offered = [self._held[contribution] for contribution in commit.contributors]
        self._held.clear()
        self.version += 1
        examples = [each.examples for each in offered] if self._by_examples else None
        blocks = [each.blocks for each in offered]
        if self._by_direction:
            shares = [each.examples**2 / each.steps for each in offered]
            self._store.apply(merged_by_direction(self._store.layout, blocks, shares), commit.version)
        else:
            self._store.make(Contributions.of(blocks, commit.parts - len(blocks), examples, commit.version))
        del offered, blocks  # the answers, which are as large, are made while this waits
        counted = set(commit.contributors)
        for replica, contribution in self._undecided.items():
            # Also for one whose connection is broken: its repetition is answered with this verdict.
            self._seen.decide(replica, self._verdict(contribution, counted))
        answers = self._answers(counted, held)
        self._forget_pushes()
        return answers

    def _answers(self, counted: Set[Contribution], held: dict[tuple[int, int], int]) -> list[Action]:
        """Answer replicas that wait for a version made of `counted`; `held`: contributions, by process."""
        counted_of = _by_process(counted)
        version = self.version
        values = self._shown() if self._waiting else ()
        answers: list[Action] = []
        for contribution, each in self._waiting.items():
            rank, process = contribution[0], contribution[:2]
            verdict = self._verdict(contribution, counted)
            accepted = counted_of.get(process, 0)
            stale = held.get(process, 0) - accepted
            for waiting in each:
                reply = Reply(
                    verdict=verdict,
                    version=version,
                    duplicate=waiting.duplicate,
                    accepted=accepted,
                    stale=stale,
                    inner=self._store.optimizer.inner,
                    **self._turn(rank),
                )
                answers.append(Send(waiting.caller, reply, values))
        return answers

    def _verdict(self, contribution: Contribution, counted: Set[Contribution]) -> Verdict:
        """Return what became of a contribution; one that has no examples counts as it is."""
        return Verdict.ACCEPTED if contribution in counted or contribution in self._empty else Verdict.STALE

    def _forget_pushes(self) -> None:
        self._undecided.clear()
        self._empty.clear()
        self._waiting.clear()
        self._released.clear()

    # Answers

    def _turn(self, rank: int) -> NextTurn:
        return {} if self._steps is None else self._steps.next_turn(rank)

    def shown_to(self, rank: int, whole: bool = False) -> Blocks:
        return self._shown(whole)

    def _shown(self, whole: bool = False) -> Blocks:
        return self._store.shown(self.version, whole or self.held_back)

    def rows_for(self, rank: int | None, tables: Sequence[int], ids: Blocks) -> list[Array]:
        return self._store.look_up(tables, ids)

    def disconnected(self, caller: Caller) -> None:
        """Keep what was contributed: it may be complete everywhere."""
        for contribution, each in list(self._waiting.items()):
            self._waiting[contribution] = [waiting for waiting in each if waiting.caller != caller]

    def waiting(self) -> list[Caller]:
        return [waiting.caller for each in self._waiting.values() for waiting in each]


def _by_process(contributions: Iterable[Contribution]) -> dict[tuple[int, int], int]:
    """Return how many contributions are of each process: a rank and an incarnation."""
    counts: dict[tuple[int, int], int] = {}
    for rank, incarnation, _ in contributions:
        counts[rank, incarnation] = counts.get((rank, incarnation), 0) + 1
    return counts


class AsyncRule:
    """Gradients applied as they come.

    Attributes:
        rule: what becomes of a stale gradient; only the control host's server refuses one.
    """

    def __init__(
        self,
        store: Store,
        seen: SeenPushes,
        steps: AsyncSteps | None,
        training: AsyncSection,
        *,
        version: int,
        max_steps: int,
        applied: AppliedBatches,
    ) -> None:
        self.version = version
        self.max_steps = max_steps
        self.applied = applied
        self.rule = StalenessRule(training.stale_gradients, None if steps is None else training.max_staleness)
        self._store = store
        self._seen = seen
        self._steps = steps
        compensate = training.stale_gradients == StaleGradients.COMPENSATE
        self._compensation = DelayCompensation(training.compensation, store.trainable) if compensate else None

    def push(
        self, caller: Caller, replica: str, rank: int, push: Push, blocks: Blocks, now: float, *, again: bool
    ) -> list[Action]:
        version, steps = self.version, self._steps
        admitted = steps is None or steps.admits(rank, push.part)
        if admitted:
            verdict, staleness = self._judge_and_apply(rank, push, blocks)
        else:
            assert steps is not None
            verdict, staleness = steps.without_ticket(rank, push.part), 0
        self._seen.record(replica, Seen(push.incarnation, push.sequence, verdict, staleness))
        turn: NextTurn = {}
        if steps is not None:
            steps.judged(rank, push, verdict, new=self.version > version, admitted=admitted)
            turn = steps.next_turn(rank)
        reply = Reply(
            verdict=verdict,
            version=self.version,
            staleness=staleness,
            accepted=int(verdict is Verdict.ACCEPTED),
            stale=int(verdict is Verdict.STALE),
            inner=None if steps is None else self._store.optimizer.inner,
            **turn,
        )
        return [Send(caller, reply, self.shown_to(rank))]

    def _judge_and_apply(self, rank: int, push: Push, blocks: Blocks) -> tuple[Verdict, int]:
        """Apply a batch, unless this server has it.

        Servers that do not host the control plane ask for no permission: what the host refuses for lack of it
        is dealt again there.
        """
        version = self.version
        if version >= self.max_steps:
            return (Verdict.ACCEPTED if push.part in self.applied else Verdict.FINISHED), 0
        staleness = max(0, version - push.base_version)
        verdict, rate_scale = self.rule.judge(staleness)
        if verdict is Verdict.ACCEPTED:
            if not self.applied.add(push.part):
                return verdict, 0
            if self._compensation is not None and staleness:
                tables = self._store.trained_tables
                blocks = self._compensation.compensate(
                    rank, push.base_version, blocks, self._store.values, tables
                )
            self._store.apply(blocks, version, rate_scale)
            self.version += 1
        return verdict, staleness

    def shown_to(self, rank: int, whole: bool = False) -> Blocks:
        if self._compensation is not None:
            self._compensation.remember(rank, self.version, self._store.values)
        return self._store.shown(self.version, whole)

    def rows_for(self, rank: int | None, tables: Sequence[int], ids: Blocks) -> list[Array]:
        rows = self._store.look_up(tables, ids)
        if self._compensation is not None and rank is not None:
            for table, listed in zip(tables, ids, strict=True):
                self._compensation.remember_rows(rank, table, listed, self._store.tables[table].values)
        return rows

    def end_at(self, version: int) -> list[Action]:
        self.max_steps = version
        return []

    def disconnected(self, caller: Caller) -> None:
        """No-op: the replica comes back, or its lease runs out."""

    def waiting(self) -> list[Caller]:
        return []
