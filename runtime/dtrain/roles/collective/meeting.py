"""The place where the replicas of a run without servers meet: rule *Meeting*
(docs/design/collectives.md#meeting).

Every task has one, on its service. The leader gathers the replicas of a call of `fit`; later any task that
takes part tells a newcomer how training began, and takes its socket for notifications.
"""

import os
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from dtrain.cluster import TaskId
from dtrain.messages import Enter, Entered, Hello, NotifySocket, NotReady, Over, Refusal
from dtrain.messages.replicas import Seat
from dtrain.wire.channel import Answer, Caller, PassesOn
from dtrain.wire.frames import Frame, Limits
from dtrain.wire.one_host.members import MemberLinks
from dtrain.wire.one_host.synchronization import NotifySockets

LIMITS = Limits(1 << 16, 0)
"""Of the messages that come here; none has arrays."""


class _Waiting(NamedTuple):
    caller: Caller
    message: Enter


class HostsNow(Protocol):
    """The hosts of a run, as a task that takes part knows them."""

    def seats(self) -> Mapping[int, Sequence[Seat]]: ...

    def ask_in(self, rank: int, message: Enter) -> None: ...


class SharedResources(msgspec.Struct, frozen=True):
    """The memory and sockets that the replicas of one call of `fit` share.

    Attributes:
        descriptors: of the arena, the ledger, the arena's rows of tables, and the memory of calls; for loops
            of the program's own, of the last alone. They are owned by this object.
        leadership: says which rank leads now, and whether it has ended this call of `fit`.
        members: returns the ranks of the members on this host.
    """

    terms: Entered
    descriptors: tuple[int, ...]
    notify_sockets: NotifySockets | MemberLinks
    leadership: Callable[[], tuple[int, bool]]
    hosts: HostsNow | None = None
    members: Callable[[], Collection[int]] = tuple

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


class Meeting:
    """The meeting at one task. Its methods may be called by any thread."""

    answers_at_once = True

    def __init__(self, rank_of: Callable[[TaskId], int | None]) -> None:
        self._rank_of = rank_of
        self._changed = threading.Condition()
        self._waiting: dict[int, _Waiting] = {}
        self._shared: SharedResources | None = None
        self._generation = 0
        self.gathers = False

    # For the leader's program

    def gather(
        self, own: Enter, wait: Callable[[Mapping[int, str], threading.Condition], bool]
    ) -> dict[int, Enter]:
        """Return the ranks that would take part in this call of `fit`, once there are enough. Those whose
        programs build other variables are refused. `wait` gets the names of those that are there and the held
        condition; it returns whether they are enough, and waits a little if not.
        """
        with self._changed:
            self._generation = own.generation
            while True:
                for rank, (caller, message) in list(self._waiting.items()):
                    if message.generation < own.generation:
                        caller.send(Over(generation=own.generation))
                        del self._waiting[rank]
                    elif message.generation == own.generation and (reason := _unlike(message, own)):
                        caller.send(Refusal(reason=reason))
                        del self._waiting[rank]
                there = {
                    rank: each.caller.hello.task
                    for rank, each in self._waiting.items()
                    if each.message.generation == own.generation
                }
                if wait(there, self._changed):
                    return {rank: self._waiting[rank].message for rank in sorted(there)}

    def begin(self, shared: SharedResources, ends: Mapping[int, Mapping[int, socket.socket]]) -> None:
        """Tell the gathered ranks that training begins; send the sockets `ends`, and close them here."""
        begin = {seat.rank for seats in shared.terms.seats.values() for seat in seats}
        with self._changed:
            self._store(shared)
            for rank, sockets in ends.items():
                if (waiting := self._waiting.pop(rank, None)) is not None:
                    self._send_terms(waiting.caller, shared, sockets, joins=False)
                for each in sockets.values():
                    each.close()
            for rank, (caller, message) in list(self._waiting.items()):
                if (
                    message.generation == shared.terms.state.generation
                ):  # it is on another host, or has come since
                    self._send_terms(caller, shared, {}, joins=rank not in begin)
                    del self._waiting[rank]

    # For every replica's program

    def store(self, shared: SharedResources) -> None:
        with self._changed:
            self._store(shared)

    def forget(self) -> None:
        """Tell newcomers nothing more: the task ends."""
        with self._changed:
            self._drop()

    def _store(self, shared: SharedResources) -> None:
        self._drop()
        self._shared = shared
        self._generation = shared.terms.state.generation

    def _drop(self) -> None:
        if self._shared is not None:
            self._shared.close()
            self._shared = None

    @staticmethod
    def _send_terms(
        caller: Caller, shared: SharedResources, sockets: Mapping[int, socket.socket], *, joins: bool = True
    ) -> None:
        leader, concluded = shared.leadership()
        terms = msgspec.structs.replace(
            shared.terms,
            notify_sockets=tuple(sockets),
            leader=leader,
            concluded=concluded,
            joins=joins,
            members=tuple(shared.members()) if joins else (),
        )
        if joins and shared.hosts is not None and (seats := shared.hosts.seats()):
            terms = msgspec.structs.replace(terms, seats={host: tuple(each) for host, each in seats.items()})
        if not isinstance(caller, PassesOn):
            reason = f"{caller.hello.task} is on another host, where it cannot share memory"
            caller.send(terms if shared.terms.seats else Refusal(reason=reason))
            return
        caller.pass_on(terms, [*shared.descriptors, *(each.fileno() for each in sockets.values())])

    # For the service

    def limits(self, hello: Hello) -> Limits:
        return LIMITS

    def refuse(self, hello: Hello) -> str | None:
        return None

    def received(self, caller: Caller, frame: Frame) -> Answer:
        message, sender = frame.message, TaskId.parse(caller.hello.task)
        with self._changed:
            if (rank := self._rank_of(sender)) is None:
                caller.send(Refusal(reason=f"{sender} is no replica of this run"))
            elif isinstance(message, Enter):
                self._enter(caller, rank, message)
            elif isinstance(message, NotifySocket):
                self._accept_notify_socket(caller, rank, message, frame)
            else:
                reason = f"replicas do not take {type(message).__name__} messages"
                caller.send(Refusal(reason=reason))
        return Answer.ONE

    def _enter(self, caller: Caller, rank: int, message: Enter) -> None:
        shared = self._shared
        if message.generation < self._generation:
            caller.send(Over(generation=self._generation))
        elif shared is not None and shared.terms.state.generation == message.generation:
            if message.host and shared.hosts is not None:
                shared.hosts.ask_in(rank, message)
            self._send_terms(caller, shared, {})
        elif not self.gathers:
            caller.send(NotReady(reason="this task does not lead"))
        else:
            self._waiting[rank] = _Waiting(caller, message)
            self._changed.notify_all()

    def _accept_notify_socket(self, caller: Caller, rank: int, message: NotifySocket, frame: Frame) -> None:
        shared = self._shared
        if shared is None or shared.terms.state.generation != message.generation:
            caller.send(Over(generation=self._generation))
        elif len(frame.passed) != 1 or message.rank != rank:
            caller.send(Refusal(reason=f"expected one socket from the replica of rank {rank}"))
        else:
            shared.notify_sockets.offer(rank, socket.socket(fileno=frame.passed[0].detach()))
            caller.send(message)

    def disconnected(self, caller: Caller) -> None:
        with self._changed:
            for rank, waiting in list(self._waiting.items()):
                if waiting.caller is caller:
                    del self._waiting[rank]
                    self._changed.notify_all()


def _unlike(message: Enter, own: Enter) -> str | None:
    if (message.plan_hash, message.slots) == (own.plan_hash, own.slots):
        return None
    what = "variables" if message.plan_hash != own.plan_hash else "optimizer's slots"
    return f"this task builds other {what} than the leader: do all tasks build the same model?"


def descriptors_of(frame: Frame) -> Sequence[int]:
    """Return the descriptors that came with a message, which belong to the caller."""
    return [each.detach() for each in frame.passed]
