"""Looks on from outside: sees what travels, what is on the disk and what programs print, and knows what was
promised of them.

It knows no machine and no rule by which one keeps a promise, so that machines and drivers can change under
it. What values contain they say themselves (`units`), so that a checkpoint that was restored decides by
itself what counts. A promise that is not kept yet is passed over in silence (`promises.OPEN`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from simulation.data import batches_of, starts_of
from simulation.disk import Saved
from simulation.judging.assignments import Assignments
from simulation.judging.dealing import Dealing
from simulation.judging.evaluations import Evaluations
from simulation.judging.histories import Histories
from simulation.judging.promises import OPEN, Broken, Promise
from simulation.judging.term import TermSeen
from simulation.judging.units import Counts
from simulation.model import image
from simulation.network import Blocks, Wire
from simulation.scenario import Scenario
from simulation.setup import Setup

from dtrain.messages import AnyMessage, Control, Initialise, Push, Reply, Row, Rows, Snapshot, Values, Verdict

Array = np.ndarray[Any, Any]
SENT = {Push, Initialise, Control, Snapshot}
ANSWERED = {Values, Reply, Rows}


class Judge:
    """Every method raises `Broken` where a promise is broken that is not among those that are open.

    Attributes:
        evaluations: what the evaluator does.
    """

    def __init__(self, scenario: Scenario, open_promises: frozenset[tuple[str, Promise]] = OPEN) -> None:
        self.scenario = scenario
        self.rule = scenario.training
        self.sync = self.rule.updates == "sync"
        self.terms: dict[int, TermSeen] = {}
        self._open = open_promises
        self._setup: Setup | None = None
        self._disk: Saved | None = None
        self._kind = self.rule.updates
        self._begun: dict[int, Setup] = {}
        self._cut_in = 0
        self._asked: dict[Wire, Push] = {}
        self._dealing: dict[int, Dealing] = {}
        self._histories = Histories(self)
        self._assignments = Assignments(self)
        self.evaluations = Evaluations(self)

    def demand(self, promise: Promise, kept: Any, text: str) -> None:
        """Raise `Broken` unless a promise is kept, or is known not to be yet."""
        if not kept and (self._kind, promise) not in self._open:
            raise Broken(f"{promise.name}: {promise.value}: {text}")

    def begins(self, setup: Setup) -> None:
        """The run begins, or is resumed on another cluster."""
        self._setup = setup

    # What travels

    def sent(self, wire: Wire, message: AnyMessage, blocks: Blocks) -> None:
        """A task has sent this to a server."""
        if type(message) not in SENT:
            return
        server = wire.server.index
        if isinstance(message, Push):
            self._asked[wire] = message
            self.terms[message.term].pushers[server, message.part].add(wire.task)
            self._dealing[message.generation].pushed(self.terms[message.term], message)
        elif isinstance(message, Initialise):
            self._begin_term(message)
            self.terms[message.term].begins_at(server, message.state.version)
        elif isinstance(message, Control):
            self.terms[message.term].ordered(server, message, blocks)
            self._assignments.ordered(self.terms[message.term], message)
        elif isinstance(message, Snapshot):
            self._cut_in = message.term

    def answered(self, wire: Wire, message: AnyMessage, blocks: Blocks) -> None:
        """A server has answered this."""
        if type(message) not in ANSWERED:
            return
        server = wire.server.index
        if server == 0 and isinstance(message, Values | Reply) and message.ticket and message.part >= 0:
            self._shares(message, self._asked[wire].term if isinstance(message, Reply) else message.term)
        if isinstance(message, Values) and blocks:
            term = self.terms[message.term]
            self._shows(term, server, message.version, blocks)
            if server == 0 and message.ticket:
                self._dealing[term.generation].given(wire.task, message.part, wire.network.clock.now)
        elif isinstance(message, Reply) and wire.kind == "data":
            self._replies(wire, server, self._asked[wire], message, blocks)
        elif isinstance(message, Rows) and wire.kind == "data":
            self._check_rows(wire, server, blocks)

    def _shares(self, message: Values | Reply, number: int) -> None:
        """ps:0 has said how a round is shared by speed; in one term it always says the same."""
        term = self.terms[number]
        if term.cut.speeds is not None and message.speeds:
            round_number = message.part // term.parts
            before = term.cut.speeds.setdefault(round_number, message.speeds)
            text = f"round {round_number} is shared by {before}, and by {message.speeds}"
            self.demand(Promise.ONCE, before == message.speeds, text)

    def _begin_term(self, message: Initialise) -> None:
        assert self._setup is not None
        saved = self._disk
        assert saved is not None
        state = message.state
        if message.term not in self.terms:
            assert not self.terms or message.term > max(self.terms), (
                f"term {message.term} after {max(self.terms)}"
            )
            earlier = [term for term in self.terms.values() if term.generation == state.generation]
            begun = self._begun[state.generation]
            term = self.terms[message.term] = TermSeen(self._setup, message, saved.states, begun, self.demand)
            for before in earlier:
                term.contents |= {
                    version: found for version, found in before.contents.items() if version < state.version
                }
            if self.sync:
                term.contents[state.version] = self._counts_of(term, saved)[0]
            self._dealing.setdefault(state.generation, Dealing(self)).begin_term(term)
            self._assignments.begin_term(term)

    def _replies(self, wire: Wire, server: int, push: Push, reply: Reply, blocks: Blocks) -> None:
        term = self.terms[push.term]
        self._dealing[term.generation].replied(wire.task, server, reply, wire.network.clock.now)
        if (reply.verdict is Verdict.REFUSED) == push.finite:
            self.demand(Promise.VERDICT, False, f"{reply} to {push}")
        # A part may be pushed by two replicas: the answer to the one that made the version may be lost with it.
        first = (server, reply.version) not in term.made_by
        first = first and term.pushers[server, push.part] == {wire.task}
        if not self.sync and reply.verdict is Verdict.ACCEPTED and not reply.duplicate and first:
            term.made_by[server, reply.version] = push.part, reply.staleness
            self._check_rule(term, server, wire.task, push, reply)
        if blocks:
            counts = self._shows(term, server, reply.version, blocks)
            if reply.verdict is Verdict.ACCEPTED and push.examples and not reply.duplicate:
                rows = list(term.cut.rows(push.part))
                self.demand(Promise.VERDICT, counts[rows].all(), f"{reply} to {push}: it is not contained")

    def _check_rule(self, term: TermSeen, server: int, task: str, push: Push, reply: Reply) -> None:
        """A push was applied: so many others were before it since its values were pulled, and so many had its
        sender sent.
        """
        rule, staleness = self.rule, reply.version - 1 - push.base_version
        if server > 0:
            return
        if reply.staleness != max(0, staleness):
            self.demand(Promise.RULE, False, f"{reply} to {push}: {staleness} were applied between")
        if rule.stale_gradients == "drop" and rule.max_staleness is not None:
            self.demand(
                Promise.RULE,
                staleness <= rule.max_staleness,
                f"{push} was applied {staleness} versions later",
            )
        first = term.setup.cluster.replicas(rule.chief_trains)[0]
        warm = reply.version > rule.warmup_steps or task == str(first)
        self.demand(
            Promise.RULE, warm, f"{task} made version {reply.version} of {rule.warmup_steps} of the warm-up"
        )
        self.demand(
            Promise.STEP, reply.version <= term.last_step, f"version {reply.version} of {term.last_step}"
        )

    # What servers hold

    def _shows(self, term: TermSeen, server: int, version: int, blocks: Blocks) -> Counts:
        """A server has these values at this version."""
        held = image(blocks)
        for seen in term.shown[server, version].values():
            if seen == held:
                return term.counts[server, version]
        counts, mark, _ = term.units.in_values(server, blocks)
        known = term.shown[server, version].setdefault(mark, held)
        self.demand(
            Promise.IMAGE,
            known == held,
            f"ps:{server} has shown two states of version {version} of term {term.number}",
        )
        self._look_at(
            term, server, version, counts, f"ps:{server} at version {version} of term {term.number}"
        )
        self._grows(term, server, version, counts)
        self._check_bits(term, server, version, [blocks], slots=False)
        term.counts[server, version] = counts
        return counts

    def _look_at(self, term: TermSeen, server: int, version: int, counts: Counts, where: str) -> None:
        twice = np.flatnonzero(counts > 1).tolist()
        self.demand(Promise.ONCE, not twice, f"{where} contains examples {twice} twice")
        steps = version - term.first_step
        if self.sync:
            others = term.contents.setdefault(version, counts)
            if not np.array_equal(others, counts):
                self.demand(
                    Promise.SAME,
                    False,
                    f"{where} contains {np.flatnonzero(counts).tolist()}, another server "
                    f"{np.flatnonzero(others).tolist()}",
                )
        if self.sync and term.begun.has_backups:
            made = np.count_nonzero(counts[starts_of(term.cut, len(counts))])
            self.demand(Promise.STEP, made == steps * term.parts, f"{where} contains {made} parts")
        else:
            made = np.count_nonzero(np.bincount(batches_of(term.setup.data, len(counts))[counts > 0]))
            self.demand(
                Promise.STEP,
                made == steps,
                f"{where} contains {made} batches after {steps} steps",
            )

    def _grows(self, term: TermSeen, server: int, version: int, counts: Counts) -> None:
        newest = term.newest.get(server, -1)
        if newest in (-1, version):
            term.newest[server] = version
            return
        older, newer = sorted(
            [(newest, term.counts[server, newest]), (version, counts)], key=lambda each: each[0]
        )
        term.newest[server] = newer[0]
        lost = np.flatnonzero((older[1] > 0) & (newer[1] == 0)).tolist()
        self.demand(
            Promise.KEPT,
            not lost,
            f"ps:{server} contained {lost} at version {older[0]}, and not at {newer[0]}",
        )

    def _check_bits(
        self, term: TermSeen, server: int, version: int, found: Sequence[Any], *, slots: bool
    ) -> None:
        """Nothing else is changed: what is held is what the examples make of it, where it can be known which
        these are.
        """
        if not self.sync and (not self.scenario.harmless or self.rule.stale_gradients == "compensate"):
            return
        if slots and self.scenario.rows and self.scenario.rounds is not None:
            return  # tables are among them
        possible = term.states(server, version)
        if not possible:
            return
        held = found[0].image if slots else image(found[0])
        for state in possible:
            if held == (state.image if slots else image(state.values)):
                term.is_at(server, version, state)
                return
        kind = "the checkpoint" if slots else "values"
        self.demand(Promise.BITS, False, f"{kind} of ps:{server} at version {version} of term {term.number}")

    def _check_rows(self, wire: Wire, server: int, blocks: Blocks) -> None:
        """Rows of tables are those of the version that the server has."""
        lookup, ids = wire.asked
        held = wire.server.machine.held
        term = self.terms.get(lookup.term)
        if (
            term is None
            or not blocks
            or self.scenario.rounds is not None
            or (not self.sync and not self.scenario.harmless)
            or (not self.sync and self.rule.stale_gradients == "compensate")
        ):
            return
        possible = term.states(server, held.version)
        truth = [
            image(state.tables[table][""][listed] for table, listed in zip(lookup.tables, ids, strict=True))
            for state in possible
        ]
        self.demand(
            Promise.BITS,
            not truth or image(blocks) in truth,
            f"rows of ps:{server} at version {held.version}",
        )

    # What is on the disk

    def written(self, saved: Saved) -> None:
        """A checkpoint was written."""
        assert self._setup is not None
        self._disk = saved
        if self.scenario.evaluation_s is not None:
            self.evaluations.written(self._setup.model, saved)
        if saved.start:
            self._begun[saved.generation] = self._setup
            return
        term = self.terms[self._cut_in]  # a later one may have been given up before it began
        found = self._counts_of(term, saved)
        for server, (counts, state) in enumerate(zip(found, saved.states, strict=True)):
            where = f"a checkpoint's part of ps:{server}"
            if self.sync or server == 0:
                self._look_at(term, server, saved.version, counts, where)
                self._check_bits(term, server, saved.version, [state], slots=True)
            twice = np.flatnonzero(counts > 1).tolist()
            self.demand(Promise.ONCE, not twice, f"{where} contains examples {twice} twice")
        self._assignments.written(term, saved)
        if saved.final:
            self._check_final(term, saved, found)

    def restored(self, saved: Saved) -> None:
        """A checkpoint was read, to be given to the servers."""
        self._disk = saved

    def _counts_of(self, term: TermSeen, saved: Saved) -> list[Counts]:
        return [term.units.in_state(server, state)[0] for server, state in enumerate(saved.states)]

    def _check_final(self, term: TermSeen, saved: Saved, found: Sequence[Counts]) -> None:
        self.demand(
            Promise.STEP,
            saved.version == term.last_step,
            f"the last checkpoint is of {saved.version} of {term.last_step}",
        )
        contents = [np.flatnonzero(counts).tolist() for counts in found]
        self.demand(
            Promise.SAME,
            all(each == contents[0] for each in contents),
            f"servers end with examples {contents}",
        )
        for server, counts in enumerate(found):
            self._dealing[term.generation].check_end(term, counts, f"ps:{server}")
        self._histories.ended(term, found[0])
        self._assignments.ended(term, saved)
        if self.scenario.optimizer == "ema":
            for server, state in enumerate(saved.states):
                groups = term.model.plan.layout(server).groups
                trained = [
                    value for group, value in zip(groups, state.values, strict=True) if group.trainable
                ]
                averaged = image(trained) == image(state.slots["average"])
                self.demand(Promise.AVERAGES, averaged, f"ps:{server} ends with other values")

    # What programs print

    def printed(self, task: str, generation: int, rows: Mapping[int, Row]) -> None:
        """A task's `fit` returns with these numbers of epochs."""
        self._histories.printed(task, generation, rows)

    def leader_starts(self) -> None:
        """A leader's process begins its program."""
        self._assignments.leader_starts()

    def leader_ordered(
        self, generation: int, optimizer: Mapping[str, Any], since: int, mark: float | None
    ) -> None:
        """The leader's program goes on after an order: these numbers are in force, and these values, if it
        has assigned any.

        `since` is the version from which on they were ordered.
        """
        self._assignments.given(generation, optimizer, since, mark)

    def check_end(self) -> None:
        """The run has succeeded."""
        assert self._disk is not None
        kept = self._disk.final and self._disk.generation == self.scenario.fits
        self.demand(Promise.STEP, kept, "the last step was not saved")
