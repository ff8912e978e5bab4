"""The lanes of one member: over hosts the mean is made first, then the blocks of the next version.

The rule *Lanes* (docs/design/steps.md#what-a-round-needs). On one host a lane is reduced at once. Over hosts
it waits for others, so a thread does it, and says when it is through.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from dtrain.collectives.all_reduce import ElementRange
from dtrain.collectives.step import Phase, share
from dtrain.config.choices import Weighting
from dtrain.messages import Sums
from dtrain.messages.rounds import CompletePart, MemberSeat, ReduceAttempt
from dtrain.parameters.store import TwoSidedStore
from dtrain.parameters.updater import Contributions, run_here
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.sums_over_hosts import (
    HostReduction,
    MeanTerms,
    Open,
    RowExchange,
    SumAttempt,
    Take,
    Ways,
)
from dtrain.state.fit_state import Open as OpenSums


class LaneJob(NamedTuple):
    """The work of one member on an attempt, from one phase to another.

    Attributes:
        seats: of all members that there have been, by number.
        version, side: from which the new values are made.
        values: of a void round, those that the leader assigns, and whether training ends with them.
        sums: of the parts that make the step.
    """

    round: int
    attempt: ReduceAttempt
    seats: Mapping[int, MemberSeat]
    version: int
    side: int
    values: tuple[Mapping[str, bytes], bool]
    sums: Sequence[Sums]


class SliceWork:
    """The slices of the step that is begun, as one process works on them.

    A slice may be taken through a phase several times.
    """

    def __init__(self, store: TwoSidedStore) -> None:
        self._store = store

    def begin(self, given: Contributions, side: int | None = None) -> list[Phase]:
        """Begin a step from `given.version`, on a side of the memory; return its phases before the update."""
        if side is None:
            self._store.stand_at(given.version)
            self._updater = updater = self._store.begin(given)
        else:
            self._updater = updater = self._store.begin_beside(given, side)
        self._limits_found = not updater.limited
        return [
            *([Phase.SQUARES] if updater.limited else ()),
            *([Phase.ROWS] if updater.beside else ()),
        ]

    def spans(self, number: int, slices: int) -> dict[int, ElementRange]:
        """Return the elements of one of so many slices, by the number of their group."""
        blocks = self._store.updater.dense
        own = share(len(blocks), slices, number)
        spans: dict[int, ElementRange] = {}
        for block in blocks[own.start : own.stop]:
            start = spans[block.part].start if block.part in spans else block.start
            spans[block.part] = ElementRange(start, block.stop)
        return spans

    def work(self, phase: Phase, number: int, slices: int) -> None:
        """Take one of so many slices through a phase, from its beginning."""
        updater = self._updater
        if phase is Phase.SQUARES:
            self._do(updater.square, updater.pieces, number, slices)
            return
        if not self._limits_found:
            updater.limit()
            self._limits_found = True
        if phase is Phase.ROWS:
            self._do(updater.make, updater.beside, number, slices)
        else:
            self._do(updater.make, updater.blocks, number, slices)
            if updater.beside:
                self._do(updater.carry, updater.beside, number, slices)

    def complete(self, number: int, slices: int) -> None:
        """Complete one of so many slices of the present version, with which training ends."""
        self._do(self._updater.finalize, self._updater.blocks, number, slices)

    def _do(self, do: Callable[[Any], None], blocks: Sequence[Any], number: int, slices: int) -> None:
        own = share(len(blocks), slices, number)
        run_here(do, blocks[own.start : own.stop])


class LaneWork:
    """One member's lanes, phase by phase."""

    def __init__(
        self,
        arena: Arena,
        store: TwoSidedStore,
        phases: Sequence[Phase],
        weighting: Weighting,
        number: int,
        *,
        sums_after: Callable[[OpenSums, int, Sequence[Sums]], OpenSums],
        note: Callable[[LaneJob], None],
        over_hosts: "MeansOverHosts | None" = None,
    ) -> None:
        """Begin for the member of a number.

        Args:
            sums_after: returns the sums of epochs with those of a version's parts.
            note: writes down what makes a round (Phase.NOTE).
        """
        self._arena, self.store, self._phases = arena, store, phases
        self._weighting, self._number, self._note = weighting, number, note
        self._over_hosts = over_hosts
        self._work, self._sums_after = SliceWork(store), sums_after
        self._begun = -1, -1

    def run(self, job: LaneJob) -> None:
        """Take the lanes through the phases; raises a `PeerError` if other hosts do not take part."""
        attempt = job.attempt
        lanes, made = attempt.lanes[self._number], attempt.made
        if made.void:
            if 0 in lanes:
                values, ends = job.values
                self.store.assign_beside(values, job.side, ends=ends)
        else:
            for number in range(attempt.first, attempt.last + 1):
                phase = self._phases[number]
                if self._over_hosts is not None and number == 0:
                    self._over_hosts.make(job, lanes, self._work)
                if phase is Phase.MEANS:
                    continue
                if (job.round, attempt.number) != self._begun:
                    self._begin(job)
                    self._begun = job.round, attempt.number
                if phase is Phase.NOTE and 0 in lanes:
                    self._note(job)
                for lane in lanes if phase is not Phase.NOTE else ():
                    self._work.work(phase, lane, attempt.count)
        if attempt.last == len(self._phases) - 1 and 0 in lanes:
            before = self._arena.tally(job.side)
            assert before is not None, "the sums of a version are written before it begins"
            self._arena.put_tally(job.side + 1, self._sums_after(before, job.version, job.sums))

    def _begin(self, job: LaneJob) -> None:
        made, arena = job.attempt.made, self._arena
        given = Contributions.of(
            [arena.counted(done.place) for done in made.parts],
            made.divisor - len(made.parts),
            examples_of(made.parts) if self._weighting == Weighting.EXAMPLES else None,
            job.version,
        )
        needs = self._work.begin(replace(given, means=arena.means or None), job.side)
        if Phase.SQUARES in needs and Phase.SQUARES not in self._phases:
            self._work.work(Phase.SQUARES, 0, 1)


def examples_of(parts: Sequence[CompletePart]) -> list[int]:
    return [done.examples for done in parts]


class MeansOverHosts:
    """The means of one member's lanes over several hosts, on streams of their own.

    The streams of a lane are those of an attempt: while attempts succeed they are kept.

    Attributes:
        given_up: why an attempt was; as long as it says so, the next one opens no streams.
    """

    def __init__(
        self,
        arena: Arena,
        number: int,
        open_: Open,
        take: Take,
        *,
        weighting: Weighting,
        deterministic: bool,
        patience_s: float,
    ) -> None:
        """Begin for the member of a number; `open_` and `take` are as of `Ways`."""
        self._arena, self._number = arena, number
        self._open, self._take = open_, take
        self._weighting, self._deterministic, self._patience_s = weighting, deterministic, patience_s
        self._attempt = -1
        self._ways: dict[int, Ways] = {}
        self._ended: set[int] = set()
        self.given_up = ""

    def make(self, job: LaneJob, lanes: Sequence[int], work: SliceWork) -> None:
        """Make the means of some lanes; all hosts call this for the same attempt.

        Raises:
            PeerError: another host does not take part in time, or has ended.
            TrainingError: there is no memory for the rows of tables.
        """
        attempt, parts = job.attempt, job.attempt.made.parts
        weighs = self._weighting == Weighting.EXAMPLES
        given = Contributions.of(
            [()] * len(parts),
            attempt.made.divisor - len(parts),
            examples_of(parts) if weighs else None,
            0,
        )
        weights = None if given.weights is None else dict(enumerate(examples_of(parts)))
        counted = MeanTerms(range(len(parts)), given.count, weights)
        deadline = time.monotonic() + self._patience_s
        arena, places = self._arena, [done.place for done in parts]
        for lane in lanes:
            nodes = {job.seats[each].host: each for each, own in attempt.lanes.items() if lane in own}
            held: dict[int, list[int]] = {node: [] for node in nodes.values()}
            for ordinal, done in enumerate(parts):
                held[nodes[job.seats[done.holder].host]].append(ordinal)
            begin = SumAttempt(job.round, attempt.number, sorted(nodes.values()), held)
            rows = None
            if arena.rows.tables and lane == 0:
                rows = RowExchange(self._number, arena.rows, arena.shape.parts, places)
            reduction = HostReduction(
                self._number,
                [arena.gradients[place].blocks[0] for place in places],
                arena.means,
                [group.trainable for group in arena.shape.layout.groups],
                deterministic=self._deterministic,
                rows=rows,
            )
            ways = self._ways_of(job, lane, begin.hosts)
            reduction.run(begin, counted, ways, deadline, work.spans(lane, attempt.count))

    def _ways_of(self, job: LaneJob, lane: int, nodes: Sequence[int]) -> Ways:
        if job.attempt.number != self._attempt:
            self.close()
            self._attempt = job.attempt.number
        if lane not in self._ways:
            tasks = {number: job.seats[number].task for number in nodes}
            ways = Ways(tasks, f"{job.attempt.number} lane {lane}", self._open, self._take)
            self._ways[lane] = ways
            for number in self._ended.intersection(nodes):
                _end(ways, number)
            if self.given_up:  # before these streams were there
                ways.abort(self.given_up)
        return self._ways[lane]

    @property
    def blamed(self) -> int:
        """The member for which the newest attempt waited, as it failed; -1: it is not known."""
        return next((ways.blamed for ways in self._ways.values() if ways.blamed >= 0), -1)

    def member_ended(self, number: int) -> None:
        """End what waits for a member; any thread may call this."""
        self._ended.add(number)
        for ways in list(self._ways.values()):
            if number in ways.tasks:
                _end(ways, number)

    def abort(self, reason: str) -> None:
        """Give up the attempt under way, until `begin`; any thread may call this."""
        self.given_up = reason
        for ways in list(self._ways.values()):
            ways.abort(reason)

    def close(self) -> None:
        for ways in self._ways.values():
            ways.abort("another attempt has begun")
            ways.close()
        self._ways.clear()


def _end(ways: Ways, number: int) -> None:
    ways.blame(number)
    ways.abort("a member of this attempt has ended")


class LaneThread:
    """Does the lanes of one member in a thread, one job at a time."""

    def __init__(self, work: LaneWork, means: MeansOverHosts, over: Callable[[], None]) -> None:
        """Begin; `over` is called in the thread when a job is over, which `take` then returns."""
        self._work, self.means, self._over = work, means, over
        self._jobs: queue.SimpleQueue[LaneJob | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[LaneJob, BaseException | None]] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name="lanes", daemon=True)
        self._thread.start()

    def begin(self, job: LaneJob) -> None:
        """Do a job; what is under way is given up."""
        self.abandon()
        self.means.given_up = ""
        self._idle.clear()
        self._jobs.put(job)

    def abandon(self) -> None:
        """Give up what is under way, and wait until nothing writes any more."""
        if not self._idle.is_set():
            self.means.abort("this attempt was given up")
            self._idle.wait()

    def take(self) -> list[tuple[LaneJob, BaseException | None]]:
        """Return the jobs that are over, and why they have failed, if they have."""
        found = []
        while not self._done.empty():
            found.append(self._done.get())
        return found

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            error: BaseException | None = None
            try:
                self._work.run(job)
            except BaseException as failure:  # it belongs to the program's thread
                error = failure
            self._done.put((job, error))
            self._idle.set()
            self._over()

    def close(self) -> None:
        self.means.abort("this member leaves")
        self._jobs.put(None)
        self._thread.join()
        self.means.close()
