"""The part of one replica in the agreement between hosts: it speaks for its host, or waits to do so.

The replica that speaks has a lock on the arena, which the kernel takes back when its process ends. A thread
of each other replica tries to take it, so that another one speaks soon, whatever the replicas compute.
"""

import threading
from collections.abc import Callable, Mapping, Set

from dtrain.errors import LeftBehindError
from dtrain.messages.between_hosts import Seat
from dtrain.process.clock import SYSTEM, Clock, Running
from dtrain.roles.collective.arena import Arena
from dtrain.roles.collective.between_hosts.across import Speaker
from dtrain.roles.collective.between_hosts.records import NoBook
from dtrain.roles.collective.rules import Book
from dtrain.wire.one_host.synchronization import Locks

SPEAKS = 0
"""The number of the lock of the replica that speaks."""
LOOK_S = 0.1


class Voice:
    """One replica's; see `rules.Across`.

    Attributes:
        speaker: this replica's part, where it speaks for its host.
    """

    def __init__(
        self,
        arena: Arena,
        locks: Locks,
        rank: int,
        speak: Callable[[int, Book], Speaker],
        *,
        number: int = 1,
        speaks: bool = False,
        clock: Clock = SYSTEM,
    ) -> None:
        """Take part from round `number` on.

        Args:
            arena: of this host, with what it has promised.
            locks: of this replica, on the arena.
            rank: of this replica, whose address is in the arena.
            speak: makes this replica the one that speaks, given a round before which all are over.
            number: of a round.
            speaks: whether this replica has the lock already, as it has made the arena.
            clock: starts a thread.
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
        self.speaker: Speaker | None = None
        self._waits: Running | None = None
        if speaks:
            self.speaker = speak(number, self._book)
        else:
            self._waits = clock.start(self._wait, "the next to speak")

    # In a thread of its own

    def _wait(self) -> None:
        try:
            while not self._leaves.wait(LOOK_S) and not self._spoke():
                pass
        except Exception as error:  # it belongs to the replica's thread
            self._error = error

    def _spoke(self) -> bool:
        """Take over speaking, if no replica speaks and this one may; return whether it speaks now."""
        if not (self._locks.is_free(SPEAKS) and self._may_speak and self._locks.take(SPEAKS)):
            return False
        if self._may_speak:  # by the last words of the one that spoke before
            self.speaker = self._speak(self._round, self._book)
            return True
        self._locks.release(SPEAKS)
        return False

    @property
    def _may_speak(self) -> bool:
        promise = self._arena.promise.read()
        return not promise.over and any(
            seat.rank == self._rank and self._is_there(seat) for seat in promise.heirs
        )

    def _is_there(self, seat: Seat) -> bool:
        """Return whether the newest process of a rank is the one that other hosts know."""
        return self._arena.address(seat.rank) == seat.address

    # In the replica's thread

    def look(self, number: int, dead: Set[int]) -> bool:
        speaker = self.speaker
        if speaker is None:
            return self._look_for_another(number, dead)
        if not self._has_begun:
            self._has_begun = True
            speaker.over(self._round - 1)  # another one may have ended while it began to speak
        return speaker.look(number, dead)

    def _look_for_another(self, number: int, dead: Set[int]) -> bool:
        """Find whether anybody may speak for this host, while a round waits for that; see `Across.look`."""
        if self._error is not None:
            raise self._error
        if not dead or self._board.summed[0] >= number:
            return False
        heirs = self._arena.promise.read().heirs
        if any(seat.rank not in dead and self._is_there(seat) for seat in heirs):
            return False
        if not self._has_ended:  # the last words may be those of the end: the caller reads them first
            self._has_ended = True
            return True
        names = ", ".join(seat.task for seat in heirs)
        raise LeftBehindError(
            f"{names}, of which the other hosts know, have ended, and this replica had come too late to "
            "speak for its host: start it again"
        )

    def over(self, number: int) -> None:
        self._round = number + 1
        if self.speaker is not None:
            self.speaker.over(number)

    def keep(self, book: Book) -> None:
        self._book = book
        if self.speaker is not None:
            self.speaker.keep(book)

    def record(self, entries: Mapping[str, bytes]) -> None:
        if self.speaker is not None:
            self.speaker.record(entries)

    @property
    def leads(self) -> bool:
        return self.speaker is not None and self.speaker.leads

    @property
    def elsewhere(self) -> Set[int]:
        return frozenset() if self.speaker is None else self.speaker.elsewhere

    @property
    def awaited(self) -> str:
        """See `Across.awaited`; of a replica that only reads the board, the one that speaks."""
        if self.speaker is not None:
            return self.speaker.awaited
        promise = self._arena.promise.read()
        return promise.seats[promise.host][0].task

    @property
    def has_newcomers(self) -> bool:
        return self.speaker is not None and self.speaker.has_newcomers

    def welcome(self) -> None:
        if self.speaker is not None:
            self.speaker.welcome()

    def close(self) -> None:
        """Leave; where training has ended, and the one that spoke could not tell other hosts, tell them."""
        self._leaves.set()
        if self._waits is not None:
            self._waits.join()
        if self.speaker is None and self._book.concluded:
            self._spoke()
        if self.speaker is not None:
            self.speaker.close()
        self._locks.close()
