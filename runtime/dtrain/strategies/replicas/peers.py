"""The processes whose replicas train together, as a strategy of several processes offers them to loops."""

from collections.abc import Sequence
from typing import Protocol

from dtrain.strategies.replicas.calls import Call
from dtrain.types import Array


class Peers(Protocol):
    """All processes of a training, among them this one.

    Attributes:
        tasks: how many there are.
        number: of this one, from 0.
    """

    tasks: int
    number: int

    def exchange(self, call: Call, arrays: Sequence[Array]) -> list[list[Array]]:
        """Return the arrays of every process, by its number; shapes may differ.

        Every process makes the same call. Waits have a deadline, and errors say for whom they waited.

        Args:
            call: what the program calls, and where.
            arrays: of any dtype but object; read before this returns.

        Raises:
            CallsDifferError: the calls do not agree (`Call.agrees_with`); raised in every process.
        """

    def all_reduce(self, call: Call, arrays: Sequence[Array]) -> list[Array]:
        """Return the sums of arrays that have one shape and dtype everywhere, added up in order of numbers.

        Raises:
            CallsDifferError: the calls do not agree; raised in every process.
        """
