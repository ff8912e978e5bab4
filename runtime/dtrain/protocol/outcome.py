"""The outcome of one contribution."""

import msgspec

from dtrain.messages import Verdict


class Outcome(msgspec.Struct, frozen=True):
    """The servers' joint judgement of one gradient.

    Attributes:
        verdict: the gravest, where several servers judge; in sync they agree, by the rule *One decision*
            (docs/design/protocol.md#one-decision).
        staleness: the largest.
        accepted: contributions of this replica that the last version contains.
        stale: contributions that came too late.
        reason: why it was refused.
    """

    verdict: Verdict
    staleness: int = 0
    accepted: int = 0
    stale: int = 0
    reason: str | None = None
