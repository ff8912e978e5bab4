"""Local steps: a replica trains its own copy of the variables for a round, and pushes once what that has
made.

The rule *Rounds* (docs/design/protocol.md#rounds). A round is a step of the servers' machine, and its part of
the dealer's: so whatever holds of a part holds of all batches of a round. The optimizer of the program, the
*inner* one, moves the replica's copy, by the same code as in one process; its moments stay with the replica
from round to round. The servers have the *outer* one, of which the difference that a round has made is the
gradient.

In float32 `base - (base - new)` is not `new`. So where the outer optimizer takes the mean alone, replicas
push their variables, and the mean of one replica is what one process has, to the bit.

Of a table that travels by rows a replica has those that its round has read, and pushes those that it has
moved.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from dtrain import checkpoints
from dtrain.checkpoints import OptimizerState
from dtrain.config import (
    CheckpointSection,
    OuterSection,
    ServerSection,
    SyncSection,
    local_steps_of,
    outer_of,
)
from dtrain.config.choices import Merge, NumberFormat
from dtrain.errors import CheckpointError, SpecError
from dtrain.learning import optimizers
from dtrain.learning.core import clipping
from dtrain.learning.core.sparse_rows import SparseRows
from dtrain.learning.optimizers.update_rules import OuterSGD
from dtrain.messages import Sums, Verdict
from dtrain.parameters import placement
from dtrain.parameters.replica_memory import ReplicaMemory, any_non_finite
from dtrain.parameters.store import Store
from dtrain.parameters.table import VALUES
from dtrain.parameters.updater import Contributions
from dtrain.protocol.contributions import Outcome
from dtrain.protocol.tally import added
from dtrain.strategies.interface import Problem
from dtrain.strategies.parameter_server.training import LocalTrainingParts, ServerReplica, ServerTraining
from dtrain.types import Array
from dtrain.variables.lazy_table import LazyTable

AVERAGES = ("use_ema", "ema_momentum", "ema_overwrite_frequency")
"""What of the program's optimizer the servers do: a replica's average would end with its process."""
UPDATES = "updates"
IDS, SERVED, MOVED = "ids", "served", "moved"
MORE = Outcome(Verdict.PENDING)
ROUNDS_WATCHED = 10
GROWN, RISEN = 1.1, 2.0
"""The loss has grown if it is so many times the first one; or the least one, and not small beside the first.
"""


def begin(
    problem: Problem,
    training: ServerSection,
    replicas: int,
    state: OptimizerState | None,
    *,
    kept: "KeptMoments | None" = None,
    succeeds: bool = False,
) -> tuple[Problem, LocalTrainingParts]:
    """Return a call of `fit` as servers are told of it, whose optimizer is the outer one; and what replicas
    need.

    Args:
        state: of the inner optimizer in this task's replica, from the `fit` before.
        kept: what an earlier process of this task has kept of its moments; None: nothing is kept.
        succeeds: whether there was such a process.

    Raises:
        SpecError: a norm is limited to which rows belong that no replica has.
    """
    tables = [spec.name for spec in problem.variables if spec.sparse and spec.trainable]
    for limit in ("clipnorm", "global_clipnorm") if tables else ():
        if problem.optimizer["config"].get(limit) is not None:
            raise SpecError(
                f"training.local_steps: {tables[0]} is an embedding table that travels by rows, and "
                f"{limit} is there only where whole variables do: expected clipvalue, or local_steps: 1"
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
        make_replica=partial(RoundReplica, kept=kept, succeeds=succeeds),
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


class KeptMoments:
    """The moments of one replica, which its task saves beside the run's checkpoints (`checkpoint.inner`)."""

    def __init__(self, directory: Path, section: CheckpointSection) -> None:
        self._directory = directory
        self._section = section
        self._saved = time.monotonic(), 0

    def is_due(self, step: int) -> bool:
        (saved_s, saved), every_s, every = self._saved, self._section.every_s, self._section.every_steps
        due = every_s is not None and time.monotonic() - saved_s >= every_s
        return due or (every is not None and step // every > saved // every)

    def save(self, step: int, state: OptimizerState) -> None:
        """Write what a replica has as it begins the round after `step`. Raises a CheckpointError."""
        arrays = {
            checkpoints.slot_key(name, slot): array
            for slot, by_variable in state.slots.items()
            for name, array in by_variable.items()
        }
        now = time.time()
        checkpoints.save(self._directory, step, {**arrays, UPDATES: np.array([state.step])}, now=now)
        checkpoints.rotate(self._directory, keep=self._section.keep, now=now)
        self._saved = time.monotonic(), step

    def find(self, step: int) -> tuple[int, OptimizerState] | None:
        """Return the newest that are of no later step than this one, and of which."""
        for each in reversed(checkpoints.list_checkpoints(self._directory)):
            with suppress(CheckpointError, OSError):
                if each.step <= step:
                    with checkpoints.open_checkpoint(each.path) as found:
                        slots: dict[str, dict[str, Array]] = {}
                        for key in filter(checkpoints.is_slot, found.arrays):
                            name, slot = checkpoints.split_slot_key(key)
                            slots.setdefault(slot, {})[name] = found.read(key)
                        return each.step, OptimizerState(int(found.read(UPDATES)[0]), slots)
        return None


class RoundRows:
    """The rows of a table that a replica has read in its round, as its steps have moved them.

    A step moves the rows of which it has gradients. A rule that moves all others too (momentum, Adam) leaves
    these as they are, as its lazy form does. Moments stay from round to round.

    Attributes:
        own: the table as the program reads it.
    """

    def __init__(self, served: Array, optimizer: optimizers.Optimizer) -> None:
        """Begin without rows; `served` has those of the servers, `optimizer` says which moments there are."""
        self._served = served
        self._optimizer = optimizer
        self.own: Any = LazyTable(served.shape, served.dtype, self._rows_of)
        self._kept = self._round = self._new(np.empty(0, np.int64))

    def _new(self, ids: Array) -> dict[str, Array]:
        rows = self._served[ids]
        moments = self._optimizer.initial_slots(rows)
        return {IDS: ids, VALUES: rows, SERVED: rows.copy(), MOVED: np.zeros(len(ids), bool), **moments}

    def begin(self) -> None:
        """Begin a round: keep the moments of the one before."""
        moved = {name: array[self._round[MOVED]] for name, array in self._round.items()}
        others = ~np.isin(self._kept[IDS], moved[IDS])
        self._kept = _joined({name: array[others] for name, array in self._kept.items()}, moved)
        self._round = self._new(np.empty(0, np.int64))

    def _places_of(self, ids: Array) -> Array:
        """Return where the rows of ascending ids are, fetched if they were not yet."""
        missing = np.setdiff1d(ids, self._round[IDS], assume_unique=True)
        if missing.size:
            new, kept = self._new(missing), self._kept
            _, here, there = np.intersect1d(missing, kept[IDS], assume_unique=True, return_indices=True)
            for name in new.keys() - {IDS, VALUES, SERVED, MOVED}:
                new[name][here] = kept[name][there]
            self._round = _joined(self._round, new)
        return np.searchsorted(self._round[IDS], ids)

    def _rows_of(self, ids: Array) -> Array:
        places = self._places_of(ids)
        return self._round[VALUES][places]

    def update(self, gradient: SparseRows, optimizer: optimizers.Optimizer, step: int) -> None:
        """Move the rows of a gradient, in the update after `step` of them."""
        places = self._places_of(gradient.ids)
        if optimizer.clipvalue is not None:
            clipped = clipping.clip_by_value(gradient, -optimizer.clipvalue, optimizer.clipvalue)
            assert isinstance(clipped, SparseRows), "a gradient keeps its kind"
            gradient = clipped
        slots = {name: self._round[name][places] for name in optimizer.initial_slots(np.empty(0))}
        rows = self._round[VALUES][places]
        optimizer.update_rows(rows, np.arange(len(rows)), gradient.rows, slots, step)
        for name, array in {VALUES: rows, **slots}.items():
            self._round[name][places] = array
        self._round[MOVED][places] = True

    def moved(self, *, values: bool) -> SparseRows:
        """Return by how much less the rows are that the round has moved; or these themselves."""
        found = {name: array[self._round[MOVED]] for name, array in self._round.items()}
        return SparseRows(found[IDS], found[VALUES] if values else found[SERVED] - found[VALUES])


def _joined(some: Mapping[str, Array], others: Mapping[str, Array]) -> dict[str, Array]:
    """Return the rows of both, in the order of their ids."""
    order = np.argsort(np.concatenate([some[IDS], others[IDS]]))
    return {name: np.concatenate([array, others[name]])[order] for name, array in some.items()}


class RoundReplica(ServerReplica):
    """The replica of one task in local steps; its weights are its own until the round ends."""

    def __init__(
        self,
        training: ServerTraining,
        gradients: ReplicaMemory,
        *,
        kept: KeptMoments | None,
        succeeds: bool,
    ) -> None:
        """Begin with the moments that the task has from an earlier call of `fit`, or a file, else without."""
        super().__init__(training, gradients)
        local = training.parts.local
        assert local is not None, "it trains in rounds"
        self._rounds = local.rounds
        self._outer = optimizers.from_config(local.rule)
        self._pushed = {**self.gradients, **self.updates}
        self._served = training.weights
        every = gradients.plan.variables
        plan = placement.plan([spec for spec in every if not spec.sparse], servers=1)
        self._memory = ReplicaMemory(plan)
        arrays = self._memory.variables
        self.gradients = {name: arrays[name] for name in self.gradients}
        self.updates = {name: arrays[name] for name in self.updates}
        self._said: dict[str, Any] = {}
        self._obey()
        layout = plan.layout(0)
        zeros = [np.zeros(group.size, group.dtype) for group in layout.groups]
        self._store = Store(layout, optimizers.serialize(self._inner), zeros)
        self._kept = kept if self._store.slot_names else None
        state = local.state or (self._found() if succeeds else None) or OptimizerState(0, {})
        fits = set(state.slots) >= set(self._store.slot_names)
        self._store.fill(self._served, state.slots if fits else None)
        self._updates = state.step if fits else 0
        self._dense = self._store.variables
        trained = [spec.name for spec in every if spec.sparse and spec.trainable]
        self._tables = {name: RoundRows(self._served[name], self._inner) for name in trained}
        self.rows = {}
        own = {name: table.own for name, table in self._tables.items()}
        self.weights = {**self._served, **self._dense, **own}
        self._began_s = 0.0
        self._watches = self.rank == 0 and self._machine.global_step == 0
        self._losses: list[float] = []
        self._given: list[tuple[float, int, Sums | None, int]] = []
        self._at_start = 0, OptimizerState(0, {})

    def _found(self) -> OptimizerState | None:
        """Return the moments that an earlier process has kept, and say what became of them."""
        step = self._machine.global_step
        if not (step and self._store.slot_names):
            return None
        found = None if self._kept is None else self._kept.find(step)
        if found is None:
            self._reporter.warn(
                "the moments of its optimizer ended with the process before it, so it begins without at step "
                f"{step}; checkpoint.inner: true keeps them"
            )
            return None
        self._reporter.announce(f"the moments of its optimizer are those that it had at step {found[0]}")
        return found[1]

    def _keep(self) -> None:
        """Remember the moments with which a round begins, for a process that goes on after this one."""
        state, step = self.state, self._machine.global_step
        copies = {
            slot: {name: array.copy() for name, array in views.items()} for slot, views in state.slots.items()
        }
        self._at_start = step, OptimizerState(state.step, copies)
        if self._kept is not None and self._kept.is_due(step):
            self.close()

    def close(self) -> None:
        if self._kept is None or not self._at_start[0]:
            return
        try:
            self._kept.save(*self._at_start)
        except CheckpointError as error:
            self._reporter.warn(f"the moments of its optimizer are not kept: {error}")

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
    def _step_s(self) -> float:  # type: ignore[override]
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
            if self._kept is not None:
                self._keep()
        self._obey()
        self._store.optimizer = copy(self._inner)
        for name, value in self._dense.items():
            value[...] = self._served[name]
        for table in self._tables.values():
            table.begin()
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
        found = [*self._memory.buffers.values(), *(each.rows for each in self.rows.values())]
        finite = not (examples and any_non_finite(found))
        part, cut = machine.turn.part, machine.cut
        parts = len(self._rounds.parts(part, cut.parts, cut.speeds))
        if examples and finite:
            # The rate follows the steps of the run, corrections of moments those that these have had.
            done = (len(self._given) - 1) * len(self._rounds.batches(part // cut.parts)) // parts
            rate = self._inner.learning_rate_at(self._steps_before + done)
            self._store.optimizer.learning_rate = rate
            self._store.make(Contributions([self._memory.blocks[0]], 1, None, self._updates))
            for name, gradient in self.rows.items():
                self._tables[name].update(gradient, self._store.optimizer, self._updates)
            self._updates += 1
            self._steps += 1
        goes_on = finite and len(self._given) < parts and not self._driver.overtaken
        return MORE if goes_on else self._push(finite=finite)

    def _push(self, *, finite: bool) -> Outcome:
        for name, pushed in self._pushed.items():
            if not finite:
                pushed[...] = self._memory.variables[name]
            elif name in self.updates or self._outer.values:
                pushed[...] = self.weights[name]
            else:
                np.subtract(self._served[name], self.weights[name], out=pushed)
        moved = {name: table.moved(values=self._outer.values) for name, table in self._tables.items()}
        self._driver.row_gradients.update(moved if finite else self.rows)
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
