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
from dtrain.collectives.between_hosts.follower import Vote
from dtrain.errors import PeerError, PeerRefusedError
from dtrain.messages import Enter, Entered, Hello
from dtrain.messages.replicas import Seat, Welcome
from dtrain.process.assignment import TaskAssignment
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.between_hosts.agreement import SPEAKS, AgreementMember, HostProxy
from dtrain.roles.collective.between_hosts.links import Open, Take
from dtrain.types import Array
from dtrain.wire.addresses import place_to_listen
from dtrain.wire.one_host.synchronization import Locks
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
    """One task's listener for streams and its streams to other hosts; `agreement_member` is its part of
    agreements.
    """

    def __init__(
        self,
        assignment: TaskAssignment,
        credentials: Credentials,
        name_of: Callable[[int], str],
        warn: Callable[[str], None],
    ) -> None:
        """Listen at the task's address, or raise a `SpecError`; `warn` gets what cannot be reached."""
        self.agreement_member: AgreementMember | None = None
        self.name_of = name_of
        self._warn = warn
        self.identity = this_host()
        self._credentials = credentials
        self._simulate = assignment.spec.simulate
        bind = place_to_listen(assignment).address
        self._listener = Listener(assignment.address, credentials, _refuse, _STREAMS_WAITING, bind)
        self._addresses: dict[str, str] = {}
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
        """Return the replicas of each host; only the leading task is asked."""
        proxy = self._proxy
        return proxy.seats if proxy is not None else {}

    @property
    def _proxy(self) -> HostProxy | None:
        return self.agreement_member.proxy if self.agreement_member is not None else None

    def ask_in(self, rank: int, message: Enter) -> None:
        """Propose to the other hosts a replica whose host does not take part yet."""
        proxy = self._proxy
        if proxy is None:
            return
        seats = [seat for seated in proxy.seats.values() for seat in seated]
        if all(seat.rank == rank for seat in seats if seat.host == message.host):
            name = self.name_of(rank)
            proxy.admit([Seat(rank=rank, task=name, address=message.streams, host=message.host)])

    def signed(self, message: Enter) -> Enter:
        """Return the message with this host and its address for streams."""
        return msgspec.structs.replace(message, host=self.identity, streams=self.address)

    @property
    def address(self) -> str:
        return self._listener.address

    def learn(self, seats: Mapping[int, Sequence[Seat]]) -> None:
        self._addresses |= {seat.task: seat.address for seated in seats.values() for seat in seated}

    def named(self, generation: int) -> tuple[Open, Take]:
        """Return what opens and what accepts the streams of one call of `fit`."""

        def open_(task: str, name: str, timeout_s: float) -> Outgoing:
            address = self._addresses[task]
            named = f"{generation} {name}"
            stream = open_stream(task, address, named, self._credentials, timeout_s, self._simulate)
            self._sending.append(stream)
            return stream

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
        """Send variables and slots to every other host at once; the agreement finds out who has ended."""
        self.learn(terms.seats)
        open_, _ = self.named(terms.state.generation)
        heads = [seats[0] for host, seats in terms.seats.items() if host != 0]
        threads = [
            Thread(
                target=partial(_send, arena.arrays(terms.state.version), open_, seat, self._warn), daemon=True
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
    def welcomed(self, terms: Entered) -> Iterator[tuple[Welcome, Incoming]]:
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
            told = np.empty(min(int.from_bytes(length.tobytes(), "little"), _WELCOME_BYTES), np.uint8)
            stream.receive(told, time.monotonic() + WELCOME_S)
            try:
                welcome = msgspec.msgpack.decode(told.tobytes(), type=Welcome)
            except msgspec.DecodeError as error:
                raise PeerRefusedError(f"{stream.peer} says what is no welcome: {error}") from None
            yield welcome, stream
        finally:
            stream.close()

    def welcome(self, arena: Arena, generation: int, welcome: Welcome) -> None:
        """Send the variables, which do not change meanwhile, to a host that joins, in a thread."""
        self.learn(welcome.seats)
        open_, _ = self.named(generation)
        seat = welcome.seats[welcome.host][0]
        told = msgspec.msgpack.encode(welcome)
        head = np.frombuffer(len(told).to_bytes(4, "little") + told, np.uint8)
        arrays = [head, *arena.arrays(welcome.version)]
        Thread(target=partial(_send, arrays, open_, seat, self._warn), daemon=True).start()

    def stop(self) -> None:
        self._listener.stop()


def _send(arrays: Sequence[Array], open_: Open, seat: Seat, warn: Callable[[str], None]) -> None:
    deadline = time.monotonic() + VALUES_S
    try:
        stream = open_(seat.task, VALUES, VALUES_S)
        try:
            for array in arrays:
                stream.send(array)
            stream.flush(deadline)
        finally:
            stream.close()
    except PeerError as error:
        warn(f"{seat.task} was not sent the variables: {error}")


def _refuse(hello: Hello) -> str | None:
    return None if TaskId.parse(hello.task).role in TRAINING_ROLES else f"{hello.task} is no replica"


def first_words(arena: Arena, terms: Entered, rank: int, joined: Welcome | None) -> Locks:
    """Write a host's first vote, before its replicas are let in; return the locks of its proxy."""
    locks = Locks(arena.fd)
    taken = locks.acquire(SPEAKS)
    assert taken, "nobody else has this memory yet"
    host = next(host for host, seats in terms.seats.items() if rank in {seat.rank for seat in seats})
    step, term, membership = (0, 0, 0) if joined is None else (joined.step, joined.term, joined.membership)
    arena.vote_first(Vote.first(host, terms.seats, step, term, membership))
    return locks
