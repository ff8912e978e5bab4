"""The agreement between hosts, as the replicas of one host take part in it: one speaks, others wait.

One replica of a host speaks for it: it tells the leader which parts are complete in the arena, writes on the
board which parts are due here, has the sums made, and writes there what is known of every part once a step is
committed. What it has promised to other hosts lies in the arena. If it ends, another one goes on from there
(`AgreementMember`).

The replica that speaks has a lock on the arena, which the kernel takes back when its process ends. A thread
of each other replica tries to take it, so that another one speaks soon, whatever the replicas compute.
"""

import socket
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

import msgspec

from dtrain.collectives.between_hosts.follower import Apply, BeginAttempt, ComputeParts, HoldStep, Vote
from dtrain.collectives.board import bits, counted, ranks_in
from dtrain.config.choices import Weighting
from dtrain.config.training_section import RANKS_MAX
from dtrain.errors import LeftBehindError, SpecError
from dtrain.messages.replicas import PartFacts, Seat, Welcome
from dtrain.parameters.updater import Contributions
from dtrain.process.clock import SYSTEM, Clock, Running
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.between_hosts.calls import CallsAtHost, SaidCall
from dtrain.roles.collective.between_hosts.host_steps import HostSteps
from dtrain.roles.collective.between_hosts.links import Open, Take, Ways
from dtrain.roles.collective.between_hosts.records import Books, NoBook
from dtrain.roles.collective.between_hosts.reduction import HostReduction, MeanTerms
from dtrain.roles.collective.calls import CallLog
from dtrain.roles.collective.rules import Book
from dtrain.wire.one_host.synchronization import Locks

OF_THREADS = -1
"""In the place of a rank: the doorbell by which threads wake the replica that speaks."""
LAST_WORDS_S = 3.0
"""The longest time that a leader which leaves waits for other hosts to have what it has written."""
LOOK_S = 0.01


class Hosts(NamedTuple):
    """The ways from this host to the others, and what all of them know.

    Attributes:
        lease_s: the time without a message after which a host is silent.
        patience_s: how long a sum waits for another host's bytes.
        needed: so many replicas of all hosts must live for a step to begin.
        welcome: sends a host that takes part newly what it needs; it does not block.
    """

    open: Open
    take: Take
    lease_s: float
    patience_s: float
    alone: bool = False
    needed: int = 0
    name_of: Callable[[int], str] = "worker:{}".format
    longest_record: int = 1 << 20
    learn: Callable[[Mapping[int, Sequence[Seat]]], None] = lambda seats: None
    welcome: Callable[[Welcome], None] = lambda welcome: None


class HostProxy:
    """The replica that speaks for its host, from a round on."""

    def __init__(
        self,
        arena: Arena,
        hosts: Hosts,
        rank: int,
        ring: Callable[[], None],
        doorbell: socket.socket,
        *,
        number: int,
        book: Book,
        weighting: Weighting,
        deterministic: bool,
        calls: CallLog | None = None,
    ) -> None:
        """Begin to agree with the others, from what this host has promised; any thread may call this.

        Args:
            doorbell: the other end of what this replica hears as the doorbell of `OF_THREADS`.
            deterministic: whether the bits are to be those of one host.

        Raises:
            SpecError: a step has too many parts.
        """
        if arena.shape.parts > RANKS_MAX:
            raise SpecError(
                f"over several hosts a step has at most {RANKS_MAX} parts; found {arena.shape.parts}"
            )
        self.rank, vote = rank, arena.vote.read().spoken_by(rank)
        self._host = vote.host
        self._arena = arena
        self._board = board = arena.board
        self._round = number
        self._arrived = 0
        self._ring = ring
        self._doorbell = doorbell
        self._weighting = weighting
        commits = board.summed[0] < vote.step
        self._next = vote.step if commits else vote.step + 1
        self._first = self._next
        self._told: set[int] = set()
        self._due = ranks_in(board.due[self._next % 2]) if board.due_of[0] == self._next else ()
        self._reduction = HostReduction.of(arena, vote.host, deterministic=deterministic)
        self._steps = self._begun(hosts, vote, commits=commits)
        self._members = HostMembers(arena, vote.seats[vote.host], self._steps, hosts.name_of)
        self._welcome = hosts.welcome
        self._known, self._awaited = set(vote.seats), set[int]()
        self._books = Books(book, self._steps.record, self._steps.written)
        self._calls = CallsAtHost(calls, self._steps.call)

    def _begun(self, hosts: Hosts, vote: Vote, *, commits: bool) -> HostSteps:
        return HostSteps(
            vote,
            self._arena.shape.parts,
            self._reduce,
            hosts.open,
            hosts.take,
            lease_s=hosts.lease_s,
            patience_s=hosts.patience_s,
            keep=self._arena.vote.write,
            applied=self._round - 2,
            commits=commits,
            wake=self._wake,
            alone=hosts.alone,
            needed=hosts.needed,
            longest_record=hosts.longest_record,
            learn=hosts.learn,
        )

    def _reduce(self, begin: BeginAttempt, ways: Ways, deadline: float) -> None:
        self._reduction.run(begin, self._counted(begin.parts), ways, deadline)

    def poll(self, number: int, dead: Set[int]) -> bool:
        if number < self._first:  # the replica that spoke before was further
            return False
        self._members.update(number, dead)
        changed = self._books.let_in(number)
        while (action := self._steps.poll()) is not None:
            changed = True
            if isinstance(action, Apply):
                self._commit(number, action)
            elif isinstance(action, ComputeParts):
                self._compute(action)
            elif isinstance(action, HoldStep):
                self._board.held[0] = counted(action.step + 1, max(0, action.live))
            elif isinstance(action, SaidCall):
                self._calls.receive(action)
            else:
                self._books.add(action)
                self._books.let_in(number)
        if not self.leads:
            self._known |= set(self._steps.seats)
        self._begin_to_lead()
        self._welcome_awaited()
        changed |= self._calls.poll(number, self._due if self._next == number else ())
        self._report_parts(number)
        self._tell_of_arrival(number)
        if changed:
            self._ring()
        return changed

    def over(self, number: int) -> None:
        self._round = number + 1
        self._steps.applied(number - 1)

    @property
    def leads(self) -> bool:
        return bool(self._books.term) and self._books.term == self._steps.leads_in

    @property
    def elsewhere(self) -> set[int]:
        others = [seated for host, seated in self._steps.seats.items() if host != self._host]
        return {seat.rank for seated in others for seat in seated}

    @property
    def seats(self) -> Mapping[int, Sequence[Seat]]:
        return self._steps.seats

    def admit(self, seats: Sequence[Seat]) -> None:
        """Admit the replicas of another host from a later step on, if this host leads; any thread."""
        self._steps.admit(seats)

    @property
    def awaited(self) -> str:
        return self._steps.awaited

    @property
    def has_newcomers(self) -> bool:
        return self.leads and not set(self._steps.seats) <= self._known

    def welcome(self) -> None:
        self._books.write_all(self._round)
        self._awaited = set(self._steps.seats) - self._known
        self._known |= self._awaited
        self._welcome_awaited()

    def _welcome_awaited(self) -> None:
        seats = dict(self._steps.seats)
        number, board = self._round, self._board
        now = self._awaited & self._steps.welcome & seats.keys()
        self._awaited -= now
        for host in sorted(now):
            self._welcome(
                Welcome(
                    host=host,
                    term=self._books.term,
                    membership=self._steps.membership,
                    seats={each: tuple(seated) for each, seated in seats.items()},
                    step=number - 1,
                    version=board.versions[number % 2],
                    batches=board.batches[number % 2],
                    tally=self._arena.tally(number) or (),
                )
            )

    def set_book(self, book: Book) -> None:
        self._books.book = book
        self._begin_to_lead()

    def close(self) -> None:
        """Leave: the other hosts go on without this one, once they have what its leader has written."""
        until_s = SYSTEM.now() + LAST_WORDS_S
        while self._has_words() and SYSTEM.now() < until_s:
            SYSTEM.sleep(LOOK_S)
        self._steps.close()
        self._doorbell.close()
        if self._books.book.concluded:
            record = self._arena.vote
            record.write(msgspec.structs.replace(record.read(), over=True))

    def _has_words(self) -> bool:
        self._begin_to_lead()
        return bool(self._steps.leads_in) and not (self.leads and self._steps.all_have(self._books.position))

    # The leader's ledger

    def record(self, entries: Mapping[str, bytes]) -> None:
        if self.leads:
            self._books.write(entries, self._round)

    def _begin_to_lead(self) -> None:
        term = self._steps.leads_in
        if term and term != self._books.term:
            self._arrived = 0
            self._books.begin(term, self._round)

    def _tell_of_arrival(self, number: int) -> None:
        board = self._board
        if self._books.term and self._arrived < number <= board.arrived[self.rank]:
            self._arrived = number
            self._steps.arrive(number - 1, self._books.position, void=board.void[0] == number)

    def _wake(self) -> None:
        try:
            self._doorbell.send(b"\0", socket.MSG_DONTWAIT)
        except OSError:  # it is full of doorbells, or the replica has ended
            return

    def _compute(self, action: ComputeParts) -> None:
        board, number = self._board, self._next
        self._due = tuple(sorted({*self._due, *action.parts}))  # none that is begun is given up
        board.due[number % 2] = bits(self._due)
        board.due_of[0] = number

    def _report_parts(self, number: int) -> None:
        board = self._board
        if self._next != number:
            return
        for part in self._due:
            if part not in self._told and board.ready[part] >= number:
                self._told.add(part)
                self._steps.complete(
                    PartFacts(
                        part=part,
                        examples=board.examples[part],
                        finite=bool(board.finite[part]),
                        rank=board.computed_by[part],
                        sums=self._arena.sums(part, board.sums_nbytes[part]),
                    )
                )

    def _commit(self, number: int, action: Apply) -> None:
        board = self._board
        if action.void:
            board.void[0] = number
        for facts in action.parts:
            part = facts.part
            board.examples[part] = facts.examples
            board.finite[part] = facts.finite
            board.computed_by[part] = facts.rank
            board.sums_nbytes[part] = self._arena.put_sums(part, facts.sums)
            board.ready[part] = number
        board.summed[0] = number
        self._next = number + 1
        self._told = set()
        self._due = ()

    def _counted(self, parts: Sequence[PartFacts]) -> MeanTerms:
        counted = [facts for facts in parts if facts.examples > 0 and facts.finite]
        examples = [facts.examples for facts in counted]
        given = Contributions.of(
            [()] * len(counted),
            sum(facts.examples == 0 for facts in parts),
            examples if self._weighting == Weighting.EXAMPLES else None,
            0,
        )
        places = tuple(facts.part for facts in counted)
        weights = None if given.weights is None else dict(zip(places, examples, strict=True))
        return MeanTerms(places, given.count, weights)


class HostMembers:
    """Those that live, the one that speaks first, and whether others wait to take part."""

    def __init__(
        self, arena: Arena, seats: Sequence[Seat], steps: HostSteps, name_of: Callable[[int], str]
    ) -> None:
        self._arena, self._board = arena, arena.board
        self._seats = list(seats)
        self._steps = steps
        self._name_of = name_of
        self._joining = 0

    def update(self, number: int, dead: Set[int]) -> None:
        """Say who takes part in round `number`, and whether others wait for the next one.

        One that was no member for a round has ended: the next one of its rank has another address.
        """
        members = [rank for rank in ranks_in(self._board.members[number % 2]) if rank not in dead]
        host = self._seats[0].host
        seats = [seat for seat in self._seats if seat.rank in members]
        known = {seat.rank for seat in seats}
        seats += [
            Seat(rank=rank, task=self._name_of(rank), address=self._arena.address(rank), host=host)
            for rank in members
            if rank not in known
        ]
        if seats != self._seats:
            self._seats = seats
            self._steps.seated(seats)
        waiting = ~bits(members)
        for rank in members:
            waiting &= self._board.offered[rank]
        joining = number if waiting else 0
        if joining != self._joining:
            self._joining = joining
            self._steps.joining(number - 1, joining=bool(joining))


SPEAKS = 0
"""The number of the lock of the replica that speaks."""
TAKE_OVER_LOOK_S = 0.1


class AgreementMember:
    """One replica's part in the agreement; `proxy` is set where it speaks for its host."""

    def __init__(
        self,
        arena: Arena,
        locks: Locks,
        rank: int,
        speak: Callable[[int, Book], HostProxy],
        *,
        number: int = 1,
        speaks: bool = False,
        clock: Clock = SYSTEM,
    ) -> None:
        """Take part from round `number` on.

        Args:
            speak: makes this replica the one that speaks, given a round before which all are over.
            speaks: whether this replica has the lock already, as it has made the arena.
        """
        self._arena, self._board = arena, arena.board
        self._locks = locks
        self._rank = rank
        self._speak = speak
        self._round = number
        self._book: Book = NoBook()
        self._has_begun = self._has_ended = False
        self._error: Exception | None = None
        self._leaves = threading.Event()
        self.proxy: HostProxy | None = None
        self._waits: Running | None = None
        if speaks:
            self.proxy = speak(number, self._book)
        else:
            self._waits = clock.start(self._wait, "the next to speak")

    # In a thread of its own

    def _wait(self) -> None:
        try:
            while not self._leaves.wait(TAKE_OVER_LOOK_S) and not self._spoke():
                pass
        except Exception as error:  # it belongs to the replica's thread
            self._error = error

    def _spoke(self) -> bool:
        if not (self._locks.is_free(SPEAKS) and self._may_speak and self._locks.acquire(SPEAKS)):
            return False
        if self._may_speak:  # by the last words of the one that spoke before
            self.proxy = self._speak(self._round, self._book)
            return True
        self._locks.release(SPEAKS)
        return False

    @property
    def _may_speak(self) -> bool:
        vote = self._arena.vote.read()
        return not vote.over and any(
            seat.rank == self._rank and self._is_there(seat) for seat in vote.successors
        )

    def _is_there(self, seat: Seat) -> bool:
        return self._arena.address(seat.rank) == seat.address

    # In the replica's thread

    def poll(self, number: int, dead: Set[int]) -> bool:
        proxy = self.proxy
        if proxy is None:
            return self._poll_for_proxy(number, dead)
        if not self._has_begun:
            self._has_begun = True
            proxy.over(self._round - 1)  # another one may have ended while it began to speak
        return proxy.poll(number, dead)

    def _poll_for_proxy(self, number: int, dead: Set[int]) -> bool:
        """Find whether a replica may speak for this host, while a round waits for that."""
        if self._error is not None:
            raise self._error
        if not dead or self._board.summed[0] >= number:
            return False
        successors = self._arena.vote.read().successors
        if any(seat.rank not in dead and self._is_there(seat) for seat in successors):
            return False
        if not self._has_ended:  # the last words may be those of the end: the caller reads them first
            self._has_ended = True
            return True
        names = ", ".join(seat.task for seat in successors)
        raise LeftBehindError(
            f"{names}, of which the other hosts know, have ended, and this replica had come too late to "
            "speak for its host: start it again"
        )

    def over(self, number: int) -> None:
        self._round = number + 1
        if self.proxy is not None:
            self.proxy.over(number)

    def set_book(self, book: Book) -> None:
        self._book = book
        if self.proxy is not None:
            self.proxy.set_book(book)

    def record(self, entries: Mapping[str, bytes]) -> None:
        if self.proxy is not None:
            self.proxy.record(entries)

    @property
    def leads(self) -> bool:
        return self.proxy is not None and self.proxy.leads

    @property
    def elsewhere(self) -> Set[int]:
        return frozenset() if self.proxy is None else self.proxy.elsewhere

    @property
    def awaited(self) -> str:
        if self.proxy is not None:
            return self.proxy.awaited
        vote = self._arena.vote.read()
        return vote.seats[vote.host][0].task

    @property
    def has_newcomers(self) -> bool:
        return self.proxy is not None and self.proxy.has_newcomers

    def welcome(self) -> None:
        if self.proxy is not None:
            self.proxy.welcome()

    def close(self) -> None:
        """Leave; where training has ended, and the one that spoke could not tell other hosts, tell them."""
        self._leaves.set()
        if self._waits is not None:
            self._waits.join()
        if self.proxy is None and self._book.concluded:
            self._spoke()
        if self.proxy is not None:
            self.proxy.close()
        self._locks.close()
