"""A server's handling of pushes: one protocol, whether updates are synchronous or asynchronous."""

from collections.abc import Sequence
from typing import Protocol

from dtrain.control.interface import Action, Caller
from dtrain.messages import Push
from dtrain.types import Array


class UpdateRule(Protocol):
    """The way from gradients to versions of one server's variables; `AsyncRule` and `SyncRule` are the two.

    Attributes:
        version: the newest version.
    """

    version: int

    def push(
        self,
        caller: Caller,
        replica: str,
        rank: int,
        push: Push,
        blocks: Sequence[Array],
        now: float,
        *,
        again: bool,
    ) -> list[Action]:
        """Deal with a gradient that has passed every check.

        Args:
            caller, replica, rank: who has sent it.
            push: the message.
            blocks: `[group]`, each flat and of the group's dtype and size; the sender's memory until it is
                answered.
            now: seconds.
            again: whether it has been seen before, and its verdict is still open.
        """

    def shown_to(self, rank: int, whole: bool = False) -> Sequence[Array]:
        """Return the newest values, `[group]`, for a replica that goes on from them; see `Store.shown`."""

    def rows_for(self, rank: int | None, tables: Sequence[int], ids: Sequence[Array]) -> list[Array]:
        """Return the newest rows of tables, flat, for the replica of a rank or for another task."""

    def end_at(self, version: int) -> list[Action]:
        """Make this version the last one; answer the replicas that wait for a later one."""

    def disconnected(self, caller: Caller) -> None:
        """Answer nothing more on a connection that is gone."""

    def waiting(self) -> list[Caller]:
        """Return the connections on which the next version is waited for."""
