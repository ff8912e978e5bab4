"""Other processes as peers: those of one host call through memory that all of them map, others on streams."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np

from dtrain.strategies.replicas.calls import Call, check_calls
from dtrain.types import Array


class CollectiveCalls(Protocol):
    """The way of one process to the others; see `roles.collective.calls.Calls`."""

    def exchange(self, said: bytes, arrays: Sequence[Array]) -> list[list[Array]]:
        """See `Calls.exchange`."""

    def all_reduce(self, said: bytes, arrays: Sequence[Array]) -> list[Array]:
        """See `Calls.all_reduce`."""


class PeerProcesses:
    """All processes of a training, one replica each, among them this one. They meet at the first call.

    Attributes:
        tasks: how many processes there are.
        number: of this one, from 0.
    """

    def __init__(self, tasks: int, number: int, meet: Callable[[], CollectiveCalls]) -> None:
        """Take part; `meet` waits for the other processes and returns the way to them."""
        self.tasks = tasks
        self.number = number
        self._meet = meet
        self._calls: CollectiveCalls | None = None

    def exchange(self, call: Call, arrays: Sequence[Array]) -> list[list[Array]]:
        """Return the arrays of every process, by its number; shapes may differ.

        Every process makes the same call. Waits have a deadline, and errors say for whom they waited.

        Args:
            call: what the program calls, and where.
            arrays: of any dtype but object; read before this returns.

        Raises:
            CallsDifferError: the calls do not agree (`Call.agrees_with`); raised in every process.
        """
        return self._made().exchange(said_of(call), contiguous(arrays))

    def all_reduce(self, call: Call, arrays: Sequence[Array]) -> list[Array]:
        """Return the sums of arrays that have one shape and dtype everywhere, added up in order of numbers.

        Large sums may not be written to.

        Raises:
            CallsDifferError: the calls do not agree; raised in every process.
        """
        return self._made().all_reduce(said_of(call), contiguous(arrays))

    def _made(self) -> CollectiveCalls:
        if self._calls is None:
            self._calls = self._meet()
        return self._calls


def check(said: Mapping[int, bytes]) -> None:
    """Raise a `CallsDifferError` that names two places, unless calls of all ranks agree; see `Calls`."""
    check_calls(
        {rank: Call(*msgspec.msgpack.decode(each, type=tuple[str, str, str])) for rank, each in said.items()}
    )


def said_of(call: Call) -> bytes:
    """Return a call as it is written for the others."""
    return msgspec.msgpack.encode((call.kind, call.what, call.site))


def contiguous(arrays: Sequence[Array]) -> list[Array]:
    """Return arrays as collective calls take them."""
    return [np.ascontiguousarray(each).reshape(each.shape) for each in arrays]
