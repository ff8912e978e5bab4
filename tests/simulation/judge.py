"""Looks on after every event and knows by itself what every version must be: from the set of contributions alone.

One judge for each call of `fit`, and in it one account of every term.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from simulation.disk import Saved
from simulation.model import State, arrays_of, image, model
from simulation.scenario import Scenario
from simulation.truth import Gradient, Term, batches_done, mean

from dtrain.learning import optimizers
from dtrain.messages import AnyMessage, Push, Reply, Verdict
from dtrain.protocol.exactly_once import Seen
from dtrain.protocol.sync_round import quota
from dtrain.roles.parameter_server.async_pushes import AsyncPushes
from dtrain.roles.parameter_server.held import Held
from dtrain.roles.parameter_server.store import Store
from dtrain.roles.parameter_server.sync_pushes import SyncPushes
from dtrain.roles.parameter_server.table import VALUES
from dtrain.roles.worker.row_routes import Piece

Array = np.ndarray[Any, Any]


class Judge:
    """Safety. Every method raises AssertionError where a rule is broken."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.sync = scenario.training.updates == "sync"
        self.model = model(scenario.servers, scenario.rows, scenario.shards, scenario.optimizer)
        self.plan = self.model.plan
        self.needed = scenario.training.replicas_needed(scenario.replicas)
        self.quota = quota(self.needed, scenario.replicas)
        self._repeats = scenario.training.on_stale == "retry_same_batch"
        self._replicas = [*["chief:0"][: scenario.training.chief_trains], *(f"worker:{i}" for i in range(scenario.replicas))]
        self._terms: dict[int, Term] = {}
        self._held: dict[int, int] = {}
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._finite: set[int] = set()
        self._rows: dict[int, dict[int, Array]] = {}
        self._batches: dict[int, int] = {}
        self._contributions: dict[tuple[int, int, int, int, int], int] = {}

    def last_step(self, first_step: int) -> int:
        """Where this call of `fit` ends."""
        return first_step + self.scenario.max_steps

    # What the leader gives to the servers

    def begin_term(self, term: int, saved: Saved) -> None:
        """The leader gives a checkpoint to the servers, under a number that was never used."""
        assert not self._terms or term > max(self._terms), f"term {term} after {max(self._terms)}"
        known = [earlier.images for earlier in self._terms.values()]
        for server, state in enumerate(saved.states):
            seen = [images[server].values() for images in known]
            assert not known or any(state.image in images for images in seen), f"ps:{server} never held what it is given"
        self._terms[term] = Term(self.model, saved)

    def ordered(self, term: int, version: int, optimizer: optimizers.Optimizer) -> None:
        """From this version on every server must use these numbers, whatever was ordered before."""
        self._terms[term].ordered(version, optimizer)

    # What replicas send

    def pushed(self, rank: int, push: Push, finite: bool, read: Mapping[int, Array]) -> int:
        """A replica has computed a gradient with these rows of the table; returns the gradient's number."""
        number = len(self._numbers) + 1
        assert (rank, push.incarnation, push.sequence) not in self._numbers, f"two processes of one incarnation sent {push}"
        self._numbers[rank, push.incarnation, push.sequence] = number
        self._rows[number], self._batches[number] = dict(read), push.batch
        if finite:
            self._finite.add(number)
            self._contributions[push.term, rank, push.incarnation, push.base_version, push.ordinal] = number
        return number

    def _gradient(self, server: int, number: int) -> Gradient:
        ids = np.array(list(self._rows[number]), np.int64)
        rows = self.model.row_gradient(ids, number)
        return Gradient(self.model.gradient(server, number), dict(zip(ids.tolist(), rows.rows, strict=True)))

    # What servers hold

    def look_at(self, server: int, held: Held, rank: int, message: AnyMessage | None) -> None:
        """A server has dealt with a message of a rank, or with the time."""
        self._held[server] = held.term
        term = self._terms[held.term]
        known, held_image = term.newest[server], _image(held.store)
        if server == 0 and isinstance(message, Push) and rank >= 0 and message.base_version == known:
            term.offered.add(self._numbers[rank, message.incarnation, message.sequence])
        if held.pushes.version == known + 1:
            if isinstance(held.pushes, SyncPushes):
                self._committed(server, term, held.pushes, known)
            else:
                assert isinstance(message, Push), f"{message} made a version"
                assert message.term == held.term, f"{message} was applied in term {held.term}"
                self._apply(server, term, rank, message, held_image)
        else:
            assert held.pushes.version == known, f"ps:{server} went from version {known} to {held.pushes.version}"
        assert held_image == term.images[server][held.pushes.version], "what is held is not that of the contributors"
        assert held.pushes.version <= held.max_steps or (server > 0 and not self.sync)
        if isinstance(held.pushes, AsyncPushes) and held.pushes.gate is not None:
            self._check_gate(term, held.pushes)
        if server == 0:
            self._check_batches(term, held, rank, message)

    def _check_batches(self, term: Term, held: Held, rank: int, message: AnyMessage | None) -> None:
        """No batch is passed over: what is not dealt again was applied, refused, or too late and need not be repeated."""
        if isinstance(message, Push) and rank >= 0 and message.term == held.term:
            row = held.seen.lookup(self._replicas[rank], message.incarnation, message.sequence)
            decided = isinstance(row, Seen) and row.verdict not in (None, Verdict.PENDING)
            if decided and (row.verdict is not Verdict.STALE or not self._repeats):
                term.judged.add(message.batch)
        passed_over = set(batches_done(held.dealer.export())) - term.judged
        assert not passed_over, f"batches {passed_over} were never done"
        offered = {self._batches[number] for number in term.offered}
        stranded = {batch for batch, owner in held.dealer.given.items() if owner in held.dealer.lost} - offered
        assert not stranded, f"nobody will do batches {stranded}"

    def _committed(self, server: int, term: Term, pushes: SyncPushes, version: int) -> None:
        if server == 0:
            assert pushes._last_commit is not None
            self._check_contributors(pushes._last_commit.contributors, len(pushes._live))
            term.commits[version] = pushes._last_commit.contributors
            self._judge_offered(term, pushes, version)
        assert version in term.commits, f"ps:{server} is ahead of ps:0"
        made_by = [(rank, incarnation, version, ordinal) for rank, incarnation, ordinal in term.commits[version]]
        numbers = [self._contributions[pushes._term, *contribution] for contribution in made_by]
        term.made(server, term.next_state(server, mean([self._gradient(server, number) for number in numbers])))

    def _judge_offered(self, term: Term, pushes: SyncPushes, version: int) -> None:
        """A version was made: who lives and was too late is told so; what the dead have offered in vain is done by others."""
        for contribution, number in self._contributions.items():
            base, (rank, incarnation, ordinal) = contribution[3], (contribution[1], contribution[2], contribution[4])
            if contribution[0] == pushes._term and base == version and number in term.offered:
                counted = (rank, incarnation, ordinal) in term.commits[version]
                if counted or (rank in pushes._live and not self._repeats):
                    term.judged.add(self._batches[number])
        term.offered.clear()

    def _check_contributors(self, contributors: Sequence[tuple[int, int, int]], live: int) -> None:
        ranks = [rank for rank, _, _ in contributors]
        assert len(set(contributors)) == len(contributors)
        assert ranks == sorted(ranks)
        assert max(map(ranks.count, ranks)) <= self.quota, f"a rank counts too often in {contributors}"
        shrunk = self.scenario.training.too_few == "shrink" and live * self.quota < self.needed
        assert len(contributors) == self.needed or (shrunk and 0 < len(contributors) < self.needed), f"{contributors}"

    def _apply(self, server: int, term: Term, rank: int, push: Push, held: bytes) -> None:
        number, rule = self._numbers[rank, push.incarnation, push.sequence], self.scenario.training
        assert number in self._finite
        assert number not in term.applied[server], f"gradient {number} was applied twice on ps:{server}"
        assert server > 0 or rank == 0 or term.newest[server] >= rule.warmup_steps
        staleness = term.newest[server] - push.base_version
        assert rule.max_staleness is None or staleness <= rule.max_staleness, f"{push} is too stale to be applied"
        term.applied[server][number] = staleness
        scale = 1.0 / max(1, staleness) if rule.stale_gradients == "scale" else 1.0
        gradient = self._gradient(server, number)
        state = term.next_state(server, gradient, scale)
        if rule.stale_gradients == "compensate" and (not self.scenario.faults or state.image != held):
            # Where an answer was lost, a server may not know any more which weights a replica has.
            state = term.next_state(server, self._compensated(gradient, server, term, push, self._rows[number]))
        term.made(server, state)

    def _compensated(self, gradient: Gradient, server: int, term: Term, push: Push, read: Mapping[int, Array]) -> Gradient:
        states = term.states[server]
        now, then = states[term.newest[server]], states[push.base_version]
        rows = {
            row: table[VALUES][row - shard.row_start]
            for shard, table in zip(self.plan.layout(server).tables, now.tables, strict=True)
            for row in read
            if shard.trainable and shard.row_start <= row < shard.row_stop
        }
        mine = Gradient(gradient.dense, {row: gradient.rows[row] for row in rows})
        corrected = mine.compensated(self.scenario.training.compensation, Gradient(now.values, rows), Gradient(then.values, read))
        for index, group in enumerate(self.plan.layout(server).groups):
            if not group.trainable:
                corrected.dense[index] = gradient.dense[index]
        return corrected

    def _check_gate(self, term: Term, pushes: AsyncPushes) -> None:
        gate, bound = pushes.gate, self.scenario.training.staleness_bound
        assert gate is not None
        assert gate.accepted == pushes.version == term.first_version + len(term.applied[0])
        if self.scenario.harmless:
            assert gate.accepted + len(gate.holders) <= gate.max_steps, f"{gate} gives too many tickets"
        if bound is not None and gate.clocks:
            assert max(gate.clocks.values()) - min(gate.clocks.values()) <= bound + 1, f"clocks {gate.clocks}"

    # What replicas and the chief are told

    def check_values(self, server: int, term: int, version: int, blocks: Sequence[Array]) -> None:
        """Values that were received are one version of that server in that term, never a mixture."""
        truth = self._terms[term].states[server][version].values
        assert image(blocks) == image(truth), f"values of ps:{server} are not of version {version}"

    def check_rows(self, server: int, term: int, version: int, pieces: Sequence[Piece], blocks: Sequence[Array]) -> None:
        """So are rows of tables."""
        tables = self._terms[term].states[server][version].tables
        truth = [tables[piece.table][VALUES][piece.ids] for piece in pieces]
        assert image(blocks) == image(truth), f"rows of ps:{server} are not of version {version}"

    def check_saved(self, server: int, term: int, version: int, state: State) -> None:
        """And so is what was sent for a checkpoint, though it was read in many pieces."""
        assert state.image == self._terms[term].images[server][version], f"a checkpoint of ps:{server} is not of version {version}"

    def check_cut(self, term: int, versions: Sequence[int], live: Collection[tuple[int, int]]) -> None:
        """A checkpoint of an asynchronous run contains the same gradients of those who live: of these ranks' present incarnations.

        A push of one who was thought dead may count on some servers only. What is too stale each server judges by itself.
        """
        if self.sync or self.scenario.training.stale_gradients == "drop":
            return
        owners = {number: (rank, incarnation) for (rank, incarnation, _), number in self._numbers.items()}
        state = self._terms[term]
        cuts = [
            {number for number in list(applied)[: version - state.first_version] if owners[number] in live}
            for applied, version in zip(state.applied, versions, strict=True)
        ]
        assert all(cut == cuts[0] for cut in cuts), f"a checkpoint of versions {versions} is torn: {cuts}"

    def check_reply(self, server: int, rank: int, push: Push, reply: Reply) -> None:
        """The verdict is the truth."""
        number, term = self._numbers[rank, push.incarnation, push.sequence], self._terms[push.term]
        finite = number in self._finite
        assert (reply.verdict is Verdict.REFUSED) == (not finite), f"{reply} to a gradient that is finite: {finite}"
        if self.sync and finite:
            decided = term.commits.get(push.base_version)
            counts = decided is not None and (rank, push.incarnation, push.ordinal) in decided
            mine = sum(c[:2] == (rank, push.incarnation) for c in decided or ())
            if reply.verdict is Verdict.ACCEPTED:
                assert counts, f"{reply}, but {decided} made the version"
                assert reply.duplicate or reply.accepted == mine
            elif reply.verdict is Verdict.STALE:
                assert decided is not None
                assert not counts, f"{reply}, but {decided} made the version"
            else:
                assert reply.verdict is Verdict.PENDING
        elif finite:
            applied = term.applied[server].get(number)
            assert (reply.verdict is Verdict.ACCEPTED) == (applied is not None), f"{reply}, applied: {applied}"
            assert applied is None or reply.staleness == applied
            assert reply.verdict is not Verdict.FINISHED or not self.scenario.harmless, "a gradient for nothing"

    def check_end(self, saved: Saved | None) -> None:
        """Every step was made and saved, on every server.

        But for asynchronous pushes whose sender dies halfway, and where servers judge by themselves what is too stale.
        """
        assert saved is not None
        assert saved.final
        assert saved.version == self.last_step(saved.lineage.first_step)
        ends = {server: (term, self._terms[term].newest[server]) for server, term in self._held.items()}
        if self.sync or (self.scenario.harmless and self.scenario.training.max_staleness is None):
            assert set(ends.values()) == {(ends[0][0], saved.version)}, f"servers end in (term, version) {ends}"


def _image(store: Store) -> bytes:
    return image(arrays_of(store.values, store.slots, (table.arrays for table in store.tables)))
