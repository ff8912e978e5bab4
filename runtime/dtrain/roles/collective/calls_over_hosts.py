"""Calls among tasks of several hosts: between steps, and within a step.

The rule is *Calls* (docs/design/collectives.md#calls). Between steps small arrays come with what is said, and
each task adds up all of them. Of large arrays each task adds up one slice, which the others send to it, and
sends them the sum. A stream that ends, ends the call of all others with an error that names its task, and all
later calls.

What a part gives to calls within a step goes from the member that computes it to one member of each other
host, which writes it into the memory of that host (`roles.collective.over_hosts`).
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from dtrain.collectives.all_reduce import ElementRange, segment_length, segments
from dtrain.collectives.step import share
from dtrain.errors import InputError, PeerError, PeerLostError, PeerRefusedError, WaitTimeoutError
from dtrain.exchange.calls import (
    LARGEST_BYTES,
    LENGTH_BYTES,
    GivenCall,
    ReplicaCall,
    WrittenCall,
    added_up,
    check_calls,
)
from dtrain.roles.collective.rules import Awaited, Waits
from dtrain.types import Array
from dtrain.wire.streams import Incoming, Outgoing

SMALL_BYTES = 1 << 16
"""Of arrays that travel with the call. At 1 Gbit/s they take as long as another way to all would begin to."""
_LONGEST_BYTES = 1 << 20
_SHORTEST_BYTES = 1 << 16
"""Of a piece of a slice: it costs a wake-up."""


class StreamPair(NamedTuple):
    """The streams to and from another task."""

    to: Outgoing
    come: Incoming


class _Told(NamedTuple):
    """A call, as a task describes it; `arrays` are there if they are small."""

    written: WrittenCall
    arrays: list[Array] | None


class CallsBetweenHosts:
    """The calls of one task, with the sums and errors of `Calls`."""

    def __init__(self, ways: Mapping[int, StreamPair], rank: int, waits: Waits) -> None:
        self.members = sorted([*ways, rank])
        self.count = 0
        self._ways = dict(sorted(ways.items()))
        self._rank = rank
        self._waits = waits

    def exchange(self, call: ReplicaCall, arrays: Sequence[Array]) -> list[list[Array]]:
        arrays = _contiguous(arrays)
        with self._call():
            told = self._exchange(call, arrays)
            if told[self._rank].arrays is None:
                for array in arrays:
                    self._send(array.reshape(-1), self._ways)
            found = []
            for rank, each in told.items():
                if rank == self._rank:
                    found.append([np.array(array) for array in arrays])
                elif each.arrays is not None:
                    found.append(each.arrays)
                else:
                    found.append([np.empty(shape, dtype) for dtype, shape in each.written.kinds])
                    for array in found[-1]:
                        self._receive(rank, array.reshape(-1))
        return found

    def all_reduce(self, call: ReplicaCall, arrays: Sequence[Array]) -> list[Array]:
        arrays = _contiguous(arrays)
        with self._call():
            told = self._exchange(call, arrays)
            small = [each.arrays for each in told.values() if each.arrays is not None]
            if len(small) == len(told):
                sums = [added_up(each) for each in zip(*small, strict=True)]
            else:
                sums = [np.empty(array.shape, array.dtype) for array in arrays]
                self._add_slices([each.reshape(-1) for each in sums], [each.reshape(-1) for each in arrays])
        return sums

    def close(self) -> None:
        for way in self._ways.values():
            way.to.close()
            way.come.close()

    # What a call is made of

    @contextmanager
    def _call(self) -> Iterator[None]:
        """End all streams if a call is not complete: the bytes that follow would have no meaning."""
        self.count += 1
        try:
            yield
            for rank in self._ways:
                self._on_way(rank, lambda way: way.to.flush(self._deadline()))
        except PeerError as error:
            self._abort(str(error))
            raise
        except (KeyboardInterrupt, SystemExit):
            self._abort("a collective call was interrupted")
            raise

    def _abort(self, reason: str) -> None:
        for way in self._ways.values():
            way.to.abort(reason)
            way.come.abort(reason)

    def _exchange(self, call: ReplicaCall, arrays: Sequence[Array]) -> dict[int, _Told]:
        """Send this call to all members; return the calls of all by rank, if they agree."""
        written = WrittenCall.of(GivenCall(call, arrays))
        if len(written.head) > _LONGEST_BYTES or written.nbytes > LARGEST_BYTES:
            raise InputError(
                f"a call of {len(arrays)} arrays with {written.nbytes} bytes; expected at most "
                f"{LARGEST_BYTES} bytes in fewer arrays"
            )
        is_small = written.nbytes <= SMALL_BYTES
        head = np.frombuffer(self.count.to_bytes(LENGTH_BYTES, "little") + written.head, np.uint8)
        self._send(np.concatenate([head, written.filled(arrays)]) if is_small else head, self._ways)
        self._waits.waiting(Awaited(self._waits.name_of, list(self._ways), f"call {self.count}"))
        own = _Told(written, list(arrays) if is_small else None)
        told = {rank: own if rank == self._rank else self._told_by(rank) for rank in self.members}
        self._waits.waiting(None)
        check_calls({rank: each.written.call for rank, each in told.items()})
        return told

    def _told_by(self, rank: int) -> _Told:
        name = self._waits.name_of(rank)
        head = np.empty(2, np.int64)
        self._receive(rank, head)
        count, length = map(int, head)
        if count != self.count or not 0 <= length <= _LONGEST_BYTES:
            raise PeerRefusedError(
                f"{name} is in call {count}, and {self.count} is expected; do all tasks run the same program?"
            )
        text = np.empty(length, np.uint8)
        self._receive(rank, text)
        written = WrittenCall.read(text.tobytes(), name)
        if written.nbytes > SMALL_BYTES:
            return _Told(written, None)
        data = np.empty(written.nbytes, np.uint8)
        self._receive(rank, data)
        return _Told(written, written.views(data))

    def _add_slices(self, sums: Sequence[Array], arrays: Sequence[Array]) -> None:
        """Add up this task's slice of each flat array, and receive the others' sums: piece by piece, so that
        sums leave while slices come. Of two tasks each adds up all: as many bytes travel, and only once.
        """
        members, mine = self.members, self.members.index(self._rank)
        count = len(members) if len(members) > 2 else 1
        for number, rank in enumerate(members):
            for array in arrays if rank != self._rank else ():
                self._send(_slice(array, count, number % count), [rank])
        for array, out in zip(arrays, sums, strict=True):
            own, into = _slice(array, count, mine % count), _slice(out, count, mine % count)
            for start, stop in _pieces(own):
                terms = {rank: np.empty(stop - start, own.dtype) for rank in self._ways}
                self._receive_by_turns(terms)
                terms[self._rank] = own[start:stop]
                total = added_up([terms[rank] for rank in members], into[start:stop])
                self._send(total, self._ways if count > 1 else ())
        for out in sums if count > 1 else ():
            slices = {rank: _slice(out, count, number) for number, rank in enumerate(members)}
            del slices[self._rank]
            self._receive_by_turns(slices)

    # Streams

    def _send(self, array: Array, to: Collection[int]) -> None:
        """Send a flat array, which must not change until the call is over."""
        for rank in to if array.size else ():
            self._on_way(rank, lambda way: way.to.send(array))

    def _receive(self, rank: int, into: Array) -> None:
        if into.size:
            self._on_way(rank, lambda way: way.come.receive(into, self._deadline()))

    def _receive_by_turns(self, into: Mapping[int, Array]) -> None:
        """Receive flat arrays of about one size: while one sender is not read, it does not send to others."""
        for start, stop in _pieces(max(into.values(), key=len)):
            for rank, array in into.items():
                self._receive(rank, array[start:stop])

    def _on_way(self, rank: int, act: Callable[[StreamPair], None]) -> None:
        try:
            act(self._ways[rank])
        except WaitTimeoutError:
            raise WaitTimeoutError(
                f"waited {self._waits.patience_s:g} s for {self._waits.name_of(rank)}, call {self.count}; "
                "expected it within that time: see what this task does"
            ) from None
        except PeerLostError as error:
            raise PeerLostError(
                f"{self._waits.name_of(rank)} has ended, or cannot be reached any more, in the midst of "
                f"collective calls: its call (number {self.count}) will not come ({error})"
            ) from None

    def _deadline(self) -> float:
        return time.monotonic() + self._waits.patience_s


def _contiguous(arrays: Sequence[Array]) -> list[Array]:
    return [np.ascontiguousarray(each).reshape(each.shape) for each in arrays]


def _pieces(flat: Array) -> Sequence[ElementRange]:
    length = max(min(segment_length(flat.itemsize), flat.size // 4), _SHORTEST_BYTES // flat.itemsize, 1)
    return segments(ElementRange(0, flat.size), length)


def _slice(flat: Array, slices: int, number: int) -> Array:
    part = share(flat.size, slices, number)
    return flat[part.start : part.stop]


STEP_CALL_MAX = 64 << 20
"""The arrays of one call take so much at most."""
LONGEST_BYTES = STEP_CALL_MAX + (1 << 20)
"""The longest message that tells of a call."""


def call_of(body: bytes) -> GivenCall:
    """Return the call that another host has described, or raise a PeerRefusedError."""
    end = LENGTH_BYTES + int.from_bytes(body[:LENGTH_BYTES], "little")
    written = WrittenCall.read(body[LENGTH_BYTES:end], "another host")
    if len(body) != end + written.nbytes:
        raise PeerRefusedError(f"another host sends {len(body) - end} bytes for {written.nbytes} of arrays")
    return GivenCall(written.call, written.views(np.frombuffer(body, np.uint8)[end:]))
