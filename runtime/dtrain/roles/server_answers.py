"""Checks of a server's answers, before a task goes by them. Pure.

A server that answers otherwise runs another version of dtrain, or lies. The task ends by the server's name.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dtrain.errors import InputError, PeerRefusedError
from dtrain.messages import AnyMessage, HeartbeatReply, Marked, Reply, SnapshotReply, Values
from dtrain.protocol import tally
from dtrain.state.batch_cut import MISSING_MAX
from dtrain.types import Blocks

NUMBER_MAX = 2**63
"""No count, step, term or incarnation reaches it, and one more can still be sent."""
_FROM_0 = {
    Values: ("generation", "version", "max_steps", "term", "first_step"),
    Reply: ("version", "staleness", "accepted", "stale"),
    HeartbeatReply: ("incarnation", "generation", "version", "term", "max_steps"),
    SnapshotReply: ("version",),
}

Kind = tuple[np.dtype[Any] | str, int]
"""A block's dtype and elements."""


def check_numbers(server: str, message: AnyMessage) -> None:
    """Refuse (PeerRefusedError) numbers below their least value, or too large to be counts."""
    counts = message.state if isinstance(message, SnapshotReply) else message
    for name in _FROM_0.get(type(message), ()):
        if not 0 <= (found := getattr(counts, name)) < NUMBER_MAX:
            raise _odd(server, message, f"{name} {found}")
    if isinstance(message, Values | Reply):
        if not -1 <= message.part < NUMBER_MAX:
            raise _odd(server, message, f"part {message.part}")
        try:
            for _, sums in message.tally:
                tally.check(sums)
        except InputError as error:
            raise _odd(server, message, str(error)) from None
    for parts in (message.parts, *message.rest[:1]) if isinstance(message, Values) else ():
        if not 1 <= parts < NUMBER_MAX:
            raise _odd(server, message, f"{parts} parts")


def check_marks(marks: Sequence[Marked]) -> None:
    """Refuse (PeerRefusedError) servers that are further ahead of another than can be."""
    newest = [mark.applied[0] for mark in marks]
    if min(newest) < 0 or max(newest) - min(newest) > MISSING_MAX:
        raise PeerRefusedError(
            f"the servers say that they contain batches up to {newest}, of which none can be below 0 or "
            f"{MISSING_MAX} beyond another"
        )


def check_blocks(server: str, what: str, blocks: Blocks, expected: Iterable[Kind]) -> None:
    """Refuse (PeerRefusedError) blocks of other dtypes and sizes than are expected."""
    wanted = [(np.dtype(dtype), size) for dtype, size in expected]
    if [(block.dtype, block.size) for block in blocks] != wanted:
        found = [(block.dtype, block.size) for block in blocks]
        raise PeerRefusedError(
            f"{server} sent {what} of {_in_words(found)}, where {_in_words(wanted)} were expected: do all "
            "tasks build the same model?"
        )


def _in_words(kinds: Sequence[Kind]) -> str:
    shown = [f"{size} {dtype}" for dtype, size in kinds[:8]]
    return ", ".join([*shown, "..."] if len(kinds) > 8 else shown) or "no elements"


def _odd(server: str, message: AnyMessage, what: str) -> PeerRefusedError:
    return PeerRefusedError(
        f"{server} answered {type(message).__name__} with {what}, which can be none: do both ends run the "
        "same version?"
    )
