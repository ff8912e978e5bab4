"""A record in shared memory, which one process at a time changes: how a training with backups stands, or what
a host has promised to others.

It is written to two places in turn, and a word names the valid one: a reader finds either the old record or
the new one, never a mixture.
"""

from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

import msgspec
import numpy as np

from dtrain.collectives.backups import Standing
from dtrain.collectives.between_hosts.follower import Promise
from dtrain.collectives.board import Column
from dtrain.errors import InputError
from dtrain.types import Array

_LENGTH_BYTES = 8
_encoder = msgspec.msgpack.Encoder()
_Kind = TypeVar("_Kind", Standing, Promise)


def put_bytes(place: Array, told: bytes) -> None:
    """Write bytes to the beginning of a place, behind their length.

    Raises:
        InputError: they are too long.
    """
    if _LENGTH_BYTES + len(told) > place.size:
        raise InputError(
            f"what the replicas of a host keep of a step and of sums of metrics takes {len(told)} bytes; "
            f"expected at most {place.size - _LENGTH_BYTES}: use metrics with smaller states"
        )
    whole = len(told).to_bytes(_LENGTH_BYTES, "little") + told
    place[: len(whole)] = np.frombuffer(whole, np.uint8)


def bytes_in(place: Array) -> bytes:
    """Return a copy of the bytes that `put_bytes` has written last."""
    length = int.from_bytes(place[:_LENGTH_BYTES].tobytes(), "little")
    return place[_LENGTH_BYTES : _LENGTH_BYTES + length].tobytes()


class _Record(Generic[_Kind]):
    """The record, as one process reads and writes it.

    Attributes:
        places: two, for bytes.
        number: of the newest one that this process has read or written; it grows.
    """

    _kind: ClassVar[type]

    def __init__(self, words: Column, places: Sequence[Array]) -> None:
        """Use a word and two places for bytes."""
        self._words = words
        self._decoder: msgspec.msgpack.Decoder[_Kind] = msgspec.msgpack.Decoder(self._kind)
        self.places = places
        self.number = -1

    @property
    def has_changed(self) -> bool:
        """Whether there is a newer one than this process knows."""
        return self._words[0] != self.number

    def read(self) -> _Kind:
        """Return the newest one."""
        while True:
            number = self._words[0]
            place = self.places[number % 2]
            told = bytes_in(place)
            if self._words[0] == number:
                self.number = number
                return self._decoder.decode(told)

    def write(self, record: _Kind) -> None:
        """Write a new one; the caller holds the lock on it.

        Raises:
            InputError: it is too long.
        """
        number = self._words[0] + 1
        put_bytes(self.places[number % 2], _encoder.encode(record))
        self._words[0] = self.number = number


class StandingRecord(_Record[Standing]):
    """The standing of a training with backups."""

    _kind = Standing


class PromiseRecord(_Record[Promise]):
    """The promise of a host."""

    _kind = Promise
