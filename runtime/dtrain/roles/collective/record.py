"""The standing of a training with backups in shared memory; only the process that holds its lock changes it.

It is written to two places in turn, and a word names the valid one: a reader finds either the old standing or
the new one, never a mixture.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from dtrain.collectives.backups import Standing
from dtrain.collectives.board import Column
from dtrain.errors import InputError
from dtrain.types import Array

_LENGTH_BYTES = 8
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Standing)


class StandingRecord:
    """The record, as one process reads and writes it.

    Attributes:
        places: two, for bytes.
        number: of the newest one that this process has read or written; it grows.
    """

    def __init__(self, words: Column, places: Sequence[Array]) -> None:
        """Use a word and two places for bytes."""
        self._words = words
        self.places = places
        self.number = -1

    @property
    def has_changed(self) -> bool:
        """Whether there is a newer one than this process knows."""
        return self._words[0] != self.number

    def read(self) -> Standing:
        """Return the newest one."""
        while True:
            number = self._words[0]
            place = self.places[number % 2]
            length = int.from_bytes(place[:_LENGTH_BYTES].tobytes(), "little")
            told = place[_LENGTH_BYTES : _LENGTH_BYTES + length].tobytes()
            if self._words[0] == number:
                self.number = number
                return _decoder.decode(told)

    def write(self, standing: Standing) -> None:
        """Write a new standing; the caller holds the lock on it.

        Raises:
            InputError: it is too long.
        """
        told = _encoder.encode(standing)
        number = self._words[0] + 1
        place = self.places[number % 2]
        if _LENGTH_BYTES + len(told) > place.size:
            raise InputError(
                f"the sums of epochs that have not ended take {len(standing.sums)} bytes; expected at most "
                f"{place.size - _LENGTH_BYTES} with all else: use metrics with smaller states"
            )
        whole = len(told).to_bytes(_LENGTH_BYTES, "little") + told
        place[: len(whole)] = np.frombuffer(whole, np.uint8)
        self._words[0] = self.number = number
