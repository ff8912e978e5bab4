"""Faults that real runs had, put back by a small change of the code: whether the judge would have found
them.
"""

from collections.abc import Callable, Collection
from typing import Any

from msgspec.structs import replace

from dtrain.control.async_steps import AsyncSteps
from dtrain.control.sync_steps import SyncSteps
from dtrain.protocol.applied_batches import AppliedBatches
from dtrain.protocol.async_updates import StalenessRule
from dtrain.protocol.part_dealer import PartDealer
from dtrain.roles.chief.machine import Cut
from dtrain.roles.parameter_server.driver import ServerHandler
from dtrain.roles.parameter_server.update_rules import AsyncRule, SyncRule
from dtrain.roles.worker.machine import ReplicaMachine
from dtrain.state.batch_cut import BatchCut, Dealt
from dtrain.state.rounds import Rounds
from dtrain.steps.machine import Contribution, NextVersion, StepMachine
from dtrain.training.parts import PartsOfPipelines, Stream

SetAttribute = Callable[[type, str, Any], None]


def settles_what_a_dead_process_pushed(set_attribute: SetAttribute) -> None:
    """A contribution of an earlier process that reached some servers only is taken for settled."""
    before = SyncSteps.members_changed

    def members_changed(self: SyncSteps, live: Any, anew: Collection[int], now: float) -> Any:
        for rank in anew:
            for part in sorted(self.dealer.parts_of[rank] - self.complete.keys()):
                if self.dealer.current.get(rank) != part:
                    self.dealer.hold(part)
                    self.settle(part, empty=False)
        return before(self, live, anew, now)

    set_attribute(SyncSteps, "members_changed", members_changed)


def forgets_that_a_process_was_started_again(set_attribute: SetAttribute) -> None:
    """Parts of an earlier process are not given back."""
    before = SyncSteps.members_changed
    set_attribute(SyncSteps, "members_changed", lambda self, live, anew, now: before(self, live, (), now))


def adds_up_by_rank(set_attribute: SetAttribute) -> None:
    """Contributions are summed in the order of the replicas that have computed them."""
    before = StepMachine.decided

    def decided(self: StepMachine) -> NextVersion | None:
        found = before(self)
        return found and NextVersion(tuple(sorted(found.contributors)), found.parts)

    set_attribute(StepMachine, "decided", decided)


def leaves_due_what_has_come(set_attribute: SetAttribute) -> None:
    """A late push of a replica that was thought lost leaves its part among those that are to be
    dealt.
    """

    before = StepMachine.report

    def report(self: SyncSteps, server: int, contribution: Contribution, version: int) -> None:
        due, self.dealer.due = self.dealer.due, set()
        before(self, server, contribution, version)
        self.dealer.due = due

    def hold(self: PartDealer, part: int, rank: int = -1) -> None:
        self._take_back(part)
        self._give_to(rank, part)

    def begin_batch(self: PartDealer) -> list[int]:
        self.given.clear()
        self.current.clear()
        self.parts_of.clear()
        if not self.due:
            self.due = set(range(self.next, self.next + self.parts))
            self.next += self.parts
        self.batch = min(self.due) // self.parts
        return sorted(part for part in self.due if part // self.parts == self.batch)

    set_attribute(SyncSteps, "report", report)
    set_attribute(PartDealer, "hold", hold)
    set_attribute(PartDealer, "settle", PartDealer._take_back)
    set_attribute(PartDealer, "begin_batch", begin_batch)


def numbers_parts_anew(set_attribute: SetAttribute) -> None:
    """A resumed run takes the part numbers of another cut for its own."""
    set_attribute(Dealt, "going_on", lambda self, cut, sync: self._replace(parts=cut.parts + bool(self.next)))


def reads_a_row_of_the_part_before(set_attribute: SetAttribute) -> None:
    """A part but the first of its batch begins one row too early."""
    before = BatchCut.rows

    def rows(self: BatchCut, part: int, size: int) -> range:
        found = before(self, part, size)
        return range(max(0, found.start - 1), found.stop) if found else found

    set_attribute(BatchCut, "rows", rows)


def begins_an_heir_s_pipeline_anew(set_attribute: SetAttribute) -> None:
    """A process reads a pipeline from its front, whichever batch it is asked for first."""
    before = PartsOfPipelines._locate

    def place(self: PartsOfPipelines, number: int) -> tuple[Stream, int]:
        stream, position = before(self, number)
        first = vars(self).setdefault("_first", {}).setdefault(id(stream), position)
        return stream, max(0, position - first)

    set_attribute(PartsOfPipelines, "_locate", place)


def cuts_as_the_present_cluster_would(set_attribute: SetAttribute) -> None:
    """A resumed run with backups keeps the number of parts, and follows the present cluster in how it cuts."""
    before = Dealt.going_on

    def going_on(self: Dealt, cut: BatchCut, *, sync: bool) -> Dealt:
        return before(self, cut, sync=sync)._replace(even=cut.even)

    set_attribute(Dealt, "going_on", going_on)


def saves_values_that_are_assigned_in_half(set_attribute: SetAttribute) -> None:
    """A checkpoint is taken of servers of which some have the values that were assigned, and some have
    not.
    """
    before = Cut.accept
    set_attribute(Cut, "accept", lambda self, versions, assigned: before(self, versions))


def applies_a_batch_again(set_attribute: SetAttribute) -> None:
    """A server does not look whether it has applied a batch."""
    before = AppliedBatches.add

    def add(self: AppliedBatches, batch: int) -> bool:
        before(self, batch)
        return True

    set_attribute(AppliedBatches, "add", add)


def leaves_in_half_what_a_death_has_halved(set_attribute: SetAttribute) -> None:
    """A batch that ps:0 has applied is not dealt again, though another server may lack it."""
    begun = AsyncSteps.__init__

    def begin(self: AsyncSteps, **arguments: Any) -> None:
        begun(self, **{**arguments, "repairs": None})

    set_attribute(AsyncSteps, "__init__", begin)


def lets_every_server_drop(set_attribute: SetAttribute) -> None:
    """Every server judges by its own count what is too stale, and is not asked in turn."""
    made, begun = AsyncRule.__init__, ReplicaMachine.__post_init__

    def init(self: AsyncRule, store: Any, seen: Any, steps: Any, training: Any, **arguments: Any) -> None:
        made(self, store, seen, steps, training, **arguments)
        self.rule = StalenessRule(training.stale_gradients, training.max_staleness)

    def begin(self: ReplicaMachine) -> None:
        begun(self)
        self.first_judges = False

    set_attribute(AsyncRule, "__init__", init)
    set_attribute(ReplicaMachine, "__post_init__", begin)


def takes_a_ticket_that_came_back(set_attribute: SetAttribute) -> None:
    """A push is taken though its ticket was given to another replica."""

    def admits(self: AsyncSteps, rank: int, batch: int) -> bool:
        self.gate.holders.add(rank)
        self.dealer.current[rank] = batch
        return True

    set_attribute(AsyncSteps, "admits", admits)


def refuses_what_it_cannot_hold(set_attribute: SetAttribute) -> None:
    """A server that was started again refuses a gradient that is longer than what it holds."""
    before = ServerHandler.limits
    set_attribute(ServerHandler, "limits", lambda self, hello: before(self, hello)._replace(dropped=0))


# Local steps


def counts_a_batch_of_a_round_twice(set_attribute: SetAttribute) -> None:
    """A round begins with the last batch of the one before."""
    before = Rounds.batches

    def batches(self: Rounds, number: int) -> range:
        found = before(self, number)
        return range(max(0, found.start - 1), found.stop)

    set_attribute(Rounds, "batches", batches)


def applies_a_late_difference(set_attribute: SetAttribute) -> None:
    """What a round of earlier values has made is taken for one of the newest."""
    before = SyncRule.push

    def push(self: SyncRule, caller: Any, replica: str, rank: int, push: Any, *rest: Any, **more: Any) -> Any:
        return before(self, caller, replica, rank, replace(push, base_version=self.version), *rest, **more)

    set_attribute(SyncRule, "push", push)


def loses_the_batches_of_the_dead(set_attribute: SetAttribute) -> None:
    """What a replica had as it died is dealt to no other."""

    def lose(self: PartDealer, rank: int, complete: Any = ()) -> None:
        for part in self.parts_of.pop(rank, ()):
            self.given.pop(part, None)
        self.current.pop(rank, None)

    set_attribute(PartDealer, "lose", lose)


def says_nothing_of_other_numbers_to_who_is_late(set_attribute: SetAttribute) -> None:
    """The answer to a push that came too late brings newer values, and not the optimizer that was ordered."""
    before = SyncRule._too_late

    def too_late(self: SyncRule, *about: Any) -> Any:
        first, *others = before(self, *about)
        return [replace(first, message=replace(first.message, inner=None)), *others]

    set_attribute(SyncRule, "_too_late", too_late)
