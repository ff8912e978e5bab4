"""The leader's machine: where it begins, and when the servers must be given their variables again. Pure.

Rule *Terms* (docs/design/protocol.md#terms):

1. All servers hold the same term of the same generation. One that says otherwise was started again and has
  lost its memory.
2. Then the leader begins a new term: the newest checkpoint on *every* server, so that all go on from one
  version.
3. Terms only rise, also from one process of the leader to the next.
4. What a server says counts if it was asked after the term had begun everywhere.
5. The leader remembers which tasks ps:0 had heard of, and tells the next ps:0: a task that is not heard of
  again within a lease is dead.
6. A leader that is started again passes over every `fit` before the one that the servers, or the newest
  checkpoint, are in.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from dtrain.messages import HeartbeatReply

Answer = tuple[float, HeartbeatReply]
"""The last answer of a server about itself, and when it was asked, in seconds."""


class Beginning(Enum):
    """The way in which a leader begins a call of `fit`."""

    PASS_OVER = "pass over"
    """It has ended before this process was started."""
    ATTACH = "attach"
    """The servers are training it."""
    RESTORE = "restore"
    """It was begun, and must be given to the servers again from its newest checkpoint."""
    START = "start"
    """It is new."""


def beginning(fit: int, servers: Sequence[HeartbeatReply], saved: int) -> Beginning:
    """Return how the leader begins.

    Args:
        fit: which call of `fit` of the program this is, from 1.
        servers: each server's report.
        saved: the generation of the newest checkpoint; 0 without one.
    """
    reached = max([saved, *(reply.generation for reply in servers)])
    if reached > fit:
        return Beginning.PASS_OVER
    if reached < fit:
        return Beginning.START
    together = len({(reply.generation, reply.term) for reply in servers}) == 1
    return Beginning.ATTACH if servers and together and servers[0].generation == fit else Beginning.RESTORE


def next_term(servers: Iterable[HeartbeatReply], own: int, incarnation: int) -> int:
    """Return a term later than all that were begun before.

    Args:
        servers: each server's report.
        own: the last term that this leader has begun, or tried to.
        incarnation: of the leader, which rises from process to process.
    """
    return max(incarnation, own, *(reply.term for reply in servers)) + 1


@dataclass
class TermWatch:
    """Looks for servers that have lost the term.

    Attributes:
        since_s: when the term had begun everywhere.
        host: the server that hosts the control plane.
        heard_of: what ps:0 said of this last while it held the term.
    """

    generation: int
    term: int
    since_s: float
    heard_of: tuple[str, ...] = ()
    host: int = 0

    def lost(self, answers: Sequence[Answer]) -> list[int]:
        """Return the servers that do not hold the term, by the newest answers."""
        term = (self.generation, self.term)
        own = answers[self.host][1]
        if (own.generation, own.term) == term:
            self.heard_of = own.heard_of
        return [
            i
            for i, (asked_s, said) in enumerate(answers)
            if asked_s > self.since_s and (said.generation, said.term) != term
        ]
