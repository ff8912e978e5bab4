"""Calls of members on one host, in memory that all map: between steps, and a log of those within a step.

The rule is *Calls* (docs/design/collectives.md#calls). Between steps small arrays lie in one of two places by
turns: a replica that is in call n + 1 has read those of call n, so one wait is enough, and each replica adds
up all arrays itself. Large arrays are added up slice by slice, one slice a replica, into a result that all
map and none may write. It is used again when no replica has it any more.

What a part gives to the calls of a round stays until the round is over.
"""

import weakref
from collections.abc import Sequence
from functools import lru_cache
from typing import Self

import numpy as np

from dtrain.collectives.ledger import LINE_WORDS, Column, count, counted
from dtrain.collectives.step import share
from dtrain.errors import InputError, PeerLostError
from dtrain.exchange.calls import (
    LENGTH_BYTES,
    ArrayKind,
    GivenCall,
    ReplicaCall,
    WrittenCall,
    added_up,
    check_calls,
)
from dtrain.exchange.machine import Exchange
from dtrain.parameters.updater import BLOCK_ELEMENTS
from dtrain.roles.collective.rules import Awaited, Waits
from dtrain.types import Array
from dtrain.wire.one_host.shared_memory import GrowingMemory
from dtrain.wire.one_host.synchronization import NotifySockets

SMALL_BYTES = 32 * 1024
"""Up to this size every replica adds up all arrays itself."""
RESULTS = 8
"""The number of large results that may be in use at a time before they are copied."""
KNOWN = 256
"""The number of different calls that are kept ready."""
_HEAD_BYTES = 32 * 1024
_PLACE_BYTES = SMALL_BYTES + _HEAD_BYTES
REGION_BYTES = 4 << 30
"""A member may give so much to one call, or to all calls of a step; pages are taken as they are needed."""


class CallMemory:
    """The memory of calls: words, and a region for each member. Between steps it begins with two places.

    Attributes:
        called: by member, the number of its newest call, whose arrays are there.
        over: by part, whether it makes no more calls.
        done: by rank, the number of the newest call of which it needs no other replica's arrays.
        held: by rank and turn, the large results that it uses, as bits.
        first: where the regions begin; those beyond the members' are of results.
        fd: to be sent to the others.
    """

    def __init__(self, memory: GrowingMemory, members: int) -> None:
        self.memory = memory
        self.members = range(members)
        self.fd = memory.fd
        self.first = self._words(members)
        memory.need(0, self.first)
        words = memoryview(memory)[: self.first].cast("q")
        self.called, self.over, self.done = (Column(words, each * members, members) for each in range(3))
        self.held = Column(words, 3 * members, 2 * members)
        self._needed = [0] * (members + RESULTS + 1)

    @staticmethod
    def _words(members: int) -> int:
        return 5 * members * LINE_WORDS * 8

    @classmethod
    def make(cls, members: int) -> Self:
        regions = (members + RESULTS + 1) * REGION_BYTES
        return cls(GrowingMemory.make(cls._words(members) + regions), members)

    @classmethod
    def received(cls, fd: int, members: int) -> Self:
        return cls(GrowingMemory.received(fd), members)

    def region(self, number: int) -> int:
        return self.first + number * REGION_BYTES

    def need(self, number: int, nbytes: int) -> None:
        """Take the first bytes of a region. Raises an InputError or SharedMemoryError if there is no room."""
        if nbytes > REGION_BYTES:
            raise InputError(
                "the arrays of one call, or of all calls of a part within one step, take more than "
                f"{REGION_BYTES} bytes; expected fewer or smaller arrays"
            )
        if self._needed[number] < nbytes:
            self.memory.need(self.region(number), self.region(number) + nbytes)
            self._needed[number] = nbytes

    def bytes_at(self, start: int, nbytes: int) -> Array:
        """Return bytes of which all views have one base."""
        return np.frombuffer(memoryview(self.memory)[start : start + nbytes], np.uint8)

    def read(self, start: int) -> WrittenCall:
        """Return the form of a call whose head begins there."""
        text = start + LENGTH_BYTES
        length = int.from_bytes(self.memory[start:text], "little")
        return WrittenCall.read(self.memory[text : text + length], "a replica of this host")


Views = dict[int, list[Array]]
"""The arrays of a call, by rank and turn."""


class Calls:
    """The calls of one replica of a loop."""

    def __init__(
        self, memory: CallMemory, notify_sockets: NotifySockets, rank: int, waits: Waits | None = None
    ) -> None:
        self.count = 0
        self._members = memory.members
        self._memory = memory
        self._notify_sockets = notify_sockets
        self._rank = rank
        self._waits = waits or Waits()
        self._known = lru_cache(KNOWN)(_known)
        self._results: dict[int, weakref.ref[Array]] = {}
        self._large = 0
        memory.need(rank, 2 * _PLACE_BYTES)

    def exchange(self, call: ReplicaCall, arrays: Sequence[Array]) -> list[list[Array]]:
        """Return the arrays of every member, in the order of ranks; shapes may differ.

        Args:
            call: what it is and where it stands; all must agree.
            arrays: of any dtype but object.

        Raises:
            CallsDifferError: a member makes another call; it is raised in all of them.
            PeerLostError: a member has ended without this call.
            WaitTimeoutError: a member did not make it in time.
        """
        _, given = self._give(call, arrays)
        found = [[np.array(array) for array in each] for each in given]
        self._end()
        return found

    def all_reduce(self, call: ReplicaCall, arrays: Sequence[Array]) -> list[Array]:
        """Return the sum of arrays of one shape and dtype in all members, in the order of ranks.

        Arguments and errors are those of `exchange`. Large results cannot be written: all replicas read the
        same memory.
        """
        written, terms = self._give(call, arrays)
        if written.nbytes <= SMALL_BYTES:
            return [added_up(each) for each in zip(*terms, strict=True)]
        memory, ranks, held = self._memory, len(self._members), 0
        for rank in self._members:
            held |= memory.held[2 * rank + self.count % 2]
        # The first result that no member uses, the same in all; RESULTS: there is none, it is copied.
        number = next(number for number in range(RESULTS + 1) if not held >> number & 1)
        memory.need(ranks + number, written.nbytes)
        root = memory.bytes_at(memory.region(ranks + number), written.nbytes)
        for out, *given in zip(written.views(root), *terms, strict=True):
            own, flat = share(out.size, ranks, self._rank), out.reshape(-1)
            flats = [each.reshape(-1) for each in given]
            for start in range(own.start, own.stop, BLOCK_ELEMENTS):
                block = slice(start, min(start + BLOCK_ELEMENTS, own.stop))
                added_up([each[block] for each in flats], flat[block])
        self._end()
        self._await(memory.done, "sum of its slice", self.count)
        if number == RESULTS:
            return [np.array(each) for each in written.views(root)]
        root.flags.writeable = False
        self._results[number] = weakref.ref(root)
        return written.views(root)

    # What a call is made of

    def _give(self, call: ReplicaCall, arrays: Sequence[Array]) -> tuple[WrittenCall, list[list[Array]]]:
        """Write this replica's call; return its form, and the arrays of all members once all calls agree."""
        written, views = self._known(call, tuple([(each.dtype.str, each.shape) for each in arrays]))
        memory, rank = self._memory, self._rank
        if written.nbytes > SMALL_BYTES:
            self._await(memory.done, "end of the call before", self._large)
            self._large = self.count + 1
            memory.need(rank, 2 * _PLACE_BYTES + written.nbytes)
        self.count += 1
        turn, end = self.count % 2, len(written.head)
        for array, target in zip(arrays, self._arrays(rank, written, views), strict=True):
            target[...] = array
        places = [memory.region(each) + turn * _PLACE_BYTES for each in self._members]
        memory.memory[places[rank] : places[rank] + end] = written.head
        used = [1 << number for number, ref in self._results.items() if ref() is not None]
        memory.held[2 * rank + turn] = sum(used)
        memory.called[rank] = self.count
        self._notify_sockets.notify()
        self._await(memory.called, "call", self.count)
        if all(memory.memory[at : at + end] == written.head for at in places):
            return written, [self._arrays(each, written, views) for each in self._members]
        found = dict(enumerate(map(memory.read, places)))
        check_calls({each: other.call for each, other in found.items()})
        return written, [self._arrays(each, other, {}) for each, other in found.items()]

    def _arrays(self, rank: int, written: WrittenCall, views: Views) -> list[Array]:
        turn = 2 * rank + self.count % 2
        if (arrays := views.get(turn)) is None:
            is_small = written.nbytes <= SMALL_BYTES
            start = self.count % 2 * _PLACE_BYTES + _HEAD_BYTES if is_small else 2 * _PLACE_BYTES
            data = self._memory.bytes_at(self._memory.region(rank) + start, written.nbytes)
            arrays = views[turn] = written.views(data)
        return arrays

    def _end(self) -> None:
        self._memory.done[self._rank] = self.count
        self._notify_sockets.notify()

    def _await(self, column: Column, what: str, count: int) -> None:
        since_s: float | None = None
        while late := [rank for rank in self._members if column[rank] < count]:
            gone = [rank for rank in late if rank in self._notify_sockets.dead]
            if gone and column[gone[0]] < count:
                raise PeerLostError(
                    f"{self._waits.name_of(gone[0])} has ended in the midst of collective calls: its {what} "
                    f"(number {count}) will not come"
                )
            since_s = self._waits.clock.now() if since_s is None else since_s
            self._waits.wait(
                self._notify_sockets, since_s, Awaited(self._waits.name_of, late, f"{what} {count}")
            )
        if since_s is not None:
            self._waits.waiting(None)


def _known(call: ReplicaCall, kinds: tuple[ArrayKind, ...]) -> tuple[WrittenCall, Views]:
    written = WrittenCall(call, kinds)
    if len(written.head) > _HEAD_BYTES:
        raise InputError(f"a call of {len(kinds)} arrays; expected fewer: put them together")
    return written, {}


class CallLog(Exchange):
    """The calls of every part of the newest round, in memory that the replicas of a host map.

    One process writes the calls of a part: its owner, then its successor. Over several hosts there is twice
    as much memory: behind the calls of parts that are computed here lie those that other hosts have told.
    There one member writes. Both are the same, where a part was computed at two hosts, one after the other.
    A call counts once the word of the part says so.
    """

    def __init__(self, memory: CallMemory, parts: int | None = None, *, of_others: bool = False) -> None:
        """Begin, to write calls of parts that are computed here, or those that other hosts have told; `parts`
        is given where there are several hosts.
        """
        parts = len(memory.members) if parts is None else parts
        self.memory = memory
        self._places = range(0, len(memory.members), parts)
        self._own = parts if of_others else 0
        super().__init__(range(parts), "part")

    def begin(self, of_round: int) -> None:
        self.round = of_round
        self._starts: dict[int, list[int]] = {}

    def _made_at(self, place: int) -> int:
        return count(self.memory.called[place], self.round)

    def made(self, member: int) -> int:
        return max([self._made_at(member + each) for each in self._places])

    def ended(self, member: int) -> int | None:
        over = max([count(self.memory.over[member + each], self.round) for each in self._places])
        return over - 1 if over else None

    @property
    def is_used(self) -> bool:
        """Whether a part has made a call in this round, or a later one."""
        return max(self.memory.called.read()) > counted(self.round, 0)

    def told_here(self, member: int) -> tuple[int, int | None]:
        """Return how many calls of a part this host has written itself, and of how many examples the part was
        if it has ended here; another host may have ended it before.
        """
        over = count(self.memory.over[member + self._own], self.round)
        return self._made_at(member + self._own), over - 1 if over else None

    def end(self, member: int, examples: int = 1) -> None:
        self.memory.over[member + self._own] = counted(self.round, 1 + min(examples, 1))

    def give(self, member: int, number: int, given: GivenCall) -> None:
        """Add the next call of a part. Raises an InputError or SharedMemoryError if there is no room."""
        place = member + self._own
        if number != self._made_at(place):
            return
        written, start = WrittenCall.of(given), self._start(place, number)
        first = start + written.first
        self.memory.need(place, first + written.nbytes - self.memory.region(place))
        self.memory.memory[start : start + len(written.head)] = written.head
        for view, array in zip(self._views(written, start), given.arrays, strict=True):
            view[...] = array
        self.memory.called[place] = counted(self.round, number + 1)

    def call(self, member: int, number: int) -> GivenCall:
        there = [member + each for each in self._places if self._made_at(member + each) > number]
        start = self._start(there[0], number)
        written = self.memory.read(start)
        return GivenCall(written.call, self._views(written, start))

    def _start(self, place: int, number: int) -> int:
        starts = self._starts.setdefault(place, [self.memory.region(place)])
        while len(starts) <= number:
            written = self.memory.read(starts[-1])
            starts.append(starts[-1] + written.first + written.nbytes)
        return starts[number]

    def _views(self, written: WrittenCall, start: int) -> list[Array]:
        return written.views(self.memory.bytes_at(start + written.first, written.nbytes))
