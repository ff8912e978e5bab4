"""Messages between servers, by the rule *One decision* (docs/design/protocol.md#one-decision)."""

from dtrain.messages.message import Message


class Complete(Message, frozen=True, gc=False, kw_only=True):
    """ps:i to ps:0: this server holds the contribution whole."""

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
    """ps:0 to ps:i: these contributions, in the order of their parts, make `version + 1`. Idempotent.

    `parts` is the divisor of their mean: also the parts of the batch that have no examples count (`weighting:
    replicas`).
    """

    generation: int
    version: int
    contributors: tuple[tuple[int, int, int], ...]
    term: int = 0
    parts: int = 0


class Release(Message, frozen=True, gc=False, kw_only=True):
    """ps:0 to ps:i: answer this contribution's replica now, which has another part to compute. Idempotent."""

    generation: int
    version: int
    contribution: tuple[int, int, int]
    term: int = 0
