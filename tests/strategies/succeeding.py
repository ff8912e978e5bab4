"""A strategy of a test's own: several tasks, each in a thread of this process with its own model and callbacks,
that reduce among themselves. A task dies by raising `Death`; the live one of lowest rank then leads.

A *moment* is a place at which the leader may die: before and after each of its calls to the strategy, and in
the hooks of callbacks that call `Fleet.moment`.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from dtrain.messages import Verdict
from dtrain.protocol.contributions import Outcome
from dtrain.strategies.context import TaskContext
from dtrain.strategies.in_process.training import LocalReplica, LocalStrategy
from dtrain.strategies.interface import FitOrder, Strategy, Training, TurnTraining

WAIT_S = 60.0


class Death(BaseException):
    """The end of a task's process."""


class Fleet:
    """The tasks of one call of `fit`: variables, parts, and who is alive. No step is made while the leader does
    not compute its part, so it holds an epoch's end by itself.

    Attributes:
        dies_at: the moments at which the task that leads then dies.
        moments: the names of those that have passed.
    """

    def __init__(self, tasks: int, dies_at: tuple[int, ...] = ()) -> None:
        self.tasks = tasks
        self.dies_at = dies_at
        self.moments: list[str] = []
        self.changed = threading.Condition()
        self.trainings: dict[int, MemberTraining] = {}
        self.live = set(range(tasks))
        self.members = list(range(tasks))
        self.held: dict[int, Any] = {}
        self.kept: dict[str, bytes] = {}
        self.concluded = False
        self.core: Any = None
        self._within = LocalStrategy(replicas=tasks)

    def strategies(self) -> list["SucceedingStrategy"]:
        return [SucceedingStrategy(self, rank) for rank in range(self.tasks)]

    def moment(self, strategy: Strategy, name: str) -> None:
        """Let the task that leads die here, if it is time."""
        rank = strategy.context.rank
        if rank not in self.live:
            raise Death(name)
        if not strategy.is_leader:
            return
        self.moments.append(name)
        if len(self.moments) - 1 in self.dies_at:
            with self.changed:
                self.live.discard(rank)
                successor = min(self.live, default=None)
                if successor in self.trainings:
                    self.trainings[successor].lead()
                self.changed.notify_all()
            raise Death(name)

    def open(self, problem: Any, strategy: "SucceedingStrategy") -> "MemberTraining":
        rank = strategy.context.rank
        with self.changed:
            if rank == 0:
                self.core = self._within.open(problem)
            self.wait(lambda: self.core is not None)
            training = self.trainings[rank] = MemberTraining(self, strategy)
            if rank == min(self.live):
                training.lead()
            self.changed.notify_all()
            self.wait(lambda: len(self.trainings) == self.tasks)
        return training

    def wait(self, there: Callable[[], bool]) -> None:
        assert self.changed.wait_for(there, WAIT_S), "a task has waited too long"

    # Steps; all with `changed` held

    def part_of(self, rank: int) -> int | None:
        """The part of the step under way that this rank has to compute next."""
        first = self.core.global_step * self.tasks
        parts = [part for part in range(first, first + self.tasks) if part not in self.held]
        return next((part for part in parts if self._owner(part) == rank), None)

    def _owner(self, part: int) -> int:
        first = part % len(self.members)
        order = self.members[first:] + self.members[:first]
        return next(rank for rank in order if rank in self.live)

    def contribute(self, rank: int, part: int, contribution: Any) -> Outcome:
        step = self.core.global_step
        assert part not in self.held, "each part is computed once"
        self.held[part] = contribution
        if len(self.held) == self.tasks:
            self._make_step()
        self.changed.notify_all()
        core = self.core
        self.wait(lambda: core.global_step > step or core.finished or self.part_of(rank) is not None)
        made = core.global_step > step
        return Outcome(Verdict.ACCEPTED if made else Verdict.PENDING)

    def _make_step(self) -> None:
        parts = sorted(self.held)
        every = [self.held.pop(part) for part in parts]
        gradients = [blocks for blocks, _, _, examples in every if examples]
        self.core.apply(gradients, [], [sums for _, sums, _, _ in every], every[0][2], 1)
        self.members = sorted(self.live)


class SucceedingStrategy(Strategy):
    """One task of a fleet."""

    def __init__(self, fleet: Fleet, rank: int) -> None:
        self.fleet = fleet
        self.context = TaskContext(
            rank=rank, num_replicas=fleet.tasks, is_leader=rank == 0, may_lead=True, run_id=None
        )

    @property
    def num_replicas_in_sync(self) -> int:
        return self.fleet.tasks

    def open(self, problem: Any) -> Training:
        return self.fleet.open(problem, self)


class MemberTraining(TurnTraining):
    """The training of one task, and what it does as the leader."""

    leads = False

    def __init__(self, fleet: Fleet, strategy: SucceedingStrategy) -> None:
        self._fleet = fleet
        self._strategy = strategy
        self.cut = fleet.core.cut
        self.weights = dict(fleet.core.weights)
        self.first_step = fleet.core.first_step
        self.replicas = [MemberReplica(self, fleet, strategy.context.rank)]

    def lead(self) -> None:
        self._strategy.context = replace(self._strategy.context, is_leader=True)
        self.leads = True

    @property
    def global_step(self) -> int:
        return self._fleet.core.global_step

    @property
    def finished(self) -> bool:
        return self._fleet.core.finished

    @property
    def recorded(self) -> Mapping[int, Any]:
        return dict(self._fleet.core.recorded)

    @property
    def kept(self) -> Mapping[str, bytes]:
        return dict(self._fleet.kept)

    def _conclude(self) -> bool:
        if self.leads:
            self._act("conclude", lambda: setattr(self._fleet, "concluded", True))
            return True
        fleet = self._fleet
        with fleet.changed:
            fleet.wait(lambda: fleet.concluded or self.leads)
            return fleet.concluded

    # As the leader

    @property
    def optimizer(self) -> dict[str, Any]:
        return self._fleet.core.optimizer

    @property
    def tally(self) -> Any:
        return self._fleet.core.tally

    def _act(self, name: str, act: Callable[[], None]) -> None:
        self._fleet.moment(self._strategy, f"before {name}")
        with self._fleet.changed:
            act()
            self._fleet.changed.notify_all()
        self._fleet.moment(self._strategy, f"after {name}")

    def order(self, order: FitOrder) -> None:
        if order.kept:
            self._act("keep", lambda: self._fleet.kept.update(order.kept))
        else:
            name = "control" if order.rows is None else "record"
            self._act(name, lambda: self._fleet.core.order(order))

    def save(self, directory: Any = None) -> None:
        self._act("save", lambda: self._fleet.core.save(directory))


class MemberReplica(LocalReplica):
    """The replica of one task."""

    def __init__(self, training: MemberTraining, fleet: Fleet, rank: int) -> None:
        super().__init__(fleet.core, rank)
        self._fleet = fleet
        self.weights = training.weights

    def next_batch(self) -> int:
        with self._fleet.changed:
            part = self._fleet.part_of(self.rank)
        assert part is not None, "it has waited for one"
        self._part = part  # by its commit, it may owe those before it as well, of a task that has died
        return part

    def commit(self, loss: float, examples: int, sums: Any, empty: int = 0) -> Outcome:
        blocks = [block.copy() for block in self.blocks()]
        with self._fleet.changed:
            return self._fleet.contribute(self.rank, self._part, (blocks, sums, loss, examples))
