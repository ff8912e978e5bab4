"""The outcome of a contribution."""

import msgspec

from dtrain.messages import Verdict


class Outcome(msgspec.Struct, frozen=True):
    """The servers' joint judgement of one gradient: of several the gravest verdict and the largest staleness.

    In sync they agree, by the rule *One decision* (docs/design/protocol.md#one-decision).
    """

    verdict: Verdict
    staleness: int = 0
    accepted: int = 0
    stale: int = 0
    reason: str | None = None
