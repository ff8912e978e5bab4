"""The consequence of a leader that cannot be reached outside of a call of `fit`, where no bell says so, or
that does not lead.

Within a call of `fit` the end of a socket decides who leads; see `ReplicaTraining`.
"""

import threading
from collections.abc import Callable, Collection
from pathlib import Path

from dtrain import checkpoints
from dtrain.errors import CheckpointError, PeerError
from dtrain.roles.finding_leader import LeaderFinder
from dtrain.strategies.multi_worker_mirrored.beginning.meanwhile import Meanwhile
from dtrain.wire.channel import Channel

PROBE_S = 0.5


class HasToLeadError(Exception):
    """The leader and every replica before this one are gone, or nobody trains any more: this one leads.

    Attributes:
        gone: the ranks of those that are gone.
        ended: how many calls of `fit` had ended, where this process takes the place of another one.
    """

    def __init__(self, gone: Collection[int], ended: int = 0) -> None:
        super().__init__("this replica has to lead")
        self.gone = gone
        self.ended = ended


class HasEndedError(Exception):
    """The call of `fit` has ended, and all others have gone."""


class Absence:
    """Looks for the others where the leader cannot be reached.

    A task of this host whose socket nobody serves has ended, or was started again and has not come so far.

    Attributes:
        members: the ranks that took part in the call of `fit` before this one; none before the first.
    """

    def __init__(
        self,
        connect: Callable[[int, float], Channel],
        finder: LeaderFinder,
        own: int,
        others: Collection[int],
        folder: Path | None,
        doings: Callable[[Collection[int]], Meanwhile],
        lost: Callable[[], Collection[int]],
    ) -> None:
        """Look for the tasks of other ranks.

        Args:
            connect: opens a connection to the task of a rank, within some seconds.
            finder: told of another one that leads next.
            own: rank.
            others: the ranks that the cluster names.
            folder: of the run's checkpoints, in a process that replaces another one of its task; else None.
            doings: asks the tasks of these ranks what they do.
            lost: returns the ranks that will never be started again, as far as the launcher says.
        """
        self.members: Collection[int] = ()
        self._last_step: int | None = None
        self._number = 0
        self._thread = threading.get_ident()
        self._connect = connect
        self._finder = finder
        self._own = own
        self._others = frozenset(others)
        self._folder = folder
        self._doings = doings
        self._lost = lost

    def begin(self, number: int, last_step: int | None) -> None:
        """Look on behalf of this thread, in a call of `fit`; its last step may be unknown."""
        self._thread = threading.get_ident()
        self._number = number
        self._last_step = last_step

    def not_leading(self) -> None:
        """Ask the next task, as the one that was asked does not lead.

        Where all who have trained are gone, or the first leader never comes, the first of the tasks that are
        not lost for good leads.

        Raises:
            HasToLeadError: this replica does.
            HasEndedError: there is nothing to lead any more.
        """
        self._finder.go_on()
        if self._number == 0 or self._own < 0 or threading.get_ident() != self._thread:
            return
        lost = set(self._lost())
        others = self._others - lost - {self._own}
        if self._own > min(others, default=self._own):
            return
        found = self._doings(sorted(others))
        if not found.trains and not found.silent:
            if self.is_over():
                raise HasEndedError
            raise HasToLeadError(lost, found.ended)

    def heeded(self, connect: Callable[[float], Channel]) -> Callable[[float], Channel]:
        """Return a way to the leader that looks for the others where `connect` fails in this thread of a
        replica; an evaluator leads nothing and waits.
        """

        def reach(timeout_s: float) -> Channel:
            try:
                return connect(timeout_s)
            except PeerError:
                looks = self._own >= 0 and threading.get_ident() == self._thread
                if looks and (rank := self.look()) is not None:
                    self._finder.led_by_rank(rank)
                raise

        return reach

    def look(self) -> int | None:
        """Return the rank that leads next, as far as is known; None: that of before, if it comes back.

        Raises:
            HasToLeadError: this replica does.
            HasEndedError: there is nothing to lead any more.
        """
        everyone = sorted({*self._others, *self.members}, reverse=True)  # the first of them is asked last:
        there = [rank for rank in everyone if self._is_there(rank)]  # it may just have been started again
        if not there and self.is_over():
            raise HasEndedError
        before = [rank for rank in there if rank < self._own]
        if not self.members or before:
            return min(before, default=None)
        raise HasToLeadError(set(self.members) - {*there, self._own})

    def _is_there(self, rank: int) -> bool:
        if rank == self._own:
            return False
        try:
            self._connect(rank, PROBE_S).close()
        except PeerError:
            return False
        return True

    def is_over(self) -> bool:
        """Return whether the newest checkpoint is of a later call of `fit`, or of this one's last step."""
        if self._folder is None or self._last_step is None:
            return False
        try:
            found = checkpoints.list_checkpoints(self._folder)
            state = checkpoints.read_manifest(found[-1].path).state if found else None
        except (CheckpointError, OSError):
            return False
        if state is None or state.generation != self._number:
            return state is not None and state.generation > self._number
        return found[-1].step - state.lineage.first_step >= self._last_step
