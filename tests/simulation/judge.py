"""Looks on after every event and knows by itself what every version must be: from the set of contributions alone.

One judge for each call of `fit`, and in it one account of every term.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from simulation.accounts import Accounts
from simulation.data import Row
from simulation.dealing import Dealing
from simulation.disk import Saved
from simulation.model import State, arrays_of, image, model
from simulation.scenario import Scenario
from simulation.truth import Commit, Gradient, Term, mean

from dtrain.learning import optimizers
from dtrain.messages import AnyMessage, Push, Reply, Verdict
from dtrain.protocol.exactly_once import Seen
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
        self.data = scenario.data
        self._repeats = scenario.training.on_stale == "retry_same_batch"
        self._replicas = [*["chief:0"][: scenario.training.chief_trains], *(f"worker:{i}" for i in range(scenario.replicas))]
        self._terms: dict[int, Term] = {}
        self._held: dict[int, int] = {}
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._finite: set[int] = set()
        self._rows: dict[int, dict[int, Array]] = {}
        self._parts: dict[int, int] = {}
        self._dealing = Dealing(scenario, self.data, self._parts)
        self._accounts = Accounts(scenario)
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
        self._terms[term] = Term(self.model, saved, self._terms.get(saved.term))

    def ordered(self, term: int, version: int, optimizer: optimizers.Optimizer) -> None:
        """From this version on every server must use these numbers, whatever was ordered before."""
        self._terms[term].ordered(version, optimizer)

    # What replicas send

    @property
    def next_number(self) -> int:
        """Of the next gradient."""
        return len(self._numbers) + 1

    def pushed(self, rank: int, push: Push, finite: bool, read: Mapping[int, Array]) -> int:
        """A replica has computed a gradient with these rows of the table; returns the gradient's number."""
        number = self.next_number
        assert (rank, push.incarnation, push.sequence) not in self._numbers, f"two processes of one incarnation sent {push}"
        self._numbers[rank, push.incarnation, push.sequence] = number
        self._rows[number], self._parts[number] = dict(read), push.part
        self._accounts.examples[number] = push.examples
        assert push.examples == self.data.examples(push.part), f"{push} of a part of {self.data.examples(push.part)}"
        if finite:
            self._finite.add(number)
        if finite and push.examples:
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
        if server == 0 and isinstance(message, Push) and rank >= 0 and message.term == held.term:
            self._offered(term, rank, message, known)
        if server == 0 and isinstance(held.pushes, SyncPushes) and held.pushes._step is not None:
            term.fewest_live = min(term.fewest_live, len(held.pushes._step.decision.live))
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
        assert held.pushes.version <= held.max_steps
        if isinstance(held.pushes, AsyncPushes) and held.pushes.gate is not None:
            self._check_gate(term, held.pushes)
        if server == 0:
            self._check_parts(term, held, rank, message)
            self._accounts.check(term, held)

    def _offered(self, term: Term, rank: int, push: Push, known: int) -> None:
        number = self._numbers[rank, push.incarnation, push.sequence]
        if number not in self._finite:
            term.refused.add(push.part)
        elif self.sync and push.examples and push.base_version == known:
            term.offered.add(number)

    def _check_parts(self, term: Term, held: Held, rank: int, message: AnyMessage | None) -> None:
        """No part is passed over: what is not dealt again was applied, refused, or too late and need not be repeated."""
        assert held.dealer is not None
        if isinstance(message, Push) and rank >= 0 and message.term == held.term:
            row = held.seen.lookup(self._replicas[rank], message.incarnation, message.sequence)
            decided = isinstance(row, Seen) and row.verdict not in (None, Verdict.PENDING)
            if decided and (row.verdict is not Verdict.STALE or not self._repeats):
                term.judged.add(message.part)
            if decided and row.verdict is Verdict.FINISHED:
                term.too_many.add(self._numbers[rank, message.incarnation, message.sequence])
        self._dealing.check_left(term, held.dealer.export())
        self._dealing.check_owners(term, held)

    def _committed(self, server: int, term: Term, pushes: SyncPushes, version: int) -> None:
        if server == 0:
            assert pushes._last_commit is not None
            assert pushes._step is not None
            contributors = pushes._last_commit.contributors
            made_by = [(rank, incarnation, version, ordinal) for rank, incarnation, ordinal in contributors]
            numbers = tuple(self._contributions[pushes._term, *contribution] for contribution in made_by)
            empty = self._dealing.check_commit(term, numbers, contributors)
            term.commits[version], term.counted[version] = Commit(contributors, numbers, empty), list(numbers)
            self._judge_offered(term, pushes._step.decision.live, version)
            term.fewest_live = len(pushes._step.decision.live)
        assert version in term.commits, f"ps:{server} is ahead of ps:0"
        self._made_of(server, term, term.commits[version])

    def _made_of(self, server: int, term: Term, commit: Commit) -> None:
        """The mean over parts, or over examples."""
        by_examples = self.scenario.training.weighting == "examples"
        weights = [self._accounts.examples[number] if by_examples else 1 for number in commit.numbers]
        values = term.states[server][term.newest[server]].values
        groups = self.plan.layout(server).groups
        state = {index: value for index, (group, value) in enumerate(zip(groups, values, strict=True)) if not group.trainable}
        gradients = [self._gradient(server, number) for number in commit.numbers]
        gradient = mean(gradients, weights, 0 if by_examples else commit.empty, state)
        term.made(server, term.next_state(server, gradient))

    def _judge_offered(self, term: Term, live: Collection[int], version: int) -> None:
        """A version was made: who lives and was too late is told so; what the dead have offered in vain is done by others."""
        for contribution, number in self._contributions.items():
            base, (rank, incarnation, ordinal) = contribution[3], (contribution[1], contribution[2], contribution[4])
            if self._terms[contribution[0]] is term and base == version and number in term.offered:
                counted = (rank, incarnation, ordinal) in term.commits[version].contributors
                if counted or (rank in live and not self._repeats):
                    term.judged.add(self._parts[number])
        term.offered.clear()

    def _apply(self, server: int, term: Term, rank: int, push: Push, held: bytes) -> None:
        number, rule = self._numbers[rank, push.incarnation, push.sequence], self.scenario.training
        assert number in self._finite
        assert number not in term.applied[server], f"gradient {number} was applied twice on ps:{server}"
        assert server > 0 or rank == 0 or term.newest[server] >= rule.warmup_steps
        staleness = term.newest[server] - push.base_version
        assert push.part not in term.batches[server], f"batch {push.part} is applied twice on ps:{server}"
        if server == 0:
            assert rule.max_staleness is None or staleness <= rule.max_staleness, f"{push} is too stale to be applied"
        term.batches[server].add(push.part)
        term.applied[server][number] = staleness
        if server == 0:
            term.counted[term.newest[server]] = [number]
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

    def check_table(self, server: int, term: int, version: int, pieces: Sequence[Piece], blocks: Sequence[Array]) -> None:
        """So are rows of tables."""
        tables = self._terms[term].states[server][version].tables
        truth = [tables[piece.table][VALUES][piece.ids] for piece in pieces]
        assert image(blocks) == image(truth), f"rows of ps:{server} are not of version {version}"

    def check_saved(self, server: int, term: int, version: int, state: State) -> None:
        """And so is what was sent for a checkpoint, though it was read in many pieces."""
        assert state.image == self._terms[term].images[server][version], f"a checkpoint of ps:{server} is not of version {version}"

    def check_cut(self, term: int, versions: Sequence[int]) -> None:
        """A checkpoint of an asynchronous run contains the same batches of all servers."""
        assert self.sync or len(set(versions)) == 1, f"a checkpoint of versions {versions} is torn"

    def check_reply(self, server: int, rank: int, push: Push, reply: Reply) -> None:
        """The verdict is the truth."""
        number, term = self._numbers[rank, push.incarnation, push.sequence], self._terms[push.term]
        finite = number in self._finite
        assert (reply.verdict is Verdict.REFUSED) == (not finite), f"{reply} to a gradient that is finite: {finite}"
        if self.sync and finite:
            commit = term.commits.get(push.base_version)
            decided = commit.contributors if commit else None
            counts = decided is not None and (rank, push.incarnation, push.ordinal) in decided
            mine = sum(c[:2] == (rank, push.incarnation) for c in decided or ())
            if not push.examples:
                assert not counts
            elif reply.verdict is Verdict.ACCEPTED:
                assert counts, f"{reply}, but {decided} made the version"
                assert reply.duplicate or reply.accepted == mine
            elif reply.verdict is Verdict.STALE:
                assert decided is not None
                assert not counts, f"{reply}, but {decided} made the version"
            else:
                assert reply.verdict is Verdict.PENDING
        elif finite:
            applied = term.applied[server].get(number)
            contained = push.part in term.batches[server]
            assert contained or reply.verdict is not Verdict.ACCEPTED, f"{reply}, and ps:{server} lacks batch {push.part}"
            assert applied is None or reply.staleness == applied
            assert reply.verdict is not Verdict.FINISHED or not self.scenario.harmless, "a gradient for nothing"

    def check_rows(self, rows: Mapping[int, Row]) -> None:
        """Whoever ends is told the same numbers of every epoch: those of what counted."""
        self._accounts.check_end(self._terms[self._held[0]], rows)

    def check_end(self, saved: Saved | None) -> None:
        """Every step was made and saved, on every server.

        But for asynchronous pushes whose sender dies halfway, and where servers judge by themselves what is too stale.
        """
        assert saved is not None
        assert saved.final
        assert saved.version == self.last_step(saved.lineage.first_step)
        ends = {server: (term, self._terms[term].newest[server]) for server, term in self._held.items()}
        assert set(ends.values()) == {(ends[0][0], saved.version)}, f"servers end in (term, version) {ends}"
        if not self.sync:
            batches = self._terms[ends[0][0]].batches
            assert all(each == batches[0] for each in batches), f"servers end with batches {batches}"


def _image(store: Store) -> bytes:
    return image(arrays_of(store.values, store.slots, (table.arrays for table in store.tables)))
