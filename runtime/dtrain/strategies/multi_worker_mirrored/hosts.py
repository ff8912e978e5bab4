"""The hosts of a run whose replicas reduce among themselves, and the ways of one task to those of the others.

Two replicas are on one host if they can share memory: they have one kernel, one network namespace, in which
the sockets of `wire.one_host` have their names, and one user. Two containers of a machine are two hosts. A
host that begins has promised something to the others before it has said anything.
"""

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Thread

import msgspec
import numpy as np

from dtrain.cluster import TRAINING_ROLES, TaskId
from dtrain.errors import PeerError, PeerRefusedError
from dtrain.messages import Enter, Entered, Hello, Told
from dtrain.messages.replicas import Seat
from dtrain.messages.rounds import MemberSeat
from dtrain.process.assignment import TaskAssignment
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.sums_over_hosts import Open, Take
from dtrain.state.fit_state import Open as OpenSums
from dtrain.steps.member import Welcomed
from dtrain.types import Array
from dtrain.wire.addresses import place_to_listen
from dtrain.wire.one_host.members import MemberLinks
from dtrain.wire.security.credentials import Credentials
from dtrain.wire.streams import Incoming, Listener, Outgoing, open_stream

VALUES = "values"
"""The name of the stream on which a host is sent the variables and slots of the beginning."""
VALUES_S = 600.0
"""How long they may take."""
WELCOME_S = 3.0
"""The time for which a host waits to be let in before it asks again who leads."""
_WELCOME_BYTES = 1 << 20
_STREAMS_WAITING = 256


def this_host() -> str:
    """Return an identity that all tasks which can share memory with this one have too."""
    namespace = Path("/proc/self/ns/net").stat()
    kernel = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{kernel} {namespace.st_dev}:{namespace.st_ino} {os.getuid()}"


def seats_by_host(
    first: int, entered: Mapping[int, Enter], name_of: Callable[[int], str]
) -> dict[int, tuple[Seat, ...]]:
    """Return the replicas of each host: of rank `first`'s, then in the order of their lowest ranks."""
    hosts: dict[str, list[Seat]] = {entered[first].host: []}
    for rank in sorted(entered, key=lambda rank: (rank != first, rank)):
        said = entered[rank]
        seat = Seat(rank=rank, task=name_of(rank), address=said.streams, host=said.host)
        hosts.setdefault(said.host, []).append(seat)
    return {number: tuple(seats) for number, seats in enumerate(hosts.values())}


class HostWays:
    """One task's listener for streams, and its streams to other hosts; `number` is that of its member."""

    number = -1

    def __init__(
        self,
        assignment: TaskAssignment,
        credentials: Credentials,
        name_of: Callable[[int], str],
        warn: Callable[[str], None],
    ) -> None:
        """Listen at the task's address, or raise a `SpecError`; `warn` gets what cannot be reached."""
        self.name_of = name_of
        self.warn = warn
        self.identity = this_host()
        self._credentials = credentials
        self._simulate = assignment.spec.simulate
        bind = place_to_listen(assignment).address
        self._listener = Listener(assignment.address, credentials, _refuse, _STREAMS_WAITING, bind)
        self._addresses: dict[str, str] = {}
        self._ask_in: Callable[[MemberSeat], None] = lambda seat: None
        self._members: Callable[[], Mapping[int, MemberSeat]] = dict
        self._routed = ""
        self._sending: list[Outgoing] = []
        self._receiving: list[Incoming] = []

    def seated(self, terms: Entered, entered: Mapping[int, Enter]) -> Entered:
        """Return `terms` with all replicas that have entered, by host; the leader's is host 0."""
        return msgspec.structs.replace(terms, seats=seats_by_host(terms.leader, entered, self.name_of))

    def first(self, terms: Entered) -> int:
        """Return the first replica of this host; raise a `PeerRefusedError` if training begins without it."""
        for seats in terms.seats.values():
            if seats[0].host == self.identity:
                return seats[0].rank
        raise PeerRefusedError("the leader begins without this host; do all tasks run the same version?")

    def others_here(self, terms: Entered, rank: int) -> list[int]:
        seats = [seat for seated in terms.seats.values() for seat in seated if seat.host == self.identity]
        return [seat.rank for seat in seats if seat.rank != rank]

    def seats(self) -> Mapping[int, Sequence[Seat]]:
        """Return the replicas of each host."""
        hosts: dict[str, list[Seat]] = {}
        for seat in self._members().values():
            seated = Seat(rank=seat.rank, task=seat.task, address=seat.address, host=seat.host)
            hosts.setdefault(seat.host, []).append(seated)
        return dict(enumerate(hosts.values()))

    def ask_in(self, rank: int, message: Enter) -> None:
        """Let a replica take part later, if this task leads."""
        self._ask_in(
            MemberSeat(
                number=-1, rank=rank, task=self.name_of(rank), host=message.host, address=message.streams
            )
        )

    def signed(self, message: Enter) -> Enter:
        """Return the message with this host and its address for streams."""
        return msgspec.structs.replace(message, host=self.identity, streams=self.address)

    @property
    def address(self) -> str:
        return self._listener.address

    def learn(self, seats: Mapping[int, Sequence[Seat]]) -> None:
        self._addresses |= {seat.task: seat.address for seated in seats.values() for seat in seated}

    def learn_at(self, task: str, address: str) -> None:
        self._addresses[task] = address

    # The members of a call of `fit`

    def reach_members(self, links: MemberLinks, generation: int, longest: int) -> None:
        """Let `links` lead to members of other hosts, too, in messages of at most so many bytes."""
        self.end_members()
        self._routed = prefix = f"{generation} rounds "

        def open_(seat: MemberSeat, timeout_s: float) -> Outgoing:
            return self._open_to(seat.task, seat.address, f"{prefix}{self.number}", timeout_s)

        self._listener.route(prefix, links.reach(open_, longest).arrived)

    def begin_members(
        self, ask_in: Callable[[MemberSeat], None], members: Callable[[], Mapping[int, MemberSeat]]
    ) -> None:
        """Give those who come later to `ask_in`, and tell others of `members`."""
        self._ask_in, self._members = ask_in, members

    def end_members(self) -> None:
        if self._routed:
            self._listener.end_route(self._routed)
            self._routed = ""

    def _open_to(self, task: str, address: str, name: str, timeout_s: float) -> Outgoing:
        stream = open_stream(task, address, name, self._credentials, timeout_s, self._simulate)
        self._sending.append(stream)
        return stream

    def bring(self, arena: Arena, generation: int, welcomed: Welcomed) -> None:
        """Send a newcomer whose host has no other member its welcome and the values, in a thread. They do
        not change before its host takes part in a round.
        """
        seat, told, _ = welcomed
        body = msgspec.msgpack.encode((told, arena.tally(told.side) or ()))
        head = np.frombuffer(len(body).to_bytes(4, "little") + body, np.uint8)

        def open_(task: str, name: str, timeout_s: float) -> Outgoing:
            return self._open_to(task, seat.address, f"{generation} {name}", timeout_s)

        send = partial(_send, [head, *arena.arrays(told.side)], open_, seat.task, self.warn)
        Thread(target=send, daemon=True).start()

    def named(self, generation: int) -> tuple[Open, Take]:
        """Return what opens and what accepts the streams of one call of `fit`."""

        def open_(task: str, name: str, timeout_s: float) -> Outgoing:
            return self._open_to(task, self._addresses[task], f"{generation} {name}", timeout_s)

        def take(
            task: str | Collection[str], name: str, deadline: float, given_up: Callable[[], str | None]
        ) -> Incoming:
            stream = self._listener.accept(task, f"{generation} {name}", deadline, given_up)
            self._receiving.append(stream)
            return stream

        return open_, take

    def bytes_moved(self) -> tuple[int, int]:
        """Return how many bytes were sent and received on streams."""
        sent = sum(stream.bytes_sent for stream in list(self._sending))
        return sent, sum(stream.bytes_received for stream in list(self._receiving))

    def send_values(self, arena: Arena, terms: Entered) -> None:
        """Send variables and slots to every other host at once; the leader finds out who has ended."""
        self.learn(terms.seats)
        open_, _ = self.named(terms.state.generation)
        heads = [seats[0] for host, seats in terms.seats.items() if host != 0]
        threads = [
            Thread(
                target=partial(_send, arena.arrays(terms.state.version), open_, seat.task, self.warn),
                daemon=True,
            )
            for seat in heads
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def receive_values(self, arena: Arena, terms: Entered, failure: Callable[[], Exception | None]) -> None:
        """Fill an arena with what the leader sends; raise a `PeerError` if it has ended or is late."""
        self.learn(terms.seats)
        _, take = self.named(terms.state.generation)
        deadline = time.monotonic() + VALUES_S

        def given_up() -> str | None:
            found = failure()
            return None if found is None else str(found)

        stream = take(terms.seats[0][0].task, VALUES, deadline, given_up)
        try:
            self.receive(arena, terms.state.version, stream)
        finally:
            stream.close()

    def receive(self, arena: Arena, version: int, stream: Incoming) -> None:
        deadline = time.monotonic() + VALUES_S
        for array in arena.arrays(version):
            stream.receive(array, deadline)

    @contextlib.contextmanager
    def welcomed(self, terms: Entered) -> Iterator[tuple[Told, OpenSums, Incoming]]:
        """Wait for the leader to let this host in; the variables come next on the stream.

        Raises:
            WaitTimeoutError: no welcome came for a while.
            PeerError: the leader has ended, or sends something else.
        """
        self.learn(terms.seats)
        _, take = self.named(terms.state.generation)
        deadline = time.monotonic() + WELCOME_S
        stream = take(self.name_of(terms.leader), VALUES, deadline, lambda: None)
        try:
            length = np.empty(4, np.uint8)
            stream.receive(length, time.monotonic() + WELCOME_S)
            body = np.empty(min(int.from_bytes(length.tobytes(), "little"), _WELCOME_BYTES), np.uint8)
            stream.receive(body, time.monotonic() + WELCOME_S)
            try:
                welcome, sums = msgspec.msgpack.decode(body.tobytes(), type=tuple[Told, OpenSums])
            except msgspec.DecodeError as error:
                raise PeerRefusedError(f"{stream.peer} says what is no welcome: {error}") from None
            yield welcome, sums, stream
        finally:
            stream.close()

    def stop(self) -> None:
        self._listener.stop()


def _send(arrays: Sequence[Array], open_: Open, task: str, warn: Callable[[str], None]) -> None:
    deadline = time.monotonic() + VALUES_S
    try:
        stream = open_(task, VALUES, VALUES_S)
        try:
            for array in arrays:
                stream.send(array)
            stream.flush(deadline)
        finally:
            stream.close()
    except PeerError as error:
        warn(f"{task} was not sent the variables: {error}")


def _refuse(hello: Hello) -> str | None:
    return None if TaskId.parse(hello.task).role in TRAINING_ROLES else f"{hello.task} is no replica"
