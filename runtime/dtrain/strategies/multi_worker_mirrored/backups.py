"""One task's part in a call of `fit` with backups: a step does not wait for every replica of the host.

All of its state follows the fit's state in shared memory, so a replica that was late has the same sums of
epochs, checkpoints and orders as the others.
"""

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec

from dtrain.collectives.backups import BackupFit
from dtrain.messages import Entered, SnapshotReply, Sums, Verdict
from dtrain.process.clock import SYSTEM
from dtrain.protocol.contributions import Outcome
from dtrain.protocol.tally import Tally
from dtrain.roles.chief.machine import Cut
from dtrain.roles.collective.backup_driver import BackupDriver
from dtrain.roles.collective.rules import LOOK_S
from dtrain.state.fit_state import Open
from dtrain.strategies.interface import FitOrder
from dtrain.strategies.multi_worker_mirrored.orders import VALUES, LeaderOrder, OrderBook
from dtrain.strategies.multi_worker_mirrored.training import ReplicaTraining, SharedFitHolder
from dtrain.wire.one_host.synchronization import Doorbells

T = TypeVar("T")


class BackupTraining(ReplicaTraining):
    """A training whose leader may be late like any other replica: it gives orders while no step is made."""

    @property
    def backups(self) -> BackupDriver:
        assert isinstance(self.driver, BackupDriver), "a training with backups has such a driver"
        return self.driver

    def _round(self, make: Callable[[], T]) -> T:
        self.boundary.begin_step()
        try:
            result = make()
        finally:
            self.boundary.end_step()
        self._lead_if_due()
        return result

    def contribute(self, part: int, examples: int, sums: Sums | None, finite: bool) -> Outcome:
        """Take part in a round with the gradient of a part; wait where the leader holds the next step."""
        outcome = self._round(partial(self.driver.contribute, part, examples, sums, finite))
        if outcome.verdict is not Verdict.PENDING:
            self.wait_for_order()
        return outcome

    def _wait_while(self, goes_on: Callable[[], bool], what: str) -> None:
        waits = False
        try:
            while True:
                self.backups.look()
                self.book.poll(self.global_step)
                if self.leads or not goes_on():
                    return
                self._lead_if_due()
                if self.leads:
                    return
                if (failure := self._failure()) is not None:
                    raise failure
                waits = True
                self._reporter.waiting(f"{self._name_of(self._awaited_leader)}, {what}")
                assert self.doorbells is not None, "members have links"
                self.doorbells.wait(LOOK_S)
        finally:
            if waits:
                self._reporter.waiting(None)

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Let no process and no thread make a step."""
        self.boundary.begin_step()
        try:
            with self.backups.at_rest():
                yield
        finally:
            self.boundary.end_step()

    @property
    def _awaited_leader(self) -> int:
        """The rank of the next leader: the one before may have died, and this one may be stopped."""
        return self.backups.leadership.awaited

    def _lead_if_due(self) -> None:
        due = not self.leads and not self.book.concluded and self.backups.leadership.is_due
        if due and self.backups.leadership.acquire():
            self.book.lead(self.driver.rank, self.global_step)
            self._lead(self)

    def _change(self, order: FitOrder, optimizer: dict[str, Any]) -> None:
        """Carry out an order. What others compute meanwhile counts for nothing, and is computed again."""
        book = self.book
        with self.at_rest():
            version, values = self.global_step, self._new_values(order)
            is_end, end = order.stop and not self.finished, self._end_of(order)
            book.give(
                LeaderOrder(book.order.number + 1, optimizer, order.until, end, version), values, version
            )
            if is_end:
                book.carry_out()
        if values is not None:
            book.carried_out()
        self._ring()


_LOOK_S = 0.001
_encode = msgspec.msgpack.Encoder().encode
_opened = msgspec.msgpack.Decoder(Open)


def sums_of(tally: Tally) -> bytes:
    """Return the sums of epochs that have not ended, for the fit's state."""
    return _encode(tally.open())


class EpochSums:
    """Keeps the tally and the step of `state` as the fit's state has them."""

    def __init__(self, state: SharedFitHolder) -> None:
        self._state = state
        self._known: bytes | None = None

    def count(self, sums: bytes, version: int, given: Sequence[Sums]) -> bytes:
        tally = self._tally(sums)
        for each in given:
            tally.add(version, each)
        return sums_of(tally)

    def adopt(self, fit: BackupFit) -> None:
        self._state.global_step = fit.version
        self._state.store.stand_at(fit.version)
        if fit.sums != self._known:
            self._known = fit.sums
            self._state.tally = self._tally(fit.sums)

    def _tally(self, sums: bytes) -> Tally:
        return self._state.tally.holding(_opened.decode(sums) if sums else ())


class BackupFitHolder(SharedFitHolder):
    """The state of a call of `fit` with backups, whose `driver` stops all steps as a checkpoint begins."""

    driver: BackupDriver

    def snapshot(self, cut: Cut, newest: int, last: int) -> list[SnapshotReply]:
        while True:
            with self._guard, self.driver.cut() as fit:
                if fit is not None:
                    sums: Any = _opened.decode(fit.sums) if fit.sums else ()
                    self.store.stand_at(fit.version)
                    reply = self.mark()
                    state = reply.state.but(
                        version=fit.version,
                        dealt=fit.dealt(self.dealer.parts),
                        tally=sums,
                    )
                    reply = msgspec.structs.replace(reply, state=state)
                    return [reply]
            SYSTEM.sleep(_LOOK_S)


class BackupBook(OrderBook):
    """The leader's orders, which replicas may see late."""

    @property
    def unwritten(self) -> int:
        due = self._ledger.entries.get(VALUES) and self.order.version == self._state.global_step
        return self.order.number if due else 0

    def finish_earlier(self) -> None:
        """Carry out what the leader before has ordered; its values lie where they belong."""
        step = self._state.global_step
        if self.order.end is not None and self.order.end == step:
            self._state.store.end_at(step, step)
        self.carried_out()


SPARE_PLACES = 2
"""The number of replicas, beyond those that began, that may compute at the same time."""
HAND_OUT_S = 1.0
"""The time for which a joining replica waits for members to take its doorbells; a stopped one does so
later.
"""
_TRIES = 100
_AGAIN_S = 1.0


def has_backups(terms: Entered, *, several_hosts: bool) -> bool:
    """Return whether steps are made of any parts, of whichever replicas come first."""
    return terms.state.dealt.even and not several_hosts


def places_of(parts: int, replicas: int) -> int:
    """Return for how many gradients there is room, where so many replicas begin and `parts` make a step."""
    return max(parts, replicas) + SPARE_PLACES


def first_fit(terms: Entered, members: Sequence[int], places: int) -> BackupFit:
    """Return how a call of `fit` stands as it begins with these members."""
    _, following, due, *_ = terms.state.dealt
    fit = BackupFit([None] * places, following, list(due), version=terms.state.version, leader=terms.leader)
    fit.sums = msgspec.msgpack.encode(terms.state.tally)
    for rank in members:
        fit.enter(rank)
    return fit


def hand_out(
    doorbells: Doorbells, handed: Callable[[int], socket.socket | None], members: Sequence[int]
) -> None:
    """Hand each member one end of a socket, and keep the other in `doorbells`; a member may accept it
    late.
    """

    def hand(rank: int) -> None:
        for _ in range(_TRIES):
            if (end := handed(rank)) is not None:
                doorbells.offer(rank, end)
                return
            SYSTEM.sleep(_AGAIN_S)

    threads = [threading.Thread(target=hand, args=(rank,), daemon=True) for rank in members]
    for thread in threads:
        thread.start()
    until_s = SYSTEM.now() + HAND_OUT_S
    for thread in threads:
        thread.join(max(0.0, until_s - SYSTEM.now()))
