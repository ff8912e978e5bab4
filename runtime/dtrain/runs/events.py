"""The events of a trace, which machines emit as actions, by name and with their own fields.

The same words are printed by a simulation, logged by `logging.getLogger("dtrain")`, and written to the run
directory (`dtrain.runs.trace`). Rules in docs/reference/trace.md.
"""

from typing import TypeAlias

import msgspec


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=str.lower):
    """One thing that has happened at one moment."""

    def __str__(self) -> str:
        fields = ", ".join(f"{name} {getattr(self, name)}" for name in self.__struct_fields__)
        return f"{self.__struct_config__.tag}: {fields}"


class TermBegun(TraceEvent, frozen=True, tag="term begun"):
    """All servers have their variables for the `term`-th time in this run; training begins from `step`."""

    term: int
    step: int


class MemberJoined(TraceEvent, frozen=True, tag="member joined"):
    """The control plane has let a task in."""

    member: str
    incarnation: int


class MemberLost(TraceEvent, frozen=True, tag="member lost"):
    """A lease has run out, or a connection was closed without a goodbye."""

    member: str


class MemberLeft(TraceEvent, frozen=True, tag="member left"):
    """A task has said goodbye."""

    member: str


class DecidedEvent(TraceEvent, frozen=True, tag="decided"):
    """The contributions of a synchronous step are chosen."""

    step: int
    ranks: tuple[int, ...]


class Disconnected(TraceEvent, frozen=True, tag="disconnected"):
    """A connection to a peer has broken."""

    peer: str
    reason: str


class Reconnected(TraceEvent, frozen=True, tag="reconnected"):
    """A peer answers again, after `after_s`."""

    peer: str
    after_s: float


class Saved(TraceEvent, frozen=True, tag="saved"):
    """A checkpoint is complete on disk; `why` it was written."""

    step: int
    why: str


class CutTaken(TraceEvent, frozen=True, tag="cut taken"):
    """A server remembers its state, at its version `step`, for a checkpoint; it is not `whole` where the
    server could not wait for the state that was asked for.
    """

    step: int
    whole: bool


class ConfigChanged(TraceEvent, frozen=True, tag="config changed"):
    """An order of the leader (a learning rate, assigned values, an end) has a step from which it holds."""

    step: int
    stops: bool


AnyEvent: TypeAlias = (
    TermBegun
    | MemberJoined
    | MemberLost
    | MemberLeft
    | DecidedEvent
    | Disconnected
    | Reconnected
    | CutTaken
    | Saved
    | ConfigChanged
)
"""The decoder of a line of a trace."""
