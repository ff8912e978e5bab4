"""One term as it can be seen from outside: what servers were given, what they have shown since, and what that
makes of them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from simulation.judging.promises import Promise
from simulation.judging.truth import Gradient, step_mean, updated
from simulation.judging.units import Counts, Units
from simulation.model import Model, State
from simulation.setup import Setup

from dtrain.learning import optimizers
from dtrain.messages import Control, Initialise

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Ordered:
    """The newest order that a version begins with; `values` by server, all that were assigned there one after
    another.
    """

    number: tuple[int, int]
    optimizer: optimizers.Optimizer
    values: dict[int, list[Sequence[Array]]]


class TermSeen:
    """A term.

    Attributes:
        shown: by server and version, the images of values that were shown, by the mark in them.
        counts: by server and version, what these contain.
        contents: sync: by version, what all servers contain; also of the versions before the term that it
            goes on from.
        pushers: by server and part, the tasks that have sent it there.
        made_by: async: by server, and the version that it led to, the part that was applied and how stale it
            was.
        newest: of each server, the newest version that was shown.
        begun: the cluster that the call of `fit` began with: it decides how batches are cut.
    """

    def __init__(
        self,
        setup: Setup,
        message: Initialise,
        states: Sequence[State],
        begun: Setup,
        demand: Callable[[Promise, Any, str], None],
    ) -> None:
        self.setup = setup
        self.generation = message.state.generation
        self.number = message.term
        self.first_version = message.state.version
        self.first_step = message.state.lineage.first_step
        self.last_step = message.state.max_steps
        self.begun = begun
        self.parts = begun.parts
        self.alone = message.state.alone
        self.cut = replace(begun.cut, speeds={}) if setup.by_speed else begun.cut
        self.units = Units(setup, begun, demand)
        self.optimizer = message.state.optimizer
        self.shown: dict[tuple[int, int], dict[float, bytes]] = defaultdict(dict)
        self.counts: dict[tuple[int, int], Counts] = {}
        self.contents: dict[int, Counts] = {}
        self.newest: dict[int, int] = {}
        self.made_by: dict[tuple[int, int], tuple[int, int]] = {}
        self.pushers: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
        self.orders: dict[int, Ordered] = {
            message.state.version: Ordered((0, 0), optimizers.from_config(message.state.optimizer), {})
        }
        self._told: defaultdict[int, list[optimizers.Optimizer]] = defaultdict(list)
        self._first: dict[int, int] = {}
        self._origin = message.state.lineage.origin
        self._given = states
        self._recorded = message.state.history.get(message.state.generation, {})
        self._states: dict[tuple[int, int], list[State]] = {}

    def has_come_to(self, version: int) -> bool:
        """Whether this version had been reached where the term begins, with every end of an epoch up to it."""
        ended = (version - self.first_step) // self.setup.scenario.steps_per_epoch
        return version <= self.first_version and ended <= len(self._recorded)

    @property
    def model(self) -> Model:
        return self.setup.model

    def begins_at(self, server: int, version: int) -> None:
        """A server is given its state, which has had so many updates."""
        self._states[server, version] = [self._given[server].copy()]
        self._first[server] = version
        first = min(self._first.values())
        self.orders = {
            max(first, since) if order.number > (0, 0) else first: order
            for since, order in self.orders.items()
        }

    def ordered(self, server: int, control: Control, blocks: Sequence[Array]) -> None:
        """A server is told what holds from a version on, whatever was ordered before."""
        if server == 0:
            self._told[control.version].append(optimizers.from_config(control.optimizer))
        known = self.orders.get(control.version)
        if known is None or control.number > known.number:
            known = Ordered(
                control.number, optimizers.from_config(control.optimizer), known.values if known else {}
            )
            self.orders = {since: order for since, order in self.orders.items() if since < control.version}
            self.orders[control.version] = known
        if blocks and control.number == known.number:
            known.values.setdefault(server, []).append([block.copy() for block in blocks])
            for state in list(self._states.get((server, control.version), ())):
                self._states[server, control.version].append(self._assigned(server, state, blocks))

    def _assigned(self, server: int, state: State, blocks: Sequence[Array]) -> State:
        after = state.copy()
        for value, block in zip(after.values, blocks, strict=False):
            value[...] = block
        return after

    def _rule(self, version: int) -> optimizers.Optimizer:
        return self.orders[max(since for since in self.orders if since <= version)].optimizer

    def states(self, server: int, version: int) -> list[State]:
        """What a server may hold at a version: with and without what was assigned there; empty where that
        cannot be known.
        """
        if (server, version) in self._states:
            return self._states[server, version]
        # The version before is at hand, or is made in the same way: versions are few.
        if version <= self._first.get(server, version):
            return []
        before = self.states(server, version - 1)
        made = [after for state in before for after in self._next(server, version - 1, state)]
        if made:
            order = self.orders.get(version)
            if order is not None and server in order.values:
                for values in order.values[server]:
                    made += [self._assigned(server, state, values) for state in made]
            self._states[server, version] = made
        return made

    def is_at(self, server: int, version: int, state: State) -> None:
        """The server has shown this one of its possible states; it may still get other values if some are
        assigned there.
        """
        order = self.orders.get(version)
        if order is None or server not in order.values:
            self._states[server, version] = [state]

    def _next(self, server: int, version: int, state: State) -> Iterator[State]:
        step, last = version - self._origin, version + 1 == self.last_step
        rule, by_examples = self._rule(version), self.setup.by_examples
        if not self.setup.sync:
            made_by = self.made_by.get((server, version + 1))
            if made_by is None or self.setup.rounds is not None:
                return  # what a round has made depends on the values with which it began
            part, staleness = made_by
            scale = 1.0 / max(1, staleness) if self.setup.training.stale_gradients == "scale" else 1.0
            gradient = Gradient.of(self.model, server, self.cut, part, by_examples)
            yield updated(self.model, server, state, gradient, rule, step, scale=scale, last=last)
            return
        parts = self._step_parts(version)
        if not parts:
            return
        for gradients in product(*(self._gradients(server, version, part, state) for part in parts)):
            gradient = step_mean(self.model, server, self.setup, self.cut, parts, gradients, state, rule)
            yield updated(self.model, server, state, gradient, rule, step, last=last)

    def _gradients(self, server: int, version: int, part: int, state: State) -> list[Gradient]:
        """What a part may have contributed to the next version: a round that was under way as numbers were
        ordered may have been made by those of before.
        """
        rounds = self.setup.rounds
        if rounds is None:
            return [Gradient.of(self.model, server, self.cut, part, self.setup.by_examples)]
        steps = rounds.steps_before(version - self.first_step)
        before = [since for since in self.orders if since < version][-1:]
        rules = [*self._told[version], *(self.orders[since].optimizer for since in before)]
        distinct = {str(rule): rule for rule in (rules if self._told[version] else [self._rule(version)])}
        return [
            Gradient.of_round(self.model, server, self.setup, self.cut, part, state, rule, steps)
            for rule in distinct.values()
        ]

    def _step_parts(self, version: int) -> list[int]:
        """Sync: the parts that made the next version."""
        before, after = self.contents.get(version), self.contents.get(version + 1)
        if before is not None and after is not None:
            added = set(np.flatnonzero(after - before).tolist())
            data = self.setup.data
            batches = sorted({data.batch_of(row) for row in added})
            numbers = [
                part for batch in batches for part in range(batch * self.parts, (batch + 1) * self.parts)
            ]
            return [part for part in numbers if added.intersection(self.cut.rows(part))]
        if self.begun.has_backups or self.setup.scenario.nan_rate:
            return []
        batch = version - self.first_step  # whole batches, of which none can be refused
        return [part for part in range(batch * self.parts, (batch + 1) * self.parts) if self.cut.rows(part)]
