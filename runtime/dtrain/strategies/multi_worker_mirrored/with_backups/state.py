"""The state of a call of `fit` with backups in one task: sums of epochs, checkpoints, the leader's orders.

All of it follows the standing in shared memory, so a replica that was late has the same state as the others.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from dtrain.collectives.backups import Standing
from dtrain.messages import SnapshotReply, Sums
from dtrain.process.clock import SYSTEM
from dtrain.protocol.tally import Tally
from dtrain.roles.chief.machine import Cut
from dtrain.roles.collective.backup_driver import BackupDriver
from dtrain.state.fit_state import Open
from dtrain.strategies.in_process.fit_holder import FitHolder
from dtrain.strategies.multi_worker_mirrored.orders import VALUES, OrderBook
from dtrain.strategies.multi_worker_mirrored.training import SharedFitHolder

_LOOK_S = 0.001
_encode = msgspec.msgpack.Encoder().encode
_opened = msgspec.msgpack.Decoder(Open)


def sums_of(tally: Tally) -> bytes:
    """Return the sums of epochs that have not ended, for the standing."""
    return _encode(tally.open())


class EpochSums:
    """See `shared_standing.Account`."""

    def __init__(self, state: FitHolder) -> None:
        """Keep the tally and the step of `state` as the standing says."""
        self._state = state
        self._known: bytes | None = None

    def count(self, sums: bytes, version: int, given: Sequence[Sums]) -> bytes:
        """See `Account.count`."""
        tally = self._tally(sums)
        for each in given:
            tally.add(version, each)
        return sums_of(tally)

    def adopt(self, standing: Standing) -> None:
        """See `Account.adopt`."""
        self._state.global_step = standing.version
        if standing.sums != self._known:
            self._known = standing.sums
            self._state.tally = self._tally(standing.sums)

    def _tally(self, sums: bytes) -> Tally:
        return self._state.tally.holding(_opened.decode(sums) if sums else ())


class BackupFitHolder(SharedFitHolder):
    """The state of a call of `fit` with backups.

    Attributes:
        driver: lets nobody make a step while a checkpoint is begun.
    """

    driver: BackupDriver

    def snapshot(self, cut: Cut, newest: int, last: int) -> list[SnapshotReply]:
        """See `FitHolder.snapshot`."""
        while True:
            with self._guard, self.driver.cut() as standing:
                if standing is not None:
                    sums: Any = _opened.decode(standing.sums) if standing.sums else ()
                    reply = self.mark()
                    state = reply.state.but(
                        version=standing.version,
                        dealt=standing.dealt(self.dealer.parts),
                        tally=sums,
                    )
                    reply = msgspec.structs.replace(reply, state=state)
                    return [reply]
            SYSTEM.sleep(_LOOK_S)


class BackupBook(OrderBook):
    """The leader's orders; see `shared_standing.LateOrders`."""

    @property
    def unwritten(self) -> int:
        """See `LateOrders.unwritten`."""
        due = self._ledger.entries.get(VALUES) and self.order.version == self._state.global_step
        return self.order.number if due else 0

    def finish_earlier(self) -> None:
        """Carry out what the leader before has ordered; its values lie where they belong."""
        step = self._state.global_step
        if self.order.end is not None and self.order.end == step:
            self._state.store.end_at(step, step)
        self.carried_out()
