"""The time at which a server that was told to stop may go. Pure.

Rule *Orderly end* (docs/design/protocol.md#orderly-end): whoever tells every task of a run to stop at once,
as cluster managers do, loses no step, because servers outlive the leader's last checkpoint. A server that is
told alone gives its leader time for a checkpoint.
"""

from dataclasses import dataclass

LINGER_S = 2.0
"""How long after a checkpoint: the leader may have been told as well, and be about to save its last step."""
MARGIN_S = 2.0
"""How long before the end of the grace, when the process would be killed."""


@dataclass
class Departure:
    """One server's leave.

    Attributes:
        told_s: when it was told to stop.
        grace_s: how long after that it is killed.
        version: the newest one at that time.
    """

    told_s: float
    grace_s: float
    version: int
    _saved_s: float | None = None

    def may_leave(self, leader_is_there: bool, saved_step: int | None, now_s: float) -> bool:
        """Return whether no task would miss the server, or its time is over.

        Args:
            leader_is_there: whether the leader is connected.
            saved_step: of the newest checkpoint that the leader has told of; None: of none.
            now_s: by the clock of `told_s`.
        """
        if not leader_is_there or now_s >= self.told_s + max(0.0, self.grace_s - MARGIN_S):
            return True
        if self._saved_s is None and saved_step is not None and saved_step >= self.version:
            self._saved_s = now_s
        return self._saved_s is not None and now_s >= self._saved_s + LINGER_S
