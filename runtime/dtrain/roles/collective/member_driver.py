"""Runs one member of a call of `fit`: its parts, its waits, and what it orders as the leader.

    part = driver.next_part()                 # the part to compute, or NO_PART: this member has none now
    ... write driver.gradients() from driver.store.variables ...
    outcome = driver.contribute(examples, sums, finite)      # PENDING: ask for the next part of this step

The program's thread carries messages and reduces while it waits (`member_rounds`). With backups and over
several hosts a second thread carries them while the program computes for more than a moment, so that no other
member waits for this one. What was made meanwhile is *adopted* by the program's thread as it goes on, so that
it sees a version change at no other moment.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType

from dtrain.config.choices import TooFew
from dtrain.errors import LeftBehindError, TooFewReplicasError
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.messages import Sums, Verdict
from dtrain.messages.rounds import CallMade, CompletePart, Deal, RoundMade
from dtrain.parameters.replica_memory import ReplicaMemory, any_non_finite
from dtrain.protocol.contributions import Outcome
from dtrain.protocol.part_dealer import NO_PART, PartDealer
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.lane_work import LaneWork
from dtrain.roles.collective.member_rounds import LeaderOrders, MemberRounds, not_finite
from dtrain.roles.collective.over_hosts import OverHosts
from dtrain.roles.collective.rules import LOOK_S, Awaited, Rules, Waits
from dtrain.steps.member import BEAT_S, RoundMember
from dtrain.wire.one_host.members import MemberLinks

PENDING = Outcome(Verdict.PENDING)
FINISHED = Outcome(Verdict.FINISHED)
LAST_WORDS_S = 3.0
"""The longest time that a member which leaves waits for other hosts to be told what it has said."""
_SOON_S = 0.2
"""The seconds after which a wait is shown, and all are told for whom they wait."""
_MOMENT_S = 0.002
"""The seconds for which a program may compute before another thread carries its messages, with backups.
Without them all wait for what it computes, and a tenth of a beat will do.
"""


class MemberDriver(MemberRounds):
    """One member of a host.

    Within ``with driver:`` nothing is reduced, as far as this member, if it leads, begins it; any thread may
    enter.

    Attributes:
        store: whose `variables` are those of all, at the version that this member has adopted.
        owes_values: whether this member, as the leader, has yet to assign what an earlier one ordered.
        place: of the gradient of the part that `next_part` has returned.
    """

    def __init__(
        self,
        arena: Arena,
        links: MemberLinks,
        member: RoundMember,
        rules: Rules,
        orders: LeaderOrders,
        waits: Waits,
        work: LaneWork,
    ) -> None:
        """Take part; `work` does this member's lanes."""
        super().__init__(arena, links, member, rules, orders, waits, work)
        self._thread: threading.Thread | None = None
        self._look_s = LOOK_S
        self._closed = threading.Event()
        self._carries = threading.RLock()
        self._comes_back, self._left = False, 0
        self._entered = ExitStack()
        self._own: Deal | None = None
        self._beside: set[Deal] = set()
        self._places: dict[int, int] = {}
        self.place = 0
        self._owner = threading.get_ident()

    def serve(self, over_hosts: OverHosts | None = None) -> None:
        """Carry messages beside the program, and those to and from other hosts, if there are any."""
        self.over_hosts = over_hosts
        self._look_s = BEAT_S
        self._moment_s = _MOMENT_S if self.dealt.even else BEAT_S / 10
        self._thread = threading.Thread(target=self._serve, name="rounds", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        known = -1
        try:
            while not self._closed.wait(self._moment_s):
                with self._carries:
                    while self._left == known and not (self._comes_back or self._closed.is_set()):
                        self._look(BEAT_S)
                    known = self._left
        except BaseException as error:  # it belongs to the program's thread
            self._failure = error

    @contextmanager
    def _carrying(self) -> Iterator[None]:
        """Carry messages in the program's thread; it takes this lock before `_turn`."""
        if not self._carries.acquire(blocking=False):
            self._comes_back = True
            self._links.wake()
            self._carries.acquire()
            self._comes_back = False
        try:
            yield
        finally:
            self._left += 1
            self._carries.release()

    # Parts

    def next_part(self) -> int:
        """Return the part to compute now, the same one until it is contributed; NO_PART: there is none."""
        with self._turn:
            self._adopt()
            due = self._member.to_compute
            if self._own is not None and self._own not in due:
                self._member.gives_up(self._own)
                self._own = None
            if self.at_end or not due:
                return NO_PART
            if self._own is None:
                self._own, self.base, self._base_made = due[0], self._round, None
                self.place = due[0].place
                self._member.begins(due[0])
                if self.over_hosts is not None:
                    self.over_hosts.computes(due[0].part % self._dealt_parts, self.base)
            return self._own.part

    def gradients(self, place: int) -> ReplicaMemory:
        return self._arena.gradients[place]

    def give(self, place: int, rows: Mapping[str, SparseRows]) -> bool:
        """Write the rows of a part's gradient, before `contribute`; return whether all of it is finite."""
        blocks = self._arena.gradients[place].blocks[0]
        if (here := self._arena.rows).tables:
            here.put(place, rows)
            blocks = [*blocks, *here.blocks(place)]
        return not any_non_finite(blocks)

    def _complete(self, deal: Deal, round_: int, examples: int, sums: Sums | None, finite: bool) -> None:
        """Note that a part is complete, whose values are those of a round; `examples` 0: it has none."""
        part = CompletePart(
            part=deal.part,
            examples=examples,
            finite=finite,
            holder=self._member.number,
            place=deal.place,
            sums=sums,
        )
        with self._turn:
            self._member.complete(deal, part, round_)

    def contribute(self, part: int, examples: int, sums: Sums | None, finite: bool) -> Outcome:
        """Contribute the part that `next_part` has returned, and take part in the step until it is made.

        Returns:
            Pending if this member is to compute another part of the same step. Otherwise the round is over:
            the gradient is part of the new version, or was refused, or came too late.

        Raises:
            NonFiniteGradientError: a gradient held NaN or infinity, and `nan_policy` is ``fail``.
            TooFewReplicasError: fewer replicas are left than the rules need.
            WaitTimeoutError: a member that is alive did not do its share in time.
        """
        deal = self._own
        if part == NO_PART or deal is None:
            self.base, self._base_made = self._adopted_round, None
        else:
            self._complete(deal, self.base, examples, sums, finite)
            self._own = None
            if not examples:
                self.notify()  # a part without examples makes no calls: others stop waiting for them
        base = self.base
        if self.finished:
            return FINISHED
        if not self._wait(lambda: self._round > base, arrives=True):
            return PENDING
        return self._outcome(part, finite)

    def _outcome(self, part: int, finite: bool) -> Outcome:
        made = self._base_made
        parts = () if made is None else made.parts
        mine = [done.part for done in parts if done.holder == self._member.number]
        counts = part == NO_PART or part in mine
        if self.finished and not (parts and counts):
            return FINISHED
        if not finite:
            step = self.version + (not parts)
            return Outcome(Verdict.REFUSED, reason=not_finite(self._waits, self.rank, step))
        is_late = made is None and self.dealt.even  # rounds were made while it computed
        if counts or not (parts or is_late):
            return Outcome(Verdict.ACCEPTED, accepted=len(mine))
        return Outcome(Verdict.STALE, stale=1)

    # The leader

    def void(self, *, values: bool) -> None:
        """Have a round without a version made, in which values are assigned, if so ordered; then everybody
        has heeded what was ordered before.
        """
        before = self._voids[values]
        ordered = RoundMade(values=values)
        self._wait(lambda: self._voids[values] > before, arrives=True, ordered=ordered, computes=False)

    def __enter__(self) -> None:
        if threading.get_ident() == self._owner:
            self._entered.enter_context(self._carrying())
        self._turn.acquire()
        while self.leads and self._member.reduces:
            if threading.get_ident() == self._owner:
                self._look(LOOK_S)
            else:
                self._turn.wait(LOOK_S)
        self._adopt()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._turn.release()
        if threading.get_ident() == self._owner:
            self._entered.close()

    # Waits

    def wait_while(self, goes_on: Callable[[], bool], what: str) -> bool:
        """Carry messages while `goes_on`, or until the leader may have changed; return whether it went on."""
        leads = self.leads
        self._wait(lambda: self.leads != leads or not goes_on(), what, computes=False)
        return goes_on()

    def look(self) -> None:
        """Carry messages, without a wait."""
        with self._turn:
            if self._thread is None:
                self._look(0.0)
            self._raise()
            self._adopt()

    def notify(self) -> None:
        """Let others look at memory again."""
        with self._turn:
            self._links.notify(CallMade())
            if self.over_hosts is not None:
                self.over_hosts.tell()

    def _wait(
        self,
        over: Callable[[], bool],
        what: str = "",
        *,
        arrives: bool = False,
        ordered: RoundMade | None = None,
        computes: bool = True,
    ) -> bool:
        """Carry messages until it is over, and return True; or, if it `computes`, until there is a part.

        Where this member leads and `arrives`, its process orders nothing more for the round than `ordered`.
        """
        now = self._waits.clock.now
        since_s = now()
        timeout_s, is_told = _SOON_S, False
        try:
            with self._carrying():
                while True:
                    with self._turn:
                        if not over() and not (is_told and self._arrives == arrives):
                            self._arrives, self._ordered, is_told = arrives, ordered, True
                            self._pump()
                        self._raise()
                        if over():
                            self._adopt()
                            return True
                        if computes and self._member.to_compute and not self.at_end:
                            return False
                        if self._held >= 0 and not self.at_end:
                            self._check_enough()
                    if self._look(timeout_s):
                        since_s, timeout_s = now(), _SOON_S
                    elif now() - since_s >= _SOON_S:
                        timeout_s = self._look_s
                        with self._turn:
                            self._member.tell_late()
                        self._waits.check(since_s, self.awaited(what))
        finally:
            self._arrives, self._ordered = False, None
            if timeout_s != _SOON_S:
                self._waits.waiting(None)

    def awaited(self, what: str) -> str:
        """Return for whom this member waits, and for what."""
        if self._held >= 0:
            return f"{self._needed - self._held} more replicas"
        names = ", ".join(self._member.awaited) or "replicas"
        parts = ", ".join(str(part % self._dealt_parts) for part in self._member.awaited_parts)
        of_step = f"{f'gradient of part {parts}' if parts else 'end'} of step {self._version + 1}"
        return f"{names}, {what or of_step}"

    @property
    def _needed(self) -> int:
        return self._rules.needed(self._dealt_parts, self._dealt_parts)

    def _check_enough(self) -> None:
        rules = self._rules
        waited_s = self._waits.clock.now() - self._held_since_s
        if rules.too_few == TooFew.FAIL or waited_s >= rules.too_few_timeout_s:
            raise TooFewReplicasError(
                f"too few replicas: {self._needed} are needed for version {self._version + 1} "
                f"and {self._held} are left, for {waited_s:.1f} s (training.too_few: {rules.too_few})"
            )

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_left:
            raise LeftBehindError(
                "the others have gone on without this replica, of which they had heard nothing for a lease: "
                "start it again"
            )

    # Calls within a step (without backups): parts are known by their numbers in the batch

    @property
    def is_void(self) -> bool:
        """Whether that round is over although parts still compute."""
        return self._round != self.base

    def slots(self) -> Sequence[int]:
        """Return the numbers in their batch of the parts of this round."""
        parts = PartDealer.of(self.dealt, whole=True).begin_batch()
        return [part % self._dealt_parts for part in parts]

    def _due(self, slot: int) -> Deal | None:
        return next((deal for deal in self._member.to_compute if deal.part % self._dealt_parts == slot), None)

    def number_of(self, slot: int) -> int:
        deal = self._due(slot)
        return NO_PART if deal is None else deal.part

    def place_in(self, slot: int) -> int:
        """Return the place of the gradient of a part that this member computes now."""
        deal = self._due(slot)
        if deal is None:
            return self._places.get(slot, 0)
        if self._places.get(slot) != deal.place or deal not in self._beside:
            self._places[slot] = deal.place
            if deal != self._own:
                self._beside.add(deal)
                self._member.begins(deal)
                if self.over_hosts is not None:
                    self.over_hosts.computes(slot, self.base)
        return deal.place

    def complete(self, slot: int, examples: int, sums: Sums | None, finite: bool) -> None:
        """Note that a part is complete that this member computes beside its own one."""
        deal = self._due(slot)
        if deal is not None:
            self._beside.discard(deal)
            self._complete(deal, self.round, examples, sums, finite)

    def await_others(self, since_s: float, whom: Awaited | str) -> None:
        """Carry messages while parts meet, or raise a WaitTimeoutError if that lasts since long."""
        with self._carrying():
            with self._turn:
                self._pump()
                self._raise()
            heard = self._look(_SOON_S)
        if not heard:
            with self._turn:
                self._member.tell_late()
            self._waits.check(since_s, whom)

    def close(self) -> None:
        """Leave: the others go on without this member, once what it has said has left."""
        if (over := self.over_hosts) is not None:
            until_s = time.monotonic() + LAST_WORDS_S
            with self._carrying():
                while not over.all_told and time.monotonic() < until_s and self._failure is None:
                    self._look(BEAT_S)
            with self._turn:
                over.close(until_s)
        self._closed.set()
        if self._thread is not None:
            self._links.wake()
            self._thread.join()
        self._links.close()
