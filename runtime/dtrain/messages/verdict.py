"""The verdict on a push."""

from enum import StrEnum


class Verdict(StrEnum):
    """The verdict on a push."""

    ACCEPTED = "accepted"
    """It is part of a version."""
    PENDING = "pending"
    """Sync with quotas: held for the version that is being made; contribute again to the same version."""
    STALE = "stale"
    """Not applied: it came too late (async: after its replica was thought dead) or was too old (async)."""
    REFUSED = "refused"
    """It breaks the rules (shape, plan, non-finite values) and was not applied; `reason` says which."""
    FINISHED = "finished"
    """Training has reached its last step; it was not applied."""
    VOID = "void"
    """The servers have gone back to a checkpoint: whatever it was, it is not part of what they hold now."""
