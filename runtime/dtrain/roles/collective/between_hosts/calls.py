"""Collective calls among tasks of several hosts: between steps, and within a step.

The rule *Calls between hosts* (docs/design/collectives.md#calls-between-hosts):

1. Calls are counted, and say what they are, as on one host: every task reads what all others say before it
   uses an array, so that all of them find a call that differs.
2. Small arrays come with what is said, and each task adds up all of them.
3. Of large arrays each task adds up one slice, which the others send to it, and sends them the sum.
4. A stream that ends, ends the call of all others with an error that names its task, and all later calls.

Sums are taken in the order of ranks, as on one host, so the bits are the same wherever the tasks are.

The rule *Calls within a step* (docs/design/collectives.md#calls-within-a-step): what the parts that are
computed at a host give goes to the host that leads, and from there to all others, where it lies in the same
place of their memory. It is kept for the step after it as well: no host is further behind.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import NamedTuple

import msgspec
import numpy as np

from dtrain.collectives.board import Board
from dtrain.collectives.step import share
from dtrain.errors import InputError, PeerError, PeerLostError, PeerRefusedError, WaitTimeoutError
from dtrain.messages.replicas import StepCall
from dtrain.roles.collective.calls import SMALL_BYTES, CallLog, Check, GivenCall, added_up
from dtrain.roles.collective.rules import Awaited, Waits
from dtrain.types import Array
from dtrain.wire.streams import Incoming, Outgoing

LARGEST_BYTES = 4 << 30
"""The arrays of one call take so much at most."""
_LONGEST_BYTES = 1 << 20
_KINDS = "biufcSU"
_Described = tuple[bytes, list[tuple[str, tuple[int, ...]]]]
_decoder = msgspec.msgpack.Decoder(_Described)


class StreamPair(NamedTuple):
    """The streams to and from another task."""

    to: Outgoing
    come: Incoming


class _Told(NamedTuple):
    """A call, as a task describes it; `arrays` are there if they are small."""

    said: bytes
    kinds: list[tuple[str, tuple[int, ...]]]
    arrays: list[Array] | None


class CallsBetweenHosts:
    """The calls of one task, with the sums and errors of `Calls`."""

    def __init__(self, ways: Mapping[int, StreamPair], rank: int, check: Check, waits: Waits) -> None:
        self.members = sorted([*ways, rank])
        self.count = 0
        self._ways = dict(sorted(ways.items()))
        self._rank = rank
        self._check = check
        self._waits = waits

    def exchange(self, said: bytes, arrays: Sequence[Array]) -> list[list[Array]]:
        with self._call():
            told = self._exchange(said, arrays)
            if told[self._rank].arrays is None:
                self._send(array.reshape(-1) for array in arrays)
            found = []
            for rank, each in told.items():
                if rank == self._rank:
                    found.append([np.array(array) for array in arrays])
                else:
                    found.append(self._received(rank, each.kinds) if each.arrays is None else each.arrays)
            self._flush()
        return found

    def all_reduce(self, said: bytes, arrays: Sequence[Array]) -> list[Array]:
        with self._call():
            told = self._exchange(said, arrays)
            small = [each.arrays for each in told.values() if each.arrays is not None]
            sums = [np.empty(array.shape, array.dtype) for array in arrays]
            if len(small) == len(told):
                for position, out in enumerate(sums):
                    added_up(out.reshape(-1), [each[position].reshape(-1) for each in small])
            else:
                self._add_slices([each.reshape(-1) for each in sums], [each.reshape(-1) for each in arrays])
            self._flush()
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

    def _exchange(self, said: bytes, arrays: Sequence[Array]) -> dict[int, _Told]:
        """Send this call to all members; return the calls of all by rank, if they agree."""
        kinds = [(array.dtype.str, array.shape) for array in arrays]
        text = msgspec.msgpack.encode((said, kinds))
        nbytes = sum(array.nbytes for array in arrays)
        if len(text) > _LONGEST_BYTES or nbytes > LARGEST_BYTES:
            raise InputError(
                f"a call of {len(arrays)} arrays with {nbytes} bytes; expected at most {LARGEST_BYTES} bytes "
                "in fewer arrays"
            )
        is_small = nbytes <= SMALL_BYTES
        own = _Told(said, kinds, list(arrays) if is_small else None)
        head = np.array([self.count, len(text)], np.int64).view(np.uint8)
        body = [array.reshape(-1).view(np.uint8) for array in arrays if array.size] if is_small else []
        message = np.concatenate([head, np.frombuffer(text, np.uint8), *body])
        self._send([message])
        self._waits.waiting(Awaited(self._waits.name_of, list(self._ways), f"call {self.count}"))
        told = {rank: own if rank == self._rank else self._told_by(rank) for rank in self.members}
        self._waits.waiting(None)
        if any(each.said != said for each in told.values()):
            self._check({rank: each.said for rank, each in told.items()})
        return told

    def _told_by(self, rank: int) -> _Told:
        head = np.empty(2, np.int64)
        self._receive(rank, head)
        count, length = map(int, head)
        if count != self.count or not 0 <= length <= _LONGEST_BYTES:
            raise PeerRefusedError(
                f"{self._waits.name_of(rank)} is in call {count}, and {self.count} is expected; do all tasks "
                "run the same program?"
            )
        text = np.empty(length, np.uint8)
        self._receive(rank, text)
        try:
            said, kinds = _decoder.decode(text.tobytes())
            nbytes = sum(map(nbytes_of, kinds))
        except (msgspec.DecodeError, TypeError, ValueError) as error:
            raise PeerRefusedError(
                f"{self._waits.name_of(rank)} describes its call as no version of dtrain does: {error}"
            ) from None
        return _Told(said, kinds, self._received(rank, kinds) if nbytes <= SMALL_BYTES else None)

    def _add_slices(self, sums: Sequence[Array], arrays: Sequence[Array]) -> None:
        """Add up this task's slice of each flat array, and receive the others' sums."""
        for number, rank in enumerate(self.members):
            if rank != self._rank:
                self._send((_slice(array, len(self.members), number) for array in arrays), [rank])
        mine = self.members.index(self._rank)
        for array, out in zip(arrays, sums, strict=True):
            own = _slice(array, len(self.members), mine)
            terms = [
                own if rank == self._rank else self._received(rank, [(own.dtype.str, own.shape)])[0]
                for rank in self.members
            ]
            target = _slice(out, len(self.members), mine)
            added_up(target, terms)
            self._send([target])
        for out in sums:
            for number, rank in enumerate(self.members):
                if rank != self._rank:
                    self._receive(rank, _slice(out, len(self.members), number))

    # Streams

    def _send(self, arrays: "Sequence[Array] | Iterator[Array]", to: Sequence[int] | None = None) -> None:
        """Send flat arrays, which must not change until `_flush`; `ranks` None: to all others."""
        for array in arrays:
            for rank in self._ways if to is None else to:
                if array.size:
                    self._on_way(rank, partial(_send, array))

    def _received(self, rank: int, kinds: Sequence[tuple[str, tuple[int, ...]]]) -> list[Array]:
        arrays = [np.empty(shape, dtype) for dtype, shape in kinds]
        for array in arrays:
            self._receive(rank, array.reshape(-1))
        return arrays

    def _receive(self, rank: int, into: Array) -> None:
        if into.size:
            self._on_way(rank, lambda way: way.come.receive(into, self._deadline()))

    def _flush(self) -> None:
        for rank in self._ways:
            self._on_way(rank, lambda way: way.to.flush(self._deadline()))

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


def _send(array: Array, way: StreamPair) -> None:
    way.to.send(array)


def _slice(flat: Array, slices: int, number: int) -> Array:
    part = share(flat.size, slices, number)
    return flat[part.start : part.stop]


def nbytes_of(kind: tuple[str, tuple[int, ...]]) -> int:
    """Return the size of an array that another task describes, or raise a TypeError or ValueError."""
    dtype, shape = np.dtype(kind[0]), kind[1]
    nbytes = dtype.itemsize * prod(shape)
    if dtype.kind not in _KINDS or min(shape, default=0) < 0 or nbytes > LARGEST_BYTES:
        raise ValueError(f"expected an array of at most {LARGEST_BYTES} bytes, found {kind}")
    return nbytes


STEP_CALL_MAX = 64 << 20
"""The arrays of one call take so much at most."""
LONGEST_BYTES = STEP_CALL_MAX + (1 << 20)
"""The most bytes that follow a `StepCall`."""
_DescribedCall = tuple[bytes, list[tuple[str, tuple[int, ...], bytes]]]
_encode = msgspec.msgpack.Encoder().encode
_call_decoder = msgspec.msgpack.Decoder(_DescribedCall)


class SaidCall(NamedTuple):
    """A call of a part, or its end, and the bytes that follow the message."""

    head: StepCall
    body: bytes


def call_of(said: SaidCall) -> GivenCall:
    """Return the call that another host has described, or raise a PeerRefusedError."""
    try:
        text, described = _call_decoder.decode(said.body)
        arrays = []
        for dtype, shape, content in described:
            if nbytes_of((dtype, shape)) != len(content):
                raise ValueError(f"{len(content)} bytes for an array {dtype} of shape {shape}")
            arrays.append(np.frombuffer(content, dtype).reshape(shape))
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        raise PeerRefusedError(f"a call within a step is described as by no dtrain: {error}") from None
    return GivenCall(text, arrays)


class CallsToSend:
    """The calls that one host has to tell others. Threads share it."""

    def __init__(self, own: int) -> None:
        self._own = own
        self._leader = own
        self._lock = threading.Lock()
        self._position = 0
        self._newest = 0
        self._kept: dict[StepCall, tuple[int, int, SaidCall]] = {}

    def add(self, origin: int, said: SaidCall) -> bool:
        """Add a call that `origin` has made; return whether it is new."""
        with self._lock:
            head = said.head
            if head in self._kept or head.step < self._newest - 1:
                return False
            if head.step > self._newest:
                self._newest = head.step
                self._kept = {key: each for key, each in self._kept.items() if key.step >= head.step - 1}
            self._position += 1
            self._kept[head] = self._position, origin, said
            return True

    def follow(self, leader: int) -> bool:
        """Note which host leads; return whether it is another one, to which all is sent again."""
        with self._lock:
            changed = leader != self._leader
            self._leader = leader
            if changed:
                for key, (_, origin, said) in self._kept.items():
                    self._position += 1
                    self._kept[key] = self._position, origin, said
            return changed

    def after(self, host: int, position: int) -> list[tuple[int, SaidCall]]:
        """Return (position, call) of those that a host has not been sent."""
        with self._lock:
            leads = self._leader == self._own
            return [
                (at, said)
                for at, origin, said in self._kept.values()
                if at > position
                and (origin != host if leads else (origin, self._leader) == (self._own, host))
            ]


class CallsAtHost:
    """The calls within a step at one host, as the replica that speaks for it passes them on."""

    def __init__(self, log: CallLog | None, board: Board, send: Callable[[SaidCall], None]) -> None:
        self._log = log
        self._board = board
        self._send = send
        self._number = 0
        self._here: set[int] = set()
        self._told: dict[int, int] = {}
        self._ended: set[int] = set()
        self._come: list[SaidCall] = []

    def receive(self, said: SaidCall) -> None:
        self._come.append(said)

    def poll(self, number: int, here: Collection[int]) -> bool:
        """Pass on what is new in round `number`; return whether other hosts have sent anything. Calls of the
        parts `here` are written at this host, so those that come from elsewhere are not.
        """
        log = self._log
        if log is None:
            return False
        if number != self._number:
            self._number, self._here, self._told, self._ended = number, set(), {}, set()
        self._here.update(here)
        for part in here:
            self._pass_on(log, part)
        now = [said for said in self._come if said.head.step + 1 == number]
        self._come = [said for said in self._come if said.head.step + 1 > number]
        for said in now:
            self._write(log, said)
        return bool(now)

    def _pass_on(self, log: CallLog, part: int) -> None:
        number = self._number
        is_complete = self._board.ready[part] == number
        for each in range(self._told.get(part, 0), log.made(part, number)):
            text, arrays = log.read(part, number, each)
            described = [(array.dtype.str, array.shape, array.tobytes()) for array in arrays]
            body = _encode((text, described))
            self._send(SaidCall(StepCall(step=number - 1, part=part, number=each, nbytes=len(body)), body))
            self._told[part] = each + 1
        if is_complete and part not in self._ended:
            self._ended.add(part)
            examples, made = self._board.examples[part], self._told.get(part, 0)
            self._send(SaidCall(StepCall(step=number - 1, part=part, number=made, examples=examples), b""))

    def _write(self, log: CallLog, said: SaidCall) -> None:
        head, number = said.head, self._number
        if head.part in self._here:
            return
        if head.examples >= 0:
            log.end(head.part, number, head.examples)
        elif log.made(head.part, number) == head.number:
            log.give(head.part, number, call_of(said))
