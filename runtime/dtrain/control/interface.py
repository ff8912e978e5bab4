"""The interface of the control plane: the actions that machines ask of drivers, and the steps of a term."""

from collections.abc import Collection, Hashable, Sequence, Set
from typing import Any, Protocol

import msgspec
import numpy as np

from dtrain.cluster import TaskId
from dtrain.messages import AnyMessage, Commit, Refusal, Release
from dtrain.protocol.part_dealer import NO_PART, PartDealer
from dtrain.protocol.tally import Tally
from dtrain.runs.events import AnyEvent
from dtrain.state.fit_state import Open

Caller = Hashable
"""A connection, as a machine knows it: something to answer to."""


class Send(msgspec.Struct, frozen=True):
    """Answer on a connection. The blocks may be a server's own memory: the driver copies them before anything
    changes.
    """

    caller: Caller
    message: AnyMessage
    blocks: Sequence[np.ndarray[Any, Any]] = ()


class Report(msgspec.Struct, frozen=True):
    """Tell the control host, from another task."""

    message: AnyMessage


class Redeliver(msgspec.Struct, frozen=True):
    """Hand a message that has waited back to the machine, as if it came now."""

    caller: Caller
    sender: TaskId
    message: AnyMessage
    blocks: Sequence[np.ndarray[Any, Any]]


class Decide(msgspec.Struct, frozen=True):
    """Have the control host's own part carry out a decision, after the other servers were sent it.

    `part` is what the control plane has dealt to the replica of a `Release`.
    """

    message: Commit | Release
    part: int = NO_PART


class Note(msgspec.Struct, frozen=True):
    """Keep an event in the trace."""

    event: AnyEvent


class End(msgspec.Struct, frozen=True):
    """Stop serving; `failed` says why if it is not because all is done."""

    failed: str | None = None


Later = Redeliver | Decide
"""What the machine goes on with when all that stands before it has been carried out: it may change the memory
that an answer is made of.
"""

Action = Send | Report | Later | Note | End


class Steps(Protocol):
    """The host's part in making versions; `AsyncSteps` and `SyncSteps` have it."""

    dealer: PartDealer
    tally: Tally
    failed: Refusal | None

    @property
    def version(self) -> int: ...

    @property
    def held_back(self) -> bool:
        """Whether the next version waits for the leader, and this one has been made on every server."""

    @property
    def too_few(self) -> bool:
        """Whether the replicas that are alive cannot make the next version."""

    @property
    def awaits_others(self) -> bool:
        """Whether another server may not have reached the version at which training stands."""

    @property
    def standing(self) -> Hashable:
        """All that `permit` depends on beside what each rank has done: while it stays, refusals stay."""

    def permit(self, rank: int) -> tuple[bool, int]:
        """Return whether a replica may push next, and the part that it is to compute."""

    def refused(self, rank: int, part: int) -> tuple[bool, int]:
        """Note that the gradient of a part was not finite; return as `permit`."""

    def repairs_next(self, rank: int) -> bool:
        """Return whether the part that a replica is to push next makes no step."""

    def confirm(self, rank: int, sequence: int) -> None:
        """Note that all servers have answered a replica's pushes up to this one."""

    def told_to(self, rank: int) -> Open:
        """Return the sums of the epochs that have not ended, to the leader alone."""

    def awaited(self) -> tuple[Collection[int], Collection[int]]: ...

    def members_changed(self, live: Set[int], anew: Collection[int], now: float) -> list[Action]:
        """Note that only the ranks in `live` are alive or expected; those in `anew` are new processes."""

    def share_out(self, now: float) -> list[Action]:
        """Deal what has become free to replicas that wait."""

    def judge(self, now: float) -> list[Action]:
        """Decide, or give up waiting for replicas that are not there: time has passed (`now`, seconds)."""

    def hold(self) -> int:
        """Let no version be made but those under way; return the one after them."""

    def release(self, until: int | None) -> None:
        """Go on, to this version; None: to the end."""

    def end_at(self, version: int) -> None:
        """Make this version the last one."""
