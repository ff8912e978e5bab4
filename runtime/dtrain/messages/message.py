"""The base of all messages, and the answer to a question that is not allowed."""

from enum import StrEnum

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Base of all messages."""


class RefusalKind(StrEnum):
    """The reason of a refusal, as far as a receiver decides by it."""

    MISTAKE = "mistake"
    """The sender asked for what it may not have, or for what does not fit."""
    TOO_FEW_REPLICAS = "too few replicas"
    """Training cannot go on, because too few replicas are alive."""
    ENDED = "ended"
    """The leader has ended training before its last step; or its program, or this process of it."""
    LOST = "lost"
    """The receiver was started again, and has lost what it is asked for."""
    NOT_LEADING = "not leading"
    """Another task leads, or none does yet: the sender may ask another one."""


class Refusal(Message, frozen=True, gc=False, kw_only=True):
    """The receiver will not do what was asked, and why. It is not a verdict on a gradient.

    Attributes:
        reason: one sentence for a person; programs decide by the kind.
        leads: the task that leads, if the receiver does not and has just heard from it.
    """

    reason: str
    kind: RefusalKind = RefusalKind.MISTAKE
    leads: str | None = None
