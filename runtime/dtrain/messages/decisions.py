"""Between servers: one decision for all of them. Rule 2."""

from dtrain.messages.message import Message


class Complete(Message, frozen=True, gc=False, kw_only=True):
    """ps:i to ps:0: I hold this contribution whole. Rule 2."""

    generation: int
    rank: int
    incarnation: int
    version: int
    ordinal: int
    term: int = 0


class Subscribe(Message, frozen=True, gc=False, kw_only=True):
    """ps:i to ps:0: send me every commit from this version of this generation and term on."""

    generation: int
    version: int
    term: int = 0


class Commit(Message, frozen=True, gc=False, kw_only=True):
    """ps:0 to ps:i: these contributions, in the order of their parts, make `version + 1`. Idempotent. Rule 2.

    `parts` is the divisor of their mean: also the parts of the batch that have no examples count (`weighting:
        replicas`).
    """

    generation: int
    version: int
    contributors: tuple[tuple[int, int, int], ...]
    term: int = 0
    parts: int = 0


class Release(Message, frozen=True, gc=False, kw_only=True):
    """ps:0 to ps:i: the replica of this contribution has another part to compute for `version`: answer it
    now. Idempotent.
    """

    generation: int
    version: int
    contribution: tuple[int, int, int]
    term: int = 0
