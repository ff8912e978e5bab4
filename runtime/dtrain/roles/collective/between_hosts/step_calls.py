"""The collective calls within a step on their way between hosts.

The rule *Calls within a step* (docs/design/collectives.md#calls-within-a-step): what the parts that are
computed at a host give goes to the host that leads, and from there to all others, where it lies in the same
place of their memory. It is kept for the step after it as well: no host is further behind.
"""

import threading
from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec
import numpy as np

from dtrain.collectives.board import Board
from dtrain.errors import PeerRefusedError
from dtrain.messages.between_hosts import StepCall
from dtrain.roles.collective.between_hosts.calls import nbytes_of
from dtrain.roles.collective.call_log import CallLog, GivenCall

LARGEST_BYTES = 64 << 20
"""The arrays of one call take so much at most."""
LONGEST_BYTES = LARGEST_BYTES + (1 << 20)
"""The most bytes that follow a `StepCall`."""
_Described = tuple[bytes, list[tuple[str, tuple[int, ...], bytes]]]
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_Described)


class SaidCall(NamedTuple):
    """A call of a part, or its end, and the bytes that follow the message."""

    head: StepCall
    body: bytes


def call_of(said: SaidCall) -> GivenCall:
    """Return the call that another host has described.

    Raises:
        PeerRefusedError: it describes none.
    """
    try:
        text, described = _decoder.decode(said.body)
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
        """Have none, at this host."""
        self._own = own
        self._leader = own
        self._lock = threading.Lock()
        self._position = 0
        self._newest = 0
        self._kept: dict[StepCall, tuple[int, int, SaidCall]] = {}

    def add(self, origin: int, said: SaidCall) -> bool:
        """Keep a call that is made at a host, `origin`, or has come from there; return whether it is new."""
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
        """Take note which host leads; return whether it is another one, to which all is to be sent again."""
        with self._lock:
            changed = leader != self._leader
            self._leader = leader
            if changed:
                for key, (_, origin, said) in self._kept.items():
                    self._position += 1
                    self._kept[key] = self._position, origin, said
            return changed

    def after(self, host: int, position: int) -> list[tuple[int, SaidCall]]:
        """Return what a host is to be sent now, of what was kept after a position, each with its own."""
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
        """Begin.

        Args:
            log: of the host; None: no step of this training makes calls.
            board: of the same.
            send: takes what is to go to other hosts.
        """
        self._log = log
        self._board = board
        self._send = send
        self._number = 0
        self._here: set[int] = set()
        self._told: dict[int, int] = {}
        self._ended: set[int] = set()
        self._come: list[SaidCall] = []

    def take(self, said: SaidCall) -> None:
        """Keep what has come from another host until its round begins."""
        self._come.append(said)

    def look(self, number: int, here: Collection[int]) -> bool:
        """Pass on what is new in round `number`, where the parts `here` are computed at this host.

        Such a part has its writer here, so what comes of it from elsewhere is not written.

        Returns:
            Whether there is anything new from other hosts.
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
        """Tell other hosts which calls a part has made, and of its end."""
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
