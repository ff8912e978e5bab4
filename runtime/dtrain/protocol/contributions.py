"""Contributions of replicas: a push counts at most once, and each has one outcome.

The rule *Exactly once* (docs/design/protocol.md#exactly-once), as far as pushes go:

1. A push is (replica, incarnation, sequence). A replica sends one push at a time; its next sequence is one
   higher.
2. The first arrival is new. A later arrival of the same push is a duplicate and is answered with the first
   verdict.
3. An older sequence, and an older incarnation, is refused: no replica waits for its answer any more.
4. The table is part of a checkpoint: a restored server remembers what the restored variables contain.
"""

import msgspec

from dtrain.messages import Verdict


class Seen(msgspec.Struct, frozen=True):
    """The newest push of one replica and its verdict; None while it is undecided (sync: until the commit)."""

    incarnation: int
    sequence: int
    verdict: Verdict | None = None
    staleness: int = 0


class SeenPushes:
    """The table, one row a replica."""

    def __init__(self, rows: dict[str, Seen] | None = None) -> None:
        self._rows = dict(rows or {})

    def lookup(self, replica: str, incarnation: int, sequence: int) -> Seen | str | None:
        """Return None for a new push, the row of a duplicate, or the reason for which a push is refused."""
        row = self._rows.get(replica)
        if row is None or incarnation > row.incarnation:
            return None
        if incarnation < row.incarnation:
            return (
                f"{replica} is known as incarnation {row.incarnation}; this push comes from incarnation "
                f"{incarnation}"
            )
        if sequence < row.sequence:
            return f"{replica} has sent push {row.sequence} already; push {sequence} is older"
        return row if sequence == row.sequence else None

    def record(self, replica: str, seen: Seen) -> None:
        self._rows[replica] = seen

    def decide(self, replica: str, verdict: Verdict) -> None:
        row = self._rows.get(replica)
        if row is not None and row.verdict is None:
            self._rows[replica] = Seen(row.incarnation, row.sequence, verdict, row.staleness)

    def export(self) -> list[tuple[str, int, int]]:
        return [
            (name, row.incarnation, row.sequence)
            for name, row in sorted(self._rows.items())
            if row.verdict is not None
        ]

    @classmethod
    def restore(cls, rows: list[tuple[str, int, int]]) -> "SeenPushes":
        return cls(
            {name: Seen(incarnation, sequence, Verdict.ACCEPTED) for name, incarnation, sequence in rows}
        )


class Outcome(msgspec.Struct, frozen=True):
    """The servers' joint judgement of one gradient: of several the gravest verdict and the largest staleness.

    In sync they agree, by the rule *One decision* (docs/design/protocol.md#one-decision).
    """

    verdict: Verdict
    staleness: int = 0
    accepted: int = 0
    stale: int = 0
    reason: str | None = None
