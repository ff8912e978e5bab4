"""Runs the steps of one replica among those of its host: it writes the words, waits, and updates its slices.

    part = driver.next_part()                 # the part to compute, or NO_PART: this replica has none
    ... write driver.gradients(part) from driver.store.variables ...
    outcome = driver.contribute(part, examples, sums, finite)   # PENDING: ask for the next part of this step

What is to be done `collectives.step.Step` decides. The rules are in docs/design/collectives.md.
"""

from collections.abc import Mapping, Sequence

from dtrain.collectives.board import count
from dtrain.collectives.step import Arrive, Compute, Made, SharedStep, TakeStock, WaitFor, WorkOn
from dtrain.config.choices import NanPolicy, TooFew
from dtrain.errors import NonFiniteGradientError
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.messages import Sums, Verdict
from dtrain.parameters.replica_memory import ReplicaMemory
from dtrain.parameters.store import TwoSidedStore
from dtrain.protocol.contributions import Outcome
from dtrain.protocol.part_dealer import NO_PART, PartDealer
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.round import HostMembership, PartGiven, Round, SliceWork
from dtrain.roles.collective.rules import Across, Awaited, NoOrders, Orders, Rules, Shortage, Waits
from dtrain.types import Array
from dtrain.wire.one_host.synchronization import Doorbells

PENDING = Outcome(Verdict.PENDING)
FINISHED = Outcome(Verdict.FINISHED)


class CollectiveDriver:
    """One replica.

    Attributes:
        round: attempts at a step that are over.
        store: whose `variables` are those of all, at this replica's version. Not to be written.
        made_by: the ranks whose gradients made the newest version, in the order of their parts.
    """

    def __init__(
        self,
        arena: Arena,
        doorbells: Doorbells,
        rank: int,
        store: TwoSidedStore,
        dealer: PartDealer,
        rules: Rules,
        *,
        orders: Orders | None = None,
        from_round: int = 1,
        waits: Waits | None = None,
        across: Across | None = None,
    ) -> None:
        """Take part.

        Args:
            dealer: of whole batches, in the state of the beginning, the same in every replica.
            from_round: the first round in which this replica is a member: a later one than the first for one
                that was admitted, which all others have begun by then.
        """
        self.rank = rank
        self.store = store
        self.round = from_round - 1
        self.made_by: list[int] = []
        self._arena = arena
        self._board = arena.board
        self._doorbells = doorbells
        self._dealer = dealer
        self._rules = rules
        self._waits = waits or Waits()
        self._membership = HostMembership(arena.board, doorbells, rank)
        self._work = SliceWork(store)
        self._orders = orders or NoOrders()
        self._across = across
        self._shortage = Shortage(arena.board, rules, self._waits.clock)
        self._known = set(self._membership.of(from_round))
        self._sums: list[Sums] = []
        self._last: Round | None = None
        self._places: list[int] = []
        # So many batches had begun when the first was begun in which this replica takes part.
        for _ in range(arena.board.batches[from_round % 2]):
            dealer.begin_batch()
        self._begin()

    # The training loop's side

    @property
    def dead(self) -> set[int]:
        return set(self._doorbells.dead)

    @property
    def leader(self) -> int:
        return next(rank for rank in self.members if rank not in self._doorbells.dead)

    @property
    def finished(self) -> bool:
        return self.store.max_steps is not None and self.version >= self.store.max_steps

    def next_part(self) -> int:
        """Return the number of the part to compute now; NO_PART if others compute what is left. Raises a
        TooFewReplicasError by the rule `too_few`.
        """
        self._await_enough()
        action = self._step.next(self._doorbells.dead)
        return self.number_of(action.part) if isinstance(action, Compute) else NO_PART

    def place_of(self, part: int) -> int:
        """Return the place of a part in its batch, and so of its gradient in memory."""
        return part % self._dealer.parts

    def place_in(self, slot: int) -> int:
        """Return the place of the gradient of a part by its number in its batch."""
        return slot

    def gradients(self, part: int) -> ReplicaMemory:
        return self._arena.gradients[part % self._dealer.parts]

    def give_rows(self, part: int, rows: Mapping[str, SparseRows]) -> None:
        """Write the rows of a part's gradient, before `contribute`."""
        self._arena.rows.put(self.place_of(part), rows)

    def given(self, part: int) -> list[Array]:
        return self._arena.given(self.place_of(part))

    def contribute(self, part: int, examples: int, sums: Sums | None, finite: bool) -> Outcome:
        """Say that a part's gradient is complete, and take part in the step until it is made.

        Args:
            examples: of how many the gradient is the mean; 0: there is none.

        Returns:
            Pending if this replica is to compute another part of the same step. Otherwise the round is over:
            the gradients are part of the new version, or what was given last was refused.

        Raises:
            NonFiniteGradientError: a gradient held NaN or infinity, and `nan_policy` is ``fail``.
            WaitTimeoutError: a replica that is alive did not do its share in time.
        """
        if self.finished:
            return FINISHED
        if part != NO_PART:
            self.complete(part % self._dealer.parts, examples, sums, finite)
        if not self._run():
            return PENDING
        return self._outcome(part % self._dealer.parts if part != NO_PART else NO_PART)

    def void(self) -> None:
        """End the round without a version, as its leader, which owes a part of it.

        What the leader has ordered before holds when this returns, and the same batch begins again. Gradients
        of it that others have computed count for nothing.

        Raises:
            WaitTimeoutError: a replica that is alive did not do its share in time.
        """
        self._board.void[0] = self.round + 1
        over = self._run()
        assert over, "nothing is to be computed in a round without gradients"

    def sums_of_last_step(self) -> list[Sums]:
        return self._sums

    @property
    def across(self) -> Across | None:
        return self._across

    def look_across(self) -> None:
        if self._across is not None:
            self._across.poll(self._now.number, self._doorbells.dead)

    def close(self) -> None:
        """Leave: the others go on without this replica."""
        if self._across is not None:
            self._across.close()
        self._doorbells.close()

    # A round

    @property
    def now(self) -> Round:
        return self._now

    def owes(self, place: int) -> bool:
        return self._step.is_due(place) and self._step.owner(place, self._doorbells.dead) == self.rank

    def owners(self, places: Sequence[int], what: str) -> Awaited:
        """Return who is to compute the parts of places, awaited for `what`; of other hosts, who speaks."""
        here = {self._step.owner(each, self._doorbells.dead) for each in places if self._step.is_due(each)}
        elsewhere = "" if all(map(self._step.is_due, places)) else self._awaited_elsewhere
        return Awaited(self._waits.name_of, sorted(here), what, elsewhere)

    def await_others(self, since_s: float, whom: Awaited | str) -> None:
        """Look for what other hosts have done in this round; if there is nothing, wait for a doorbell or a
        death.

        Raises:
            PeerError: this host does not go on with the others.
            WaitTimeoutError: a wait that began at `since_s` has lasted too long.
        """
        across = self._across
        if across is None or not across.poll(self._now.number, self._doorbells.dead):
            self._waits.wait(self._doorbells, since_s, whom)

    def number_of(self, place: int) -> int:
        return self._batch * self._dealer.parts + place

    @property
    def members(self) -> Sequence[int]:
        return self._now.members

    @property
    def version(self) -> int:
        return self._now.version

    def _begin(self, *, again: bool = False) -> None:
        """Begin the next round; with `again` with the batch of this one."""
        dealer = self._dealer
        version = self._board.versions[(self.round + 1) % 2]
        self.store.stand_at(version)
        if self.store.max_steps is not None and version >= self.store.max_steps:
            self._places = []
            dealer.end_batch()
        elif not again:
            self._places = [part % dealer.parts for part in dealer.begin_batch()]
        self._batch = dealer.batch
        self._now = Round(
            self._arena,
            self.store,
            self._work,
            self._orders,
            self._membership,
            number=self.round + 1,
            places=self._places,
        )
        self._begin_with_members()

    def _begin_with_members(self) -> None:
        members = self._now.members
        self._membership.take_up(members, self._known)
        self._known = set(members)
        self._step = SharedStep(
            self._board,
            self._now.number,
            members,
            self.rank,
            self._now.places,
            several_hosts=self._across is not None,
            alone=self._rules.alone,
        )

    def _await_enough(self) -> None:
        """Wait for replicas, or give up, where fewer are left than the parts need and the spec says so."""
        needed = self._rules.needed(self._arena.shape.parts, len(self._now.places))
        if self._rules.too_few == TooFew.SHRINK or self._across is not None or len(self.members) >= needed:
            return
        number = self._now.number
        while len(members := self._membership.of(number)) < needed:
            since_s = self._shortage.goes_on(number, self.version, needed, len(members))
            self._membership.publish()
            self._membership.add(number, members)
            self._waits.wait(self._doorbells, since_s, f"{needed - len(members)} more replicas")
        self._waits.waiting(None)
        self._shortage.ends()
        self._now.members = members
        self._begin_with_members()
        self._doorbells.ring()

    def _held(self) -> str | None:
        """Return whom a round waits for that is held over several hosts; None: it is not. Or give up."""
        if self._across is None or not (live := count(self._board.held[0], self._now.number)):
            return None
        parts = self._arena.shape.parts
        needed = self._rules.needed(parts, parts)
        self._shortage.goes_on(self._now.number, self.version, needed, live)
        self._membership.publish()
        return f"{needed - live} more replicas"

    def complete(self, place: int, examples: int, sums: Sums | None, finite: bool) -> None:
        board = self._board
        board.examples[place] = examples
        board.finite[place] = finite
        board.computed_by[place] = self.rank
        board.sums_nbytes[place] = self._arena.put_sums(place, sums)
        board.ready[place] = self.round + 1
        if board.arrived[self.rank] > self.round:  # else the doorbell of the arrival follows
            self._doorbells.ring()

    def _run(self) -> bool:
        """Do what there is to do; return whether the round is over. If not, there is a part to compute."""
        dead = self._doorbells.dead
        awaited: WaitFor | None = None
        since_s = 0.0
        try:
            while True:
                action = self._step.next(dead)
                match action:
                    case WaitFor():
                        if action != awaited:
                            awaited, since_s = action, self._waits.clock.now()
                        self.await_others(since_s, self._held() or self._awaited(action))
                    case Arrive():
                        self._membership.publish()
                        self._board.arrived[self.rank] = self.round + 1
                        self._doorbells.ring()
                    case TakeStock():
                        self._step.go_through(*self._now.take_stock(self._rules.weighting))
                    case WorkOn(phase, number):
                        self._now.work(phase, number)
                        self._doorbells.ring()
                    case Compute():
                        return False
                    case Made():
                        self._end()
                        return True
        finally:
            if awaited is not None:
                self._waits.waiting(None)

    def _awaited(self, action: WaitFor) -> Awaited:
        what = f"{action.what} of step {self.version + 1}"
        return Awaited(
            self._waits.name_of, action.ranks, what, "" if action.ranks else self._awaited_elsewhere
        )

    @property
    def _awaited_elsewhere(self) -> str:
        return (self._across.awaited if self._across is not None else "") or "other hosts"

    def _end(self) -> None:
        """Go on to the next round: every slice is through."""
        self._last = last = self._now
        stock = last.stock
        assert stock is not None, "a round that is over was taken stock of"
        if last.makes:
            self._sums = last.sums
            self.made_by = [part.rank for part in stock.counted]
        self.round += 1
        if not last.is_void:
            self._shortage.ends()
        if self._across is not None:
            self._across.over(self.round)
        self._begin(again=last.is_void)
        if stock.refused and self._rules.nan_policy == NanPolicy.FAIL:
            raise NonFiniteGradientError(self._reason(stock.refused[0], last.version + 1))

    def _outcome(self, place: int) -> Outcome:
        last = self._last
        assert last is not None
        assert last.stock is not None, "a round is over"
        if last.ends:
            return FINISHED
        for part in last.stock.refused:
            if part.place == place:
                return Outcome(Verdict.REFUSED, reason=self._reason(part, last.version + 1))
        return Outcome(Verdict.ACCEPTED, accepted=sum(part.rank == self.rank for part in last.stock.counted))

    def _reason(self, part: PartGiven, step: int) -> str:
        return f"the gradient of {self._waits.name_of(part.rank)} for step {step} holds NaN or infinity"
