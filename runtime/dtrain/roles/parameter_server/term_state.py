"""The state of a server in one term: variables, their update rule, the table of pushes."""

from math import inf

import msgspec

from dtrain.cluster import Role
from dtrain.config import AsyncSection, ServerSection
from dtrain.control.async_steps import AsyncSteps
from dtrain.control.interface import NextTurn
from dtrain.control.machine import ControlPlane
from dtrain.control.roster import Steps
from dtrain.control.sync_steps import SyncSteps
from dtrain.errors import InputError
from dtrain.learning.core.drawn_table import DrawnTable
from dtrain.messages import Initialise, Lineage, Marked, Push, Refusal, Reply, Row, Verdict
from dtrain.parameters.compression import Compression
from dtrain.parameters.placement import Plan
from dtrain.parameters.store import Store
from dtrain.parameters.versions import BufferAllocator
from dtrain.protocol import tally
from dtrain.protocol.applied_batches import AppliedBatches
from dtrain.roles.parameter_server.update_rules import AsyncRule, Seen, SeenPushes, SyncRule
from dtrain.state.batch_cut import NOTHING_DEALT, UNCUT, BatchCut
from dtrain.state.fit_state import NO_BATCHES, Contents, FitState
from dtrain.types import Blocks


class TermState(msgspec.Struct, kw_only=True):
    """The variables of one term, and the rule by which they change.

    Attributes:
        begun: the state from which the term went on, without the plan; for checkpoints.
        max_steps: the last version; a change of the configuration may lower it.
        order: the number of the newest change of the configuration that was carried out.
        stopped: whether it has ended training.
    """

    begun: FitState
    generation: int
    term: int
    plan: Plan
    training: ServerSection
    max_steps: int
    directory: str
    store: Store
    seen: SeenPushes
    rule: SyncRule | AsyncRule
    steps: Steps | None
    order: tuple[int, int] = (0, 0)
    stopped: bool = False

    @classmethod
    def from_message(
        cls,
        message: Initialise,
        blocks: Blocks,
        *,
        server: int,
        control: ControlPlane,
        allocator: BufferAllocator,
    ) -> "TermState":
        """Begin a term. `blocks` are `[group]` flat values, then `[slot][trainable group]`. Raises a
        DtrainError if plan, optimizer and blocks do not fit together.
        """
        state = message.state
        plan = Plan.from_dict(state.plan or {})
        training = message.training
        servers = control.cluster.count(Role.PS)
        if plan.servers != servers:
            raise InputError(f"a plan for {plan.servers} servers, and the cluster has {servers}")
        store = _store(message, blocks, plan, server, training, allocator)
        seen = SeenPushes.restore([row for table in state.seen for row in table])
        steps = control.steps_of(message, training)
        return cls(
            begun=state.but(plan=None),
            generation=state.generation,
            term=message.term,
            plan=plan,
            training=training,
            max_steps=state.max_steps,
            directory=message.directory,
            store=store,
            seen=seen,
            rule=_rule(message, training, store, seen, steps),
            steps=steps,
        )

    # How training stands

    @property
    def lineage(self) -> Lineage:
        return self.begun.lineage

    @property
    def version(self) -> int:
        return self.rule.version

    @property
    def failed(self) -> Refusal | None:
        return None if self.steps is None else self.steps.failed

    @property
    def awaits_others(self) -> bool:
        """Whether the present version has not been made on every server; known at the control host."""
        return self.steps is not None and self.steps.awaits_others

    @property
    def finished(self) -> bool:
        """Whether the last version has been made, at the control host on every server."""
        return self.rule.version >= self.max_steps and not self.awaits_others

    @property
    def held_back(self) -> bool:
        if self.steps is not None:
            return self.steps.held_back
        return isinstance(self.rule, SyncRule) and self.rule.held_back

    @property
    def cut(self) -> BatchCut:
        return UNCUT if self.steps is None else self.steps.dealer.cut

    @property
    def history(self) -> dict[int, dict[int, Row]]:
        """The numbers of every epoch that has ended, by call of `fit`; known at the control host."""
        if self.steps is None:
            return {}
        tally = self.steps.tally
        own = {self.generation: tally.rows} if tally.kept and tally.rows else {}
        return {**self.begun.history, **own}

    @property
    def state(self) -> FitState:
        """All that a checkpoint holds of this server beside its arrays."""
        steps, applied = self.steps, self.applied
        return self.begun.but(
            version=self.version,
            max_steps=self.max_steps,
            optimizer=self.store.optimizer_config,
            dealt=NOTHING_DEALT if steps is None else steps.dealer.export(),
            tally=() if steps is None else steps.tally.open(),
            history=self.history,
            seen=(tuple(self.seen.export()),),
            contents=() if applied is None else (Contents(self.version, applied.export()),),
        )

    # What the leader changes

    def hold(self) -> int:
        """Make no version except those under way; return the one after them."""
        version = self.rule.version if self.steps is None else self.steps.hold()
        if isinstance(self.rule, SyncRule):
            self.rule.until = version
        return version

    def release(self, until: int | None) -> None:
        if self.steps is not None:
            self.steps.release(until)
        if isinstance(self.rule, SyncRule):
            self.rule.until = until

    # Checkpoints

    @property
    def applied(self) -> AppliedBatches | None:
        """The batches that the variables contain, in async."""
        return self.rule.applied if isinstance(self.rule, AsyncRule) else None

    @property
    def halved(self) -> bool:
        """Whether the servers contain different batches for good, in async; known at the control host."""
        return isinstance(self.steps, AsyncSteps) and self.steps.halved is not None

    def marked(self) -> Marked:
        steps = self.steps
        if self.applied is None:
            return Marked(applied=NO_BATCHES)
        if not isinstance(steps, AsyncSteps):
            return Marked(applied=self.applied.export())
        return Marked(applied=self.applied.export(), again=steps.again, settled=steps.settled_below)

    # Pushes

    def received(self, replica: str, message: Push, blocks: Blocks) -> Blocks:
        """Return a push's blocks without compression; raise an `InputError` if it does not fit."""
        if message.plan_hash != self.plan.hash:
            raise InputError(
                f"{replica} pushes by plan {message.plan_hash}, the run's is {self.plan.hash}: do all tasks "
                "build the same model?"
            )
        try:
            if min(message.examples, message.empty, message.ordinal, message.base_version) < 0:
                raise InputError("a number of examples, empty parts, contributions or versions is below 0")
            if message.steps < 1 or not 0 <= message.step_s < inf:
                raise InputError("it is of no steps, or these took no time that there is")
            if not message.examples and isinstance(self.rule, AsyncRule):
                raise InputError("it is of no examples, and no batch is in async")
            if isinstance(self.rule, AsyncRule) and (far := self.rule.applied.obstacle(message.part)):
                raise InputError(far)
            if message.sums is not None:
                tally.check(message.sums)
            if not message.examples:
                return ()
            blocks = self.store.received(blocks)
        except InputError as error:
            raise InputError(f"a gradient of {replica} does not fit: {error}") from None
        if message.base_version > self.rule.version:
            raise InputError(
                f"{replica} pushes from version {message.base_version}, the newest is {self.rule.version}"
            )
        return blocks

    def next_turn(self, rank: int) -> NextTurn:
        return {} if self.steps is None else self.steps.next_turn(rank)

    def refuse(self, replica: str, rank: int, message: Push) -> tuple[Reply, Blocks]:
        self.seen.record(replica, Seen(message.incarnation, message.sequence, Verdict.REFUSED))
        steps = self.steps
        turn: NextTurn = {} if steps is None else steps.refused(rank, message.part)
        reason = f"the gradient of {replica} from version {message.base_version} holds NaN or infinity"
        if self.halved:
            reason += "; other servers may have its batch, so all go back to the newest checkpoint"
        reply = Reply(
            verdict=Verdict.REFUSED,
            version=self.rule.version,
            reason=reason,
            inner=self.store.optimizer.inner,
            **turn,
        )
        return reply, self.rule.shown_to(rank)

    def repeat(self, rank: int, row: Seen) -> tuple[Reply, Blocks]:
        """Answer a push that was judged before: the first verdict, the newest values."""
        assert row.verdict is not None
        reply = Reply(
            verdict=row.verdict,
            version=self.rule.version,
            staleness=row.staleness,
            duplicate=True,
            accepted=int(row.verdict is Verdict.ACCEPTED),
            stale=int(row.verdict is Verdict.STALE),
            reason="a repeated gradient held NaN or infinity" if row.verdict is Verdict.REFUSED else None,
            inner=None if row.verdict is Verdict.PENDING else self.store.optimizer.inner,
            **self.next_turn(rank),
        )
        # One that is pending goes on computing with the values that it has.
        return reply, () if row.verdict is Verdict.PENDING else self.rule.shown_to(rank)


def _store(
    message: Initialise,
    blocks: Blocks,
    plan: Plan,
    server: int,
    training: ServerSection,
    allocator: BufferAllocator,
) -> Store:
    layout = plan.layout(server)
    dense = len(layout.groups)
    store = Store(
        layout,
        message.state.optimizer,
        blocks[:dense],
        origin=message.state.lineage.origin,
        max_steps=message.state.max_steps,
        allocator=allocator,
        compression=Compression.of(training.compression),
    )
    if message.slots:
        store.restore_slots(message.slots, blocks[dense:])
    for table in store.tables:
        variable = plan.variables[table.shard.variable]
        for name, description in message.drawn.get(variable.name, {}).items():
            table.drawn[name] = DrawnTable.described(description, variable.shape)
    return store


def _rule(
    message: Initialise, training: ServerSection, store: Store, seen: SeenPushes, steps: Steps | None
) -> SyncRule | AsyncRule:
    state = message.state
    if isinstance(training, AsyncSection):
        assert steps is None or isinstance(steps, AsyncSteps)
        return AsyncRule(
            store,
            seen,
            steps,
            training,
            version=state.version,
            max_steps=state.max_steps,
            applied=AppliedBatches(*(state.contents[0].batches if state.contents else state.dealt[1:3])),
        )
    assert steps is None or isinstance(steps, SyncSteps)
    return SyncRule(store, seen, steps, training, message)
