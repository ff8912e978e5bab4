"""A server's handling of pushes in asynchronous training (docs/design/protocol.md#asynchronous-updates,
docs/design/protocol.md#exactly-once).

Machine: no socket, no thread, no clock. Every server applies a batch on arrival, unless it has it already.
The control host's server besides asks the control plane, in the same process, who may push next; it refuses
what comes without permission and judges what is too stale.
"""

from collections.abc import Sequence

from dtrain.config import AsyncSection
from dtrain.config.choices import StaleGradients
from dtrain.control.async_steps import AsyncSteps
from dtrain.control.interface import Action, Caller, Send
from dtrain.messages import Push, Reply, Verdict
from dtrain.parameters.store import Store
from dtrain.protocol.applied_batches import AppliedBatches
from dtrain.protocol.async_updates import DelayCompensation, StalenessRule
from dtrain.protocol.contributions import Seen, SeenPushes
from dtrain.protocol.part_dealer import NO_PART
from dtrain.types import Array, Blocks


class AsyncRule:
    """Gradients applied as they come; see `UpdateRule`.

    Attributes:
        version: how many were applied.
        max_steps: the last version.
        applied: which batches the variables contain.
        rule: what becomes of a stale gradient; only the control host's server refuses one.
    """

    def __init__(
        self,
        store: Store,
        seen: SeenPushes,
        steps: AsyncSteps | None,
        training: AsyncSection,
        *,
        version: int,
        max_steps: int,
        applied: AppliedBatches,
    ) -> None:
        """Begin a term.

        Args:
            store: what is updated.
            seen: the newest push of each replica.
            steps: at the control host.
            training: the rules.
            version, max_steps: as in `Initialise`.
            applied: what `store` contains.
        """
        self.version = version
        self.max_steps = max_steps
        self.applied = applied
        self.rule = StalenessRule(training.stale_gradients, None if steps is None else training.max_staleness)
        self._store = store
        self._seen = seen
        self._steps = steps
        compensate = training.stale_gradients == StaleGradients.COMPENSATE
        self._compensation = DelayCompensation(training.compensation, store.trainable) if compensate else None

    def push(
        self, caller: Caller, replica: str, rank: int, push: Push, blocks: Blocks, now: float, *, again: bool
    ) -> list[Action]:
        """See `UpdateRule.push`; every push is answered at once."""
        version, steps = self.version, self._steps
        admitted = steps is None or steps.admits(rank, push.part)
        if admitted:
            verdict, staleness = self._judge_and_apply(rank, push, blocks)
        else:
            assert steps is not None
            verdict, staleness = steps.without_ticket(rank, push.part), 0
        self._seen.record(replica, Seen(push.incarnation, push.sequence, verdict, staleness))
        if steps is None:
            reply = Reply(
                verdict=verdict,
                version=self.version,
                staleness=staleness,
                accepted=int(verdict is Verdict.ACCEPTED),
                stale=int(verdict is Verdict.STALE),
                part=NO_PART,
            )
        else:
            steps.judged(rank, push, verdict, new=self.version > version, admitted=admitted)
            ticket, part = steps.permit(rank)
            reply = Reply(
                verdict=verdict,
                version=self.version,
                staleness=staleness,
                accepted=int(verdict is Verdict.ACCEPTED),
                stale=int(verdict is Verdict.STALE),
                ticket=ticket,
                part=part,
                tally=steps.told_to(rank),
                repairs=steps.repairs_next(rank),
            )
        return [Send(caller, reply, self.shown_to(rank))]

    def _judge_and_apply(self, rank: int, push: Push, blocks: Blocks) -> tuple[Verdict, int]:
        """Apply a batch, unless this server has it.

        Servers that do not host the control plane ask for no permission: what the host refuses for lack of it
        is dealt again there.
        """
        version = self.version
        if version >= self.max_steps:
            return (Verdict.ACCEPTED if push.part in self.applied else Verdict.FINISHED), 0
        staleness = max(0, version - push.base_version)
        verdict, rate_scale = self.rule.judge(staleness)
        if verdict is Verdict.ACCEPTED:
            if not self.applied.add(push.part):
                return verdict, 0
            if self._compensation is not None and staleness:
                tables = self._store.trained_tables
                blocks = self._compensation.compensate(
                    rank, push.base_version, blocks, self._store.values, tables
                )
            self._store.apply(blocks, version, rate_scale)
            self.version += 1
        return verdict, staleness

    def shown_to(self, rank: int, whole: bool = False) -> Blocks:
        """See `UpdateRule.shown_to`."""
        if self._compensation is not None:
            self._compensation.remember(rank, self.version, self._store.values)
        return self._store.shown(self.version, whole)

    def rows_for(self, rank: int | None, tables: Sequence[int], ids: Blocks) -> list[Array]:
        """See `UpdateRule.rows_for`."""
        rows = self._store.look_up(tables, ids)
        if self._compensation is not None and rank is not None:
            for table, listed in zip(tables, ids, strict=True):
                self._compensation.remember_rows(rank, table, listed, self._store.tables[table].values)
        return rows

    def end_at(self, version: int) -> list[Action]:
        """See `UpdateRule.end_at`; no replica waits."""
        self.max_steps = version
        return []

    def disconnected(self, caller: Caller) -> None:
        """No-op: the replica comes back, or its lease runs out."""

    def waiting(self) -> list[Caller]:
        """Return none: every push is answered at once."""
        return []
