"""What a server does with pushes in asynchronous training: rules 4 and 5, and ps:0's tickets.

Machine: no socket, no thread, no clock. Every server applies a batch on arrival, unless it has it already.
ps:0 besides says who may push next, refuses what comes without its permission, judges what is too stale, and
sees to it that all servers come to contain the same batches; see `protocol.repairs`.
"""

from collections.abc import Collection, Hashable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dtrain.config import AsyncSection
from dtrain.messages import Push, Refusal, RefusalKind, Reply, Verdict
from dtrain.parameters.store import Store
from dtrain.protocol.applied_batches import AppliedBatches
from dtrain.protocol.async_updates import TicketGate
from dtrain.protocol.delay_compensation import DelayCompensation
from dtrain.protocol.exactly_once import Seen, SeenPushes
from dtrain.protocol.part_dealer import NO_PART, PartDealer
from dtrain.protocol.repairs import Repairs
from dtrain.protocol.staleness import StalenessRule
from dtrain.protocol.tally import Open, Tally
from dtrain.roles.parameter_server.actions import Action, Caller, Send

Array = np.ndarray[Any, Any]
Blocks = Sequence[Array]

REPEATS = 3


@dataclass
class AsyncPushes:
    """Gradients applied as they come.

    Attributes:
        version: how many were applied.
        max_steps: the last version.
        applied: which batches the variables contain.
        gate, dealer, tally: at ps:0.
        repairs: at ps:0, where there are other servers.
        alone: whether the replica of rank 0 makes every step.
        leader: its rank; None if it does not train.
        live: at ps:0: the ranks that may have tickets; the ticket of one that is lost would never come back.
        too_few_timeout_s: at ps:0: how long nobody may be alive who could make the next version.
        compensation: with ``stale_gradients: compensate``.
        retry: whether a batch whose gradient was too stale is to be computed again.
        missing: at ps:0: which replicas have gone, and how.
        halved: at ps:0: a batch that cannot be brought to all servers, because its gradient was not finite
            again and again: they have to go back to a checkpoint. None: there is none.
        _doubtful: at ps:0: the batches of lost replicas, which may have reached other servers, and how often
            each is computed again if its gradient is not finite now.
    """

    store: Store
    rule: StalenessRule
    version: int
    max_steps: int
    applied: AppliedBatches = field(default_factory=AppliedBatches)
    gate: TicketGate | None = None
    dealer: PartDealer | None = None
    tally: Tally | None = None
    repairs: Repairs | None = None
    alone: bool = False
    leader: int | None = None
    failed: Refusal | None = None
    live: Set[int] = frozenset()
    too_few_timeout_s: float = 0.0
    compensation: DelayCompensation | None = None
    retry: bool = False
    missing: str = ""
    halved: int | None = None
    _doubtful: dict[int, int] = field(default_factory=dict)
    _too_few_since_s: float | None = None

    @classmethod
    def of(
        cls,
        store: Store,
        training: AsyncSection,
        *,
        version: int,
        max_steps: int,
        server: int,
        servers: int = 1,
        until: int | None = None,
        applied: AppliedBatches,
        repairs: Collection[int] = (),
        dealer: PartDealer | None = None,
        tally: Tally | None = None,
        leader: int | None = None,
        alone: bool = False,
        torn: bool = False,
    ) -> "AsyncPushes":
        """Begin a term as the spec says; only ps:0 has a gate, and judges what is too stale.

        Args:
            store: what is updated.
            training: how.
            version, max_steps: as in `Initialise`.
            server: which one of `servers` this is.
            until, leader: as in `TicketGate`.
            applied: what `store` contains.
            repairs: what it contains and another server's does not.
            dealer, tally: at ps:0.
            alone: whether the replica of rank 0 makes every step.
            torn: whether the servers may contain different batches.
        """
        warmup_steps = max_steps if alone else training.warmup_steps
        gate = TicketGate(
            version, max_steps, warmup_steps, training.staleness_bound, until=until, leader=leader
        )
        compensate = training.stale_gradients == "compensate"
        return cls(
            store,
            StalenessRule(training.stale_gradients, training.max_staleness if server == 0 else None),
            version,
            max_steps,
            applied,
            gate if server == 0 else None,
            dealer,
            tally,
            Repairs(dict.fromkeys(repairs)) if server == 0 and servers > 1 else None,
            alone,
            leader,
            too_few_timeout_s=0.0 if training.too_few == "fail" else training.too_few_timeout_s,
            compensation=DelayCompensation(training.compensation, store.trainable) if compensate else None,
            retry=training.on_stale == "retry_same_batch",
            _doubtful=dict.fromkeys(dealer.due, REPEATS) if dealer is not None and torn else {},
        )

    @property
    def held_back(self) -> bool:
        """Whether the next version waits for the leader, and this one has been made on every server."""
        return self.gate is not None and self.gate.held_back and not self.awaits_others

    @property
    def finished(self) -> bool:
        """Whether the last version has been made, at ps:0 on every server."""
        return self.version >= self.max_steps and not self.awaits_others

    @property
    def awaits_others(self) -> bool:
        """At ps:0: whether it stands at a version that another server may not have reached."""
        if self.repairs is None or self.repairs.done or self.gate is None:
            return False
        return self.gate.held_back or self.gate.finished

    def hold(self) -> int:
        """See `TicketGate.hold`. What waits to be dealt again and may have reached other servers is under way
        as well, and what is dealt before it.
        """
        if self.gate is None or self.dealer is None:
            return self.version
        waiting = self.dealer.due | ({self._leaders_batch} - {NO_PART})
        last = max(waiting & self._doubtful.keys(), default=NO_PART)
        return self.gate.hold(sum(batch <= last for batch in waiting))

    @property
    def _leaders_batch(self) -> int:
        """At ps:0: the batch that the leader has a ticket for, and is not pushing while it gives an order."""
        assert self.dealer is not None
        return NO_PART if self.leader is None else self.dealer.current.get(self.leader, NO_PART)

    def release(self, until: int | None) -> None:
        """Go on, to this version."""
        if self.gate is not None:
            self.gate.until = until

    def end_at(self, version: int, seen: SeenPushes) -> Iterator[Action]:
        """This version is the last one; pushes that are under way make it, and not the one that the leader
        would have made, unless some server may have its batch.
        """
        self.max_steps = version
        if self.gate is not None and self.dealer is not None:
            self.gate.end_at(version)
            batch = self._leaders_batch
            if batch in self._doubtful:
                self.dealer.give_back(batch)
            elif batch != NO_PART:
                self.dealer.hold(batch)
        return iter(())

    def values_for(self, rank: int, whole: bool = False) -> Blocks:
        """The newest values, to be sent to a replica that goes on from them; see `Store.shown`."""
        if self.compensation is not None:
            self.compensation.remember(rank, self.version, self.store.values)
        return self.store.shown(self.version, whole)

    def rows_for(self, rank: int | None, tables: Sequence[int], ids: Blocks) -> list[Array]:
        """The newest rows of tables, for a replica that computes with them, or for anybody else; see
        `Store.look_up`.
        """
        rows = self.store.look_up(tables, ids)
        if self.compensation is not None and rank is not None:
            for table, listed in zip(tables, ids, strict=True):
                self.compensation.remember_rows(rank, table, listed, self.store.tables[table].values)
        return rows

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
        """Deal with a gradient that has passed every check and has not been seen before."""
        version, gate, dealer, batch = self.version, self.gate, self.dealer, push.part
        permitted = (
            gate is None or dealer is None or (rank in gate.holders and dealer.current.get(rank) == batch)
        )
        if permitted:
            verdict, staleness = self._judge_and_apply(rank, push, blocks)
        elif self.repairs is not None and self.repairs.given.get(rank) == batch:
            verdict, staleness = Verdict.ACCEPTED, 0
        else:  # its replica was thought dead: the batch is another one's
            verdict, staleness = (
                (Verdict.FINISHED if gate is not None and gate.finished else Verdict.STALE),
                0,
            )
        new = self.version > version
        seen.record(replica, Seen(push.incarnation, push.sequence, verdict, staleness))
        if gate is not None and dealer is not None:
            accepted = verdict is Verdict.ACCEPTED
            if new and accepted and self.tally is not None:
                self.tally.add(version, push.sums)
            if accepted and self.repairs is not None:
                self.repairs.pushed(rank, push.incarnation, push.sequence, batch)
            if permitted:
                gate.settle(rank, new and accepted)
                if verdict is Verdict.STALE and self.retry:
                    dealer.pushed(rank, batch)
                    dealer.repeat(batch)
                else:
                    dealer.settle(batch)
        yield Send(caller, self.reply(rank, verdict, staleness), self.values_for(rank))

    def _judge_and_apply(self, rank: int, push: Push, blocks: Blocks) -> tuple[Verdict, int]:
        """Apply a batch, unless this server has it.

        Other servers than ps:0 ask for no permission: what ps:0 refuses for lack of it is dealt again there.
        """
        if self.version >= self.max_steps:
            return (Verdict.ACCEPTED if push.part in self.applied else Verdict.FINISHED), 0
        staleness = max(0, self.version - push.base_version)
        verdict, rate_scale = self.rule.judge(staleness)
        if verdict is Verdict.ACCEPTED:
            if not self.applied.add(push.part):
                return verdict, 0
            if self.compensation is not None and staleness:
                tables = self.store.trained_tables
                blocks = self.compensation.compensate(
                    rank, push.base_version, blocks, self.store.values, tables
                )
            self.store.apply(blocks, self.version, rate_scale)
            self.version += 1
        return verdict, staleness

    def reply(self, rank: int, verdict: Verdict, staleness: int) -> Reply:
        """Answer a push, with a ticket for the next one if there is one."""
        ticket, part = self.permit(rank)
        return Reply(
            verdict=verdict,
            version=self.version,
            staleness=staleness,
            accepted=int(verdict is Verdict.ACCEPTED),
            stale=int(verdict is Verdict.STALE),
            ticket=ticket,
            part=part,
            tally=self.told_to(rank),
            repairs=self.repairs is not None and rank in self.repairs.given,
        )

    def told(self) -> Open:
        """ps:0: return the sums of the epochs that the leader has not ended."""
        return self.tally.open() if self.tally is not None else ()

    def told_to(self, rank: int) -> Open:
        """Return what an answer to a push of this replica tells of them; only the leader needs them."""
        return self.told() if rank == self.leader else ()

    def permit(self, rank: int) -> tuple[bool, int]:
        """Return whether a replica may push next, and the part that it is to compute; other servers than ps:0
        always say yes.

        What has to be repaired comes before anything new, also where no step may be made.
        """
        if self.gate is None or self.dealer is None:
            return True, NO_PART
        if rank not in self.live:
            return False, NO_PART
        if self.repairs is not None and (self.repairs.due or self.repairs.given) and self._may_repair(rank):
            part = self.repairs.give(rank)
            if part != NO_PART:
                return True, part
        ticket = self.gate.request(rank)
        return ticket, self.dealer.give(rank) if ticket else NO_PART

    def _may_repair(self, rank: int) -> bool:
        """ps:0: return whether a replica may compute a repair: not one that has a ticket, and in the warm-up
        only rank 0.
        """
        assert self.gate is not None
        return rank not in self.gate.holders and (rank == 0 or not (self.alone or self.gate.warms_up))

    def confirm(self, rank: int, sequence: int) -> None:
        """ps:0: note that all servers have answered a replica's pushes up to this one."""
        if self.repairs is not None:
            self.repairs.confirmed(rank, sequence)

    @property
    def settled_below(self) -> int:
        """ps:0: return a number below which every batch is settled, and on every server that is to have
        it.
        """
        assert self.dealer is not None
        open_ = [*self.dealer.due, *self.dealer.given]
        if self.repairs is not None:
            open_ += [*self.repairs.due, *self.repairs.given.values()]
            open_ += [batch for _, _, batch in self.repairs.unconfirmed.values()]
        return min(open_, default=self.dealer.next)

    @property
    def again(self) -> tuple[int, ...]:
        """ps:0: return the batches that are to be computed again, or are being computed: no replica is
        sending them now.
        """
        assert self.dealer is not None
        repairs = () if self.repairs is None else (*self.repairs.due, *self.repairs.given.values())
        return (*self.dealer.due, *repairs)

    def refused(self, rank: int, part: int) -> tuple[bool, int]:
        """Note that a push of `rank` was refused: its ticket comes back, and it may ask for another one
        behind those that wait.
        """
        if self.gate is not None and self.dealer is not None:
            if rank in self.gate.holders and self.dealer.current.get(rank) == part:
                self.gate.settle(rank, accepted=False)
                if part in self._doubtful:
                    self._try_again(part)
                    self.dealer.give_back(part)
                else:
                    self.dealer.settle(part)
            if self.repairs is not None and self.repairs.given.get(rank) == part:
                self._try_again(part)
                self.repairs.give_back(rank)
        return self.gate is None, NO_PART

    def _try_again(self, part: int) -> None:
        """ps:0: a batch that some servers may have is refused by all that lack it."""
        left = self._doubtful[part] = self._doubtful.get(part, REPEATS) - 1
        if left < 0:
            self.halved = part

    def members_changed(
        self, live: Set[int], anew: Collection[int], seen: SeenPushes, now: float
    ) -> Iterator[Action]:
        """ps:0: only these ranks are alive or still expected; the tickets and parts of all others come
        back.
        """
        if self.gate is not None and self.dealer is not None:
            for rank in (self.gate.holders | self.gate.clocks.keys()) - live:
                self.gate.leave(rank)
            for rank in (self.live - live) | set(anew):
                self.gate.holders.discard(rank)
                if self.repairs is not None and self.rule.max_staleness is None:  # else ps:0 has them first
                    self._doubtful.update(dict.fromkeys(self.dealer.parts_of[rank], REPEATS))
                self.dealer.lose(rank)
                if self.repairs is not None:
                    self.repairs.lose(rank)
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
        """ps:0: gradients need no decision in common; but without anybody who could send one, training has
        failed.
        """
        if self.gate is None or self.finished or self.held_back or self.gate.possible(self.live):
            self._too_few_since_s = None
        else:
            self._too_few_since_s = now if self._too_few_since_s is None else self._too_few_since_s
            waited_s = now - self._too_few_since_s
            if waited_s >= self.too_few_timeout_s:
                nobody = f"nobody is alive who could make version {self.version + 1}, for {waited_s:.1f} s"
                self.failed = Refusal(
                    reason=f"too few replicas: {nobody}: {self.missing}", kind=RefusalKind.TOO_FEW_REPLICAS
                )
        return iter(())

    def callers(self) -> list[Caller]:
        """Nobody waits for the next version."""
        return []

    def disconnected(self, caller: Caller) -> None:
        """A lost connection alone changes nothing: the replica comes back, or its lease runs out."""

    def awaited(self) -> tuple[Collection[int], Collection[int]]:
        """Ranks for whom those without a ticket wait, and no servers: gradients themselves are applied on
        arrival.
        """
        if self.gate is None:
            return (), ()
        if self.repairs is not None and self.awaits_others:
            return self.repairs.ranks, ()
        return self.gate.awaited(self.live), ()

    @property
    def standing(self) -> Hashable:
        """All that `ticket` depends on beside what each rank has done: while it stays, those who were refused
        would be again.
        """
        if self.gate is None:
            return self.live
        repairs = self.repairs is not None and bool(self.repairs.due)
        return self.live, self.gate.standing, repairs, self.awaits_others
