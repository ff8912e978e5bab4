"""The work of one member for other hosts: the leader's records, calls within a step, newcomers.

The memory of a host has what its members share. So of each other host one member is told, the *writer*: it is
the member of the lowest number there that has begun. It writes into the memory of its host, and then notifies
the other members of its host. Records and calls come in their order. A new writer is sent all of them, and so
is one whose connection was opened again.
"""

from collections.abc import Callable, Mapping, Set
from typing import NamedTuple

import msgspec

from dtrain.errors import InputError, PeerRefusedError
from dtrain.exchange.calls import GivenCall, WrittenCall
from dtrain.messages import AnyMessage
from dtrain.messages.rounds import LeaderRecord, MemberSeat, PartCall
from dtrain.roles.collective.calls import CallLog, CallMemory
from dtrain.roles.collective.calls_over_hosts import STEP_CALL_MAX, call_of
from dtrain.roles.collective.lane_work import LaneThread
from dtrain.steps.follower import first_attempt
from dtrain.steps.member import RoundMember, Welcomed
from dtrain.wire.member_streams import MemberStreams

EARLY_BYTES = 4 * STEP_CALL_MAX
"""The most bytes of calls of a later round that are kept of one member."""
_CALL_BYTES = 256
"""The memory of a call without its arrays."""


class HostLedger(NamedTuple):
    """The leader's ledger at this host.

    Attributes:
        position: returns the position of its newest record; -1: there is none.
        entries: returns all that count.
        begin_term: writes records from a position on, as the leader.
        receive: writes what the leader, at another host, has written; with True nothing else counts any more.
    """

    position: Callable[[], int]
    entries: Callable[[], Mapping[str, bytes]]
    begin_term: Callable[[int], None]
    receive: Callable[[Mapping[str, bytes], bool], None]


class OtherHosts(NamedTuple):
    """The ways of this task to other hosts.

    Attributes:
        learn: notes where a member listens.
        bring: sends the values to a newcomer whose host has no other member, without a wait.
        leave: lets no more streams come in.
        warn: prints why a member is refused.
    """

    learn: Callable[[MemberSeat], None]
    bring: Callable[[Welcomed], None]
    leave: Callable[[], None]
    warn: Callable[[str], None]


class _Early(msgspec.Struct):
    """Calls of the newest round of which a member has told, before it has come here."""

    round: int
    calls: list[tuple[PartCall, GivenCall | None]] = msgspec.field(default_factory=list)
    nbytes: int = 0


class OverHosts:
    """One member's part. It is used within the turn of its driver.

    Attributes:
        lanes: do what this member does of attempts.
        ledger: the leader's, at this host.
        changed: whether the memory of this host has changed since this was set to False.
    """

    def __init__(
        self,
        member: RoundMember,
        streams: MemberStreams,
        ledger: HostLedger,
        calls: CallMemory,
        lanes: LaneThread,
        ways: OtherHosts,
    ) -> None:
        """Begin; `calls` has those of parts of this host, and behind them those of others."""
        self.lanes, self.changed = lanes, False
        parts = member.dealt.parts
        self._member, self._streams, self.ledger = member, streams, ledger
        self._host = member.seats[member.number].host
        self._here, self._there = CallLog(calls, parts), CallLog(calls, parts, of_others=True)
        self._ways = ways
        self._known: Mapping[int, MemberSeat] = {}
        self._new: Set[int] = frozenset()
        self._writers: list[int] = []
        self._term = 0
        self._told: dict[int, tuple[int, int]] = {}
        self._own_parts: set[int] = set()
        self._calls_told: dict[tuple[int, int, int], int] = {}
        self._early: dict[int, _Early] = {}
        self._refused: set[int] = set()
        self._brought: set[int] = set()

    # Members

    def know(self) -> None:
        """Reach the members of other hosts, and find out who lives where the leader has ended."""
        member, streams = self._member, self._streams
        if member.members is not self._known or member.new != self._new:
            self._known, self._new = member.members, member.new
            self._writers = self._writers_now()
            for _, seat in sorted(self._known.items()):
                if seat.host != self._host:
                    streams.know(seat)
                    self._ways.learn(seat)
            streams.want(self._known)
        for number in member.probed:
            streams.probe(number)

    def is_elsewhere(self, seat: MemberSeat) -> bool:
        return seat.host != self._host

    def ended(self, number: int) -> None:
        self.lanes.means.member_ended(number)

    def _writers_now(self) -> list[int]:
        """Return the members that write at other hosts."""
        writers: dict[str, int] = {}
        for number, seat in sorted(self._member.members.items()):
            if seat.host != self._host and self._member.is_begun(number):
                writers.setdefault(seat.host, number)
        return list(writers.values())

    # The leader's records

    def begin_to_lead(self) -> None:
        """Write records under the term of this member."""
        self.ledger.begin_term(first_attempt(self._member.leads_in))

    def publish(self, entries: Mapping[str, bytes]) -> None:
        """Send what this member, as the leader, has written into its ledger, to those who have all before."""
        before = self.ledger.position() - 1
        for number in self._writers if self._member.leads_in else ():
            if self._told.get(number) == (self._streams.connection(number), before):
                self._send_record(number, entries, whole=False)

    def _send_record(self, number: int, entries: Mapping[str, bytes], *, whole: bool) -> None:
        position = self.ledger.position()
        term = self._member.leads_in
        record = LeaderRecord(term=term, position=position, whole=whole, entries=dict(entries))
        if self._streams.send_now(number, record):
            self._told[number] = self._streams.connection(number), position

    def _tell_records(self) -> None:
        if self._member.leads_in != self._term:
            self._term = self._member.leads_in
            self._told.clear()
        if not self._term or self.ledger.position() < first_attempt(self._term):
            return
        for number in self._writers:
            if self._told.get(number) != (self._streams.connection(number), self.ledger.position()):
                self._send_record(number, self.ledger.entries(), whole=True)

    # Calls within a step

    def computes(self, part: int, of_round: int) -> None:
        """Note that this member computes a part, by its number in the batch: others are told of its calls."""
        if self._here.round != of_round:
            self._here.begin(of_round)
            self._own_parts.clear()
            self._calls_told.clear()
        self._own_parts.add(part)

    def tell(self) -> None:
        """Say what is new, in records and calls."""
        self._tell_records()
        here = self._here
        for number in self._writers if self._own_parts else ():
            connection = self._streams.connection(number)
            for part in self._own_parts:
                self._tell_calls(here, number, (number, connection, part))

    def _tell_calls(self, here: CallLog, number: int, key: tuple[int, int, int]) -> None:
        part = key[2]
        made, ended = here.told_here(part)
        if not made and ended and not here.is_used:
            return  # no part has made a call, so that none waits for one of this part
        for each in range(self._calls_told.get(key, 0), made + (ended is not None)):
            body, examples = b"", -1
            if each < made:
                given = here.call(part, each)
                written = WrittenCall.of(given)
                body = written.head + written.filled(given.arrays).tobytes()
            elif ended is not None:
                examples = ended
            call = PartCall(round=here.round, part=part, number=each, examples=examples, body=body)
            if not self._streams.send_now(number, call):
                return
            self._calls_told[key] = each + 1

    # What is heard

    def take(self, sender: int, message: AnyMessage) -> None:
        """Write what another member has told this one into the memory of this host."""
        if isinstance(message, LeaderRecord):
            if message.term == self._member.term and message.position > self.ledger.position():
                self.ledger.receive(message.entries, message.whole)
                self.changed = True
        elif isinstance(message, PartCall):
            try:
                self._keep(sender, message)
            except PeerRefusedError as error:
                self._refuse(sender, error)

    def _keep(self, sender: int, call: PartCall) -> None:
        """Keep a call until its round has come here, and drop those of the sender's rounds before: they are
        over, as this one has begun. Raises a PeerRefusedError for what no member tells.
        """
        if call.number < 0 or not 0 <= call.part < len(self._here.members):
            raise PeerRefusedError(f"it tells of call {call.number} of part {call.part}")
        early = self._early.get(sender)
        if early is None or early.round < call.round:
            early = self._early[sender] = _Early(call.round)
        if early.round == call.round:
            early.calls.append((call, call_of(call.body) if call.examples < 0 else None))
            early.nbytes += _CALL_BYTES + len(call.body)
        if early.nbytes > EARLY_BYTES and early.round != self._member.round:
            raise PeerRefusedError(f"it tells more than {EARLY_BYTES} bytes of a round that is to begin")

    def _refuse(self, sender: int, error: Exception) -> None:
        """Hear a member no more on this stream; on the next one it tells all of its round again."""
        self._early.pop(sender, None)
        self._streams.refuse(sender)
        if sender not in self._refused:
            self._refused.add(sender)
            seat = self._member.seats.get(sender)
            name = f"member {sender}" if seat is None else seat.task
            self._ways.warn(f"{name} is refused: {error}; do all tasks run the same version of dtrain?")

    def look(self) -> None:
        """Take the calls of this round; those of later ones are kept."""
        for sender, early in list(self._early.items()):
            if early.round <= self._member.round:
                del self._early[sender]
            if early.round == self._member.round:
                try:
                    self._take_calls(early)
                except InputError as error:
                    self._refuse(sender, error)

    def _take_calls(self, early: _Early) -> None:
        there = self._there
        if there.round != early.round:
            there.begin(early.round)
        for call, given in early.calls:
            if given is None:
                there.end(call.part, call.examples)
            else:
                there.give(call.part, call.number, given)
        self.changed = True

    # Newcomers

    def welcome(self, welcomed: Welcomed) -> bool:
        """Send the values to a newcomer that has none; return whether that is its welcome."""
        seat = welcomed.seat
        if welcomed.host_members:
            return False
        if seat.number not in self._brought:
            self._brought.add(seat.number)
            self._ways.bring(welcomed)
        return True

    # The end

    def close(self, deadline: float) -> None:
        """Let what was said leave."""
        self.lanes.close()
        self._streams.flush(deadline)
        self._ways.leave()

    @property
    def all_told(self) -> bool:
        """Whether every writer has been sent all records of this member, where it leads."""
        position = self.ledger.position()
        return not self._term or all(self._told.get(each, (0, -1))[1] == position for each in self._writers)
