"""Local steps: a replica trains its own copy of the variables for a round, and pushes once what that has
made.

The rule *Rounds* (docs/design/protocol.md#rounds). A round is a step of the servers' machine, and its part of
the dealer's: so whatever holds of a part holds of all batches of a round. The optimizer of the program, the
*inner* one, moves the replica's copy, by the same code as in one process; its moments stay with the replica
from round to round. The servers have the *outer* one, of which the difference that a round has made is the
gradient.

In float32 `base - (base - new)` is not `new`. So where the outer optimizer takes the mean alone, replicas
push their variables, and the mean of one replica is what one process has, to the bit.
"""

from copy import copy
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace

from dtrain.checkpoints import OptimizerState
from dtrain.config import OuterSection, ServerSection, SyncSection, local_steps_of, outer_of
from dtrain.config.choices import Merge, NumberFormat
from dtrain.errors import SpecError
from dtrain.learning import optimizers
from dtrain.learning.optimizers.update_rules import OuterSGD
from dtrain.messages import Sums, Verdict
from dtrain.parameters import placement
from dtrain.parameters.means import any_non_finite
from dtrain.parameters.replica_memory import ReplicaMemory
from dtrain.parameters.store import Store
from dtrain.parameters.updater import Contributions
from dtrain.protocol.contributions import Outcome
from dtrain.protocol.tally import added
from dtrain.strategies.interface import Problem
from dtrain.strategies.parameter_server.training import LocalTrainingParts, ServerReplica, ServerTraining

AVERAGES = ("use_ema", "ema_momentum", "ema_overwrite_frequency")
"""What of the program's optimizer the servers do: a replica's average would end with its process."""
UPDATES = "updates"
MORE = Outcome(Verdict.PENDING)
ROUNDS_WATCHED = 10
GROWN, RISEN = 1.1, 2.0
"""The loss has grown if it is so many times the first one; or the least one, and not small beside the first.
"""


def begin(
    problem: Problem, training: ServerSection, replicas: int, state: OptimizerState | None
) -> tuple[Problem, LocalTrainingParts]:
    """Return a call of `fit` as servers are told of it, whose optimizer is the outer one; and what replicas
    need.

    Args:
        state: of the inner optimizer in this task's replica, from the `fit` before.

    Raises:
        SpecError: it has tables for which rounds are not there yet.
    """
    if tables := [spec.name for spec in problem.variables if spec.sparse]:
        raise SpecError(
            f"training.local_steps: {tables[0]} is an embedding table that travels by rows, and in local "
            "steps whole variables travel: expected tables below 1 MiB and an optimizer that treats all "
            "rows alike, or local_steps: 1"
        )
    outer = outer_of(training)
    rounds = problem.rounds
    assert outer is not None, "it has local steps"
    assert rounds is not None, "and so it is told which"
    wrap = partial(outer_config, training, outer, replicas, problem.updates)
    told = replace(problem, optimizer=wrap(problem.optimizer), state=None)
    return told, LocalTrainingParts(
        rounds=rounds,
        wrap=wrap,
        rule=told.optimizer,
        state=problem.state or state,
        make_replica=RoundReplica,
    )


def outer_config(
    training: ServerSection, outer: OuterSection, replicas: int, updates: int, inner: dict[str, Any]
) -> dict[str, Any]:
    """Return the servers' optimizer, as `optimizers.serialize` makes it, with the program's in it, which has
    made so many `updates` before this call of `fit`.
    """
    steps = local_steps_of(training)
    averages = {name: inner["config"][name] for name in AVERAGES}
    if averages["use_ema"]:
        averages["ema_momentum"] **= steps  # as old as it would be after as many steps
        if every := averages["ema_overwrite_frequency"]:
            averages["ema_overwrite_frequency"] = max(1, every // steps)
    takes_mean = outer.learning_rate == 1 and not outer.momentum and not averages["use_ema"]
    merges = isinstance(training, SyncSection) and training.merge == Merge.MEAN
    whole = merges and training.compression == NumberFormat.NONE
    rule = OuterSGD(
        learning_rate=outer.learning_rate,
        momentum=outer.momentum,
        nesterov=outer.nesterov,
        delay=replicas if outer.delayed else 0,
        values=takes_mean and whole,
        inner={**inner, UPDATES: updates},
        **averages,
    )
    return optimizers.serialize(rule)


class RoundReplica(ServerReplica):
    """The replica of one task in local steps; its weights are its own until the round ends."""

    def __init__(self, training: ServerTraining, gradients: ReplicaMemory) -> None:
        """Begin with the moments that the task has from an earlier call of `fit`, or a file, else without."""
        super().__init__(training, gradients)
        local = training.parts.local
        assert local is not None, "it trains in rounds"
        self._rounds = local.rounds
        self._outer = optimizers.from_config(local.rule)
        self._pushed = {**self.gradients, **self.updates}
        self._served = training.weights
        plan = placement.plan(gradients.plan.variables, servers=1)
        self._memory = ReplicaMemory(plan)
        arrays = self._memory.variables
        self.gradients = {name: arrays[name] for name in self.gradients}
        self.updates = {name: arrays[name] for name in self.updates}
        self._said: dict[str, Any] = {}
        self._obey()
        layout = plan.layout(0)
        zeros = [np.zeros(group.size, group.dtype) for group in layout.groups]
        self._store = Store(layout, optimizers.serialize(self._inner), zeros)
        state = local.state or OptimizerState(0, {})
        fits = set(state.slots) >= set(self._store.slot_names)
        self._store.fill(self._served, state.slots if fits else None)
        self._updates = state.step if fits else 0
        self.weights = self._store.variables
        self._began_s = 0.0
        self._watches = self.rank == 0 and self._machine.global_step == 0
        self._losses: list[float] = []
        self._given: list[tuple[float, int, Sums | None, int]] = []

    def _obey(self) -> None:
        """Take over the numbers of the program's optimizer that are in force with the newest values."""
        said = self._machine.inner or self._outer.inner  # servers of a later fit say nothing of this one
        assert said is not None, "an outer optimizer has an inner one"
        if said != self._said:
            self._said = said
            self._inner = optimizers.from_config({**said, "config": {**said["config"], "use_ema": False}})

    @property
    def state(self) -> OptimizerState:
        """The moments of the inner optimizer, and how many updates have made them."""
        return OptimizerState(self._updates, self._store.all_slots())

    @property
    def _step_s(self) -> float:
        return (self._training.parts.clock.now() - self._began_s) / self._steps

    @property
    def _steps_before(self) -> int:
        """How many steps the program's optimizer has made before the present round."""
        begun: int = self._said[UPDATES]
        return begun + self._rounds.steps_before(self._machine.global_step - self._machine.first_step)

    def next_batch(self) -> int:
        """See `TurnReplica`; the round that is computed next begins with the newest values."""
        part = super().next_batch()
        if self._given or not self._began_s:
            self._began_s = self._training.parts.clock.now()
        self._obey()
        self._store.optimizer = copy(self._inner)
        for name, value in self.weights.items():
            value[...] = self._served[name]
        for name, update in self.updates.items():
            update[...] = self._served[name]
        self._given.clear()
        self._steps = 0
        return part

    def commit(self, loss: float, examples: int, sums: Sums | None, empty: int = 0) -> Outcome:
        """Move the replica's own weights; after the last batch of the round push what it has made. A gradient
        that is not finite ends it, and makes all of it count for nothing.
        """
        machine = self._machine
        self._given.append((loss, examples, sums, empty))
        finite = not (examples and any_non_finite(self._memory.buffers.values()))
        turn, cut = machine.turn, machine.cut.parts
        parts = len(self._rounds.parts(turn.part, cut, turn.speeds))
        if examples and finite:
            # The rate follows the steps of the run, corrections of moments those that these have had.
            done = (len(self._given) - 1) * len(self._rounds.batches(turn.part // cut)) // parts
            rate = self._inner.learning_rate_at(self._steps_before + done)
            self._store.optimizer.learning_rate = rate
            self._store.make(Contributions([self._memory.blocks[0]], 1, None, self._updates))
            self._updates += 1
            self._steps += 1
        return MORE if finite and len(self._given) < parts else self._push(finite=finite)

    def _push(self, *, finite: bool) -> Outcome:
        for name, pushed in self._pushed.items():
            if not finite:
                pushed[...] = self._memory.variables[name]
            elif name in self.updates or self._outer.values:
                pushed[...] = self.weights[name]
            else:
                np.subtract(self._served[name], self.weights[name], out=pushed)
        self._steps = max(1, self._steps)
        examples = sum(count for _, count, _, _ in self._given)
        loss = sum(loss * count for loss, count, _, _ in self._given) / max(1, examples)
        every = [sums for _, _, sums, _ in self._given if sums is not None]
        empty = min(empty for *_, empty in self._given)
        outcome = super().commit(loss, examples, added(every) if every else None, empty)
        self._reporter.status.local_steps = self._steps_before
        if examples and self._watches:
            self._watch(loss)
        return outcome

    def _watch(self, loss: float) -> None:
        """Warn if the loss has grown over the first rounds."""
        self._losses.append(loss)
        self._watches = len(self._losses) < ROUNDS_WATCHED
        first, least, last = self._losses[0], min(self._losses), float(np.mean(self._losses[-3:]))
        grows = last > GROWN * first or (last > RISEN * least and last > 0.1 * first)
        if not self._watches and grows:
            self._reporter.warn(
                f"the loss grows in the first {ROUNDS_WATCHED} rounds, from {least:.4g} to {last:.4g}: "
                f"training.outer.learning_rate is {self._outer.learning_rate:g}, perhaps too large; so may "
                "be the rate of the optimizer of compile"
            )
