"""The batches that a server has applied in one call of `fit`, in asynchronous training.

By the rule *Exactly once* (docs/design/protocol.md#exactly-once) a batch counts once on every server:

1. A server applies a batch that it lacks and passes over one that it has, whichever replica pushes it, and
   however often.
2. Batches are dealt in the order of their numbers, so only few below the highest are missing: those under
   way, and those that were settled without being applied, because they were too stale or not finite.
3. The latter are forgotten at every checkpoint: `forget_below` a number below which all are settled.
4. The applied batches are part of a checkpoint. Two servers contain the same batches where they are equal.
"""

from collections.abc import Iterable, Sequence

from dtrain.state.batch_cut import MISSING_MAX
from dtrain.state.fit_state import Batches

FAR = 1 << 16
"""The limit by which a batch may be ahead of all batches that a server has seen."""


class AppliedBatches:
    """The batches that a server contains: all below `next`, one more than the highest, but `missing`."""

    __slots__ = ("missing", "next")

    def __init__(self, following: int = 0, missing: Iterable[int] = ()) -> None:
        self.next = following
        self.missing = set(missing)

    def __contains__(self, batch: int) -> bool:
        return 0 <= batch < self.next and batch not in self.missing

    def add(self, batch: int) -> bool:
        """Record that a batch is applied; return True unless it was before, or cannot have been dealt."""
        if batch == self.next:
            self.next += 1
            return True
        if batch in self.missing:
            self.missing.discard(batch)
            return True
        if batch < self.next or self.obstacle(batch) is not None:
            return False
        self.missing.update(range(self.next, batch))
        self.next = batch + 1
        return True

    def obstacle(self, batch: int) -> str | None:
        """Return why a batch cannot have been dealt; None if it can."""
        ahead = batch - self.next
        if ahead < FAR and (ahead <= 0 or len(self.missing) + ahead <= MISSING_MAX):
            return None
        return (
            f"batch {batch} is {ahead} beyond the newest one here, where {len(self.missing)} are missing; "
            f"at most {FAR} and {MISSING_MAX} make sense between two checkpoints"
        )

    def forget_below(self, settled: int) -> None:
        """Take every batch below a number for applied: all are settled, and none of them will be pushed."""
        self.next = max(self.next, settled)
        self.missing = {batch for batch in self.missing if batch >= settled}

    def covers(self, batches: Batches) -> bool:
        following, missing = batches
        if following - self.next > len(missing):
            return False
        lacking = [batch for batch in self.missing if batch < following]
        lacking += range(self.next, following)
        return not set(lacking).difference(missing)

    def export(self) -> Batches:
        return self.next, tuple(sorted(self.missing))


def union(tables: Iterable[Batches]) -> Batches:
    known = [AppliedBatches(*table) for table in tables]
    following = max([each.next for each in known], default=0)
    candidates = {batch for each in known for batch in each.missing} | set(
        range(min([each.next for each in known]), following)
    )
    missing = [batch for batch in candidates if not any(batch in each for each in known)]
    return following, tuple(sorted(missing))


def without(batches: Batches, others: Iterable[int]) -> Batches:
    following, missing = batches
    return following, tuple(sorted({*missing, *(batch for batch in others if batch < following)}))


def lacking(tables: Sequence[Batches]) -> list[int]:
    """Return, ascending, the batches that the first server contains and another one lacks."""
    first, *others = [AppliedBatches(*table) for table in tables] or [AppliedBatches()]
    found = {batch for other in others for batch in (*other.missing, *range(other.next, first.next))}
    return sorted(batch for batch in found if batch in first)
