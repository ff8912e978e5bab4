"""The actions that the machines of the control plane ask of their drivers."""

from collections.abc import Hashable, Sequence
from typing import Any, TypedDict

import msgspec
import numpy as np

from dtrain.cluster import TaskId
from dtrain.messages import AnyMessage, Commit, Release
from dtrain.protocol.part_dealer import NO_PART
from dtrain.runs.events import AnyEvent
from dtrain.state.fit_state import Open

Caller = Hashable
"""A connection, as a machine knows it: something to answer to."""


class NextTurn(TypedDict, total=False):
    """The next part of a replica, in the fields of `Reply` and `Values`; another server than the control
    host's says nothing of it.
    """

    ticket: bool
    part: int
    tally: Open
    repairs: bool
    speeds: tuple[int, ...]


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
