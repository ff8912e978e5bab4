"""What a server does with pushes in asynchronous training: rules 4 and 5, and ps:0's tickets.

Machine: no socket, no thread, no clock. Every server applies a gradient on arrival; ps:0 besides says who may push next.
"""

from collections.abc import Collection, Hashable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.config import TrainingSection
from dtrain.messages import Push, Reply, Verdict
from dtrain.protocol.async_updates import TicketGate
from dtrain.protocol.delay_compensation import DelayCompensation
from dtrain.protocol.exactly_once import Seen, SeenPushes
from dtrain.protocol.part_dealer import NO_PART, PartDealer
from dtrain.protocol.staleness import StalenessRule
from dtrain.protocol.tally import Open, Tally
from dtrain.roles.parameter_server.actions import Action, Caller, Send
from dtrain.roles.parameter_server.store import Store

Array = np.ndarray[Any, Any]
Blocks = Sequence[Array]


@dataclass
class AsyncPushes:
    """Gradients applied as they come.

    Attributes:
        version: how many were applied.
        gate, dealer, tally: at ps:0.
        leader: its rank; None if it does not train.
        live: at ps:0: the ranks that may have tickets; the ticket of one that is lost would never come back.
        too_few_timeout_s: at ps:0: how long nobody may be alive who could make the next version.
        compensation: with ``stale_gradients: compensate``.
        retry: whether a batch whose gradient was too stale is to be computed again.
        missing: at ps:0: which replicas have gone, and how.
    """

    store: Store
    rule: StalenessRule
    version: int
    gate: TicketGate | None = None
    dealer: PartDealer | None = None
    tally: Tally | None = None
    leader: int | None = None
    failed: str | None = None
    live: Set[int] = frozenset()
    too_few_timeout_s: float = 0.0
    compensation: DelayCompensation | None = None
    retry: bool = False
    missing: str = ""
    _too_few_since_s: float | None = None

    @classmethod
    def of(
        cls,
        store: Store,
        training: TrainingSection,
        *,
        version: int,
        max_steps: int,
        server: int,
        until: int | None = None,
        dealer: PartDealer | None = None,
        tally: Tally | None = None,
        leader: int | None = None,
        alone: bool = False,
    ) -> "AsyncPushes":
        """Begin a term as the spec says; only ps:0 has a gate. With `alone` the replica of rank 0 makes every step."""
        warmup_steps = max_steps if alone else training.warmup_steps
        gate = TicketGate(version, max_steps, warmup_steps, training.staleness_bound, until=until, leader=leader)
        compensate = training.stale_gradients == "compensate"
        return cls(
            store,
            StalenessRule(training.stale_gradients, training.max_staleness),
            version,
            gate if server == 0 else None,
            dealer,
            tally,
            leader,
            too_few_timeout_s=0.0 if training.too_few == "fail" else training.too_few_timeout_s,
            compensation=DelayCompensation(training.compensation, store.trainable) if compensate else None,
            retry=training.on_stale == "retry_same_batch",
        )

    @property
    def held_back(self) -> bool:
        """Whether the next version waits for the leader."""
        return self.gate is not None and self.gate.held_back

    def hold(self) -> int:
        """See `TicketGate.hold`."""
        return self.version if self.gate is None else self.gate.hold()

    def release(self, until: int | None) -> None:
        """Go on, to this version."""
        if self.gate is not None:
            self.gate.until = until

    def end_at(self, version: int, seen: SeenPushes) -> Iterator[Action]:
        """This version is the last one; pushes that are under way make it."""
        if self.gate is not None:
            self.gate.end_at(version)
        return iter(())

    def values_for(self, rank: int, whole: bool = False) -> Blocks:
        """The newest values, to be sent to a replica that goes on from them; see `Store.shown`."""
        if self.compensation is not None:
            self.compensation.remember(rank, self.version, self.store.values)
        return self.store.shown(self.version, whole)

    def rows_for(self, rank: int | None, tables: Sequence[int], ids: Blocks) -> list[Array]:
        """The newest rows of tables, for a replica that computes with them, or for anybody else; see `Store.look_up`."""
        rows = self.store.look_up(tables, ids)
        if self.compensation is not None and rank is not None:
            for table, listed in zip(tables, ids, strict=True):
                self.compensation.remember_rows(rank, table, listed, self.store.tables[table].values)
        return rows

    def push(
        self, caller: Caller, replica: str, rank: int, push: Push, blocks: Blocks, seen: SeenPushes, now: float
    ) -> Iterator[Action]:
        """Deal with a gradient that has passed every check and has not been seen before."""
        version = self.version
        if self.gate is not None and self.gate.finished:
            verdict, staleness = Verdict.FINISHED, 0
        else:
            verdict, staleness = self._judge_and_apply(rank, push, blocks)
        seen.record(replica, Seen(push.incarnation, push.sequence, verdict, staleness))
        if self.gate is not None:
            self.gate.settle(rank, verdict is Verdict.ACCEPTED)
        if self.tally is not None and verdict is Verdict.ACCEPTED:
            self.tally.add(version, push.sums)
        if self.dealer is not None:
            self.dealer.pushed(rank, push.part)
            if verdict is Verdict.STALE and self.retry:
                self.dealer.repeat(push.part)
            else:
                self.dealer.settle(push.part)
        yield Send(caller, self.reply(rank, verdict, staleness), self.values_for(rank))

    def _judge_and_apply(self, rank: int, push: Push, blocks: Blocks) -> tuple[Verdict, int]:
        staleness = max(0, self.version - push.base_version)
        verdict, rate_scale = self.rule.judge(staleness)
        if verdict is Verdict.ACCEPTED:
            if self.compensation is not None and staleness:
                tables = self.store.trained_tables
                blocks = self.compensation.compensate(rank, push.base_version, blocks, self.store.values, tables)
            self.store.apply(blocks, self.version, rate_scale)
            self.version += 1
        return verdict, staleness

    def reply(self, rank: int, verdict: Verdict, staleness: int) -> Reply:
        """Answer a push, with a ticket for the next one if there is one."""
        ticket, part = self.permit(rank)
        return Reply(
            verdict,
            self.version,
            staleness=staleness,
            accepted=int(verdict is Verdict.ACCEPTED),
            stale=int(verdict is Verdict.STALE),
            ticket=ticket,
            part=part,
            tally=self.told_to(rank),
        )

    def told(self) -> Open:
        """ps:0: return the sums of the epochs that the leader has not ended."""
        return self.tally.open() if self.tally is not None else ()

    def told_to(self, rank: int) -> Open:
        """Return what an answer to a push of this replica tells of them; only the leader needs them."""
        return self.told() if rank == self.leader else ()

    def permit(self, rank: int) -> tuple[bool, int]:
        """Return whether a replica may push next, and the part that it is to compute; other servers than ps:0 always say yes."""
        if self.gate is None or self.dealer is None:
            return True, NO_PART
        ticket = rank in self.live and self.gate.request(rank)
        return ticket, self.dealer.give(rank) if ticket else NO_PART

    def refused(self, rank: int, part: int) -> tuple[bool, int]:
        """Note that a push of `rank` was refused: its ticket comes back, and it may ask for another one behind those that wait."""
        if self.dealer is not None:
            self.dealer.settle(part)
        if self.gate is not None:
            self.gate.settle(rank, accepted=False)
        return self.gate is None, NO_PART

    def members_changed(self, live: Set[int], anew: Collection[int], seen: SeenPushes, now: float) -> Iterator[Action]:
        """ps:0: only these ranks are alive or still expected; the tickets and parts of all others come back."""
        if self.gate is not None and self.dealer is not None:
            for rank in (self.gate.holders | self.gate.clocks.keys()) - live:
                self.gate.leave(rank)
            for rank in (self.live - live) | set(anew):
                self.dealer.lose(rank)
        self.live = live
        return iter(())

    @property
    def too_few(self) -> bool:
        """At ps:0: whether no replica is alive that could make the next version."""
        return self._too_few_since_s is not None

    def share_out(self, seen: SeenPushes, now: float) -> Iterator[Action]:
        """Do nothing: no replica waits for another's part."""
        return iter(())

    def judge(self, seen: SeenPushes, now: float) -> Iterator[Action]:
        """Do as `decide`."""
        return self.decide(seen, now)

    def decide(self, seen: SeenPushes, now: float) -> Iterator[Action]:
        """ps:0: gradients need no decision in common; but without anybody who could send one, training has failed."""
        if self.gate is None or self.gate.finished or self.gate.held_back or self.gate.possible(self.live):
            self._too_few_since_s = None
        else:
            self._too_few_since_s = now if self._too_few_since_s is None else self._too_few_since_s
            waited_s = now - self._too_few_since_s
            if waited_s >= self.too_few_timeout_s:
                nobody = f"nobody is alive who could make version {self.version + 1}, for {waited_s:.1f} s"
                self.failed = f"too few replicas: {nobody}: {self.missing}"
        return iter(())

    def callers(self) -> list[Caller]:
        """Nobody waits for the next version."""
        return []

    def disconnected(self, caller: Caller) -> None:
        """A lost connection alone changes nothing: the replica comes back, or its lease runs out."""

    def awaited(self) -> tuple[Collection[int], Collection[int]]:
        """Ranks for whom those without a ticket wait, and no servers: gradients themselves are applied on arrival."""
        return (self.gate.awaited(self.live) if self.gate is not None else ()), ()

    @property
    def standing(self) -> Hashable:
        """All that `ticket` depends on beside what each rank has done: while it stays, those who were refused would be again."""
        return self.live, self.gate.standing if self.gate is not None else None
