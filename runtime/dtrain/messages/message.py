"""What every message is, and the answer to a question that is not allowed."""

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Base of all messages."""


class Refusal(Message, frozen=True, gc=False, kw_only=True):
    """The receiver will not do what was asked, and why. The sender's mistake, not a verdict on a gradient."""

    reason: str
