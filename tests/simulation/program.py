"""What a simulated chief or worker runs: the strategy's parts that ship, and of the training loop what they need of
it.

A program blocks where a real one does. What it computes with is chance; what it changes are the numbers and values of
`model`.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from simulation.data import row_of, sums_of
from simulation.model import MARK, RATES
from simulation.network import VirtualChannel
from simulation.reading import Reading
from simulation.reporter import Reporter

from dtrain.cluster import Role, TaskId
from dtrain.config import CheckpointSection
from dtrain.errors import DtrainError
from dtrain.learning import optimizers
from dtrain.learning.optimizers.schedules import ExponentialDecay
from dtrain.messages import Verdict
from dtrain.parameters.replica_memory import gather
from dtrain.parameters.table import VALUES
from dtrain.protocol.contributions import Outcome
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.runs.events import AnyEvent, ConfigChanged
from dtrain.strategies.context import TaskContext
from dtrain.strategies.interface import FitOrder, Problem, Stepped, TurnReplica
from dtrain.strategies.parameter_server import local_steps
from dtrain.strategies.parameter_server.opening import LeadingTask, open_training
from dtrain.strategies.parameter_server.training import LocalTrainingParts, ServerTraining, TrainingParts
from dtrain.training.parts import Part

CONNECT_S = 60.0
PATIENCE_S = 60.0
OFTEN = 0.15
SAVES_S = (0.1, 2.0)
RUN = Path("run")


def with_rate(optimizer: optimizers.Optimizer, rate: float) -> optimizers.Optimizer:
    """The same rule with another learning rate; a schedule stays one."""
    if isinstance(optimizer.learning_rate, ExponentialDecay):
        return replace(optimizer, learning_rate=replace(optimizer.learning_rate, initial_learning_rate=rate))
    return replace(optimizer, learning_rate=rate)


class Program:
    """One process of a chief or worker: its leases, and one call of `fit` after the other."""

    def __init__(self, process: Any) -> None:
        self.process = process
        self.setup = process.setup
        self.reporter = Reporter(process.task, process.network)
        self.links: list[HeartbeatLink] = []
        self.leading: LeadingTask | None = None
        self.pushes_sent = 0
        self.fit: Fit | None = None

    @property
    def stands(self) -> str:
        """How far it is, in words."""
        training = self.fit and self.fit.training
        return f"step {training.global_step} of fit {self.fit.number}" if training else "starting"

    def run(self) -> None:
        """Train, and say goodbye."""
        process = self.process
        self._join()
        for number in range(1, self.setup.scenario.fits + 1):
            self.fit = Fit(self, number)
            self.fit.run()
        for link in self.links:
            link.close()
        process.finished = True
        if self.leading is not None:
            self.leading.close(farewell=True)
        process.said_farewell = True

    def _join(self) -> None:
        """Take a lease at ps:0, and as the leader at every server."""
        process, servers, leads = self.process, range(self.setup.servers), self.process.task == "chief:0"
        for server in servers if leads else servers[:1]:
            link = HeartbeatLink(
                f"ps:{server}",
                partial(process.connect, "heartbeat", TaskId(Role.PS, server)),
                self.reporter,
                connect_s=CONNECT_S,
                patience_s=PATIENCE_S,
                on_silence=partial(self._is_silent, server) if leads else lambda silent_s: None,
                clock=process.life,
            )
            self.links.append(link)
        if leads:
            every = CheckpointSection(every_s=process.network.random.uniform(*SAVES_S))
            connect = partial(process.connect, "control")
            about = self.reporter, RUN, self.setup.training, every, PATIENCE_S, process.life
            self.leading = LeadingTask(self.links, 0, connect, *about)

    def _is_silent(self, server: int, silent_s: float) -> None:
        """As the real leader: a server that has not answered for a lease is killed, and what it was asked broken off."""
        if self.leading is not None:
            self.leading.break_with(server, f"ps:{server} is silent")
        self.process.tell_silent(server)


def nothing(replica: Any, number: int) -> None:
    """Compute no part, in a task without replicas."""


class Fit:
    """One call of `fit` in one task."""

    def __init__(self, program: Program, number: int) -> None:
        self.program = program
        self.number = number
        self.process = program.process
        self.setup = program.setup
        self.training: ServerTraining | None = None
        self._epochs = self.setup.scenario.steps_per_epoch
        self._reading: Reading | None = None
        self._until: int | None = None
        self._due = True
        self._ended: frozenset[int] = frozenset()
        self._given: tuple[Mapping[str, Any], float | None] = {}, None
        self._local: LocalTrainingParts | None = None

    def run(self) -> None:
        """Train to the last step; a leader that finds that it is over does nothing."""
        plan, leading, setup = self.setup.model.plan, self.program.leading, self.setup
        problem = self._problem()
        if problem.rounds is not None:
            problem, self._local = local_steps.begin(problem, setup.training, setup.replicas, None)
        if leading is not None and not leading.begin(self.number, plan, problem, setup.batch_cut, CONNECT_S):
            return
        self.program.reporter.trace.heard = self._heard
        training = self.training = open_training(self._opening())
        try:
            while not self._over():
                self._step()
        except DtrainError as error:
            training.close(error)
            raise
        self.process.network.judge.printed(self.process.task, self.number, training.recorded)
        training.close()

    def _problem(self) -> Problem:
        model, scenario = self.setup.model, self.setup.scenario
        values: dict[str, Any] = {
            spec.name: np.zeros(spec.shape, spec.dtype) for spec in model.plan.variables if not spec.sparse
        }
        values |= {name: arrays[VALUES] for name, arrays in model.drawn.items()}
        return Problem(
            variables=tuple(model.plan.variables),
            initial_values=lambda: values,
            optimizer=optimizers.serialize(model.optimizer),
            max_steps=scenario.max_steps,
            owner=self,
            steps_per_epoch=scenario.steps_per_epoch,
            alone=scenario.alone,
            rounds=scenario.rounds,
            updates=self.setup.updates_before(self.number),
        )

    def _opening(self) -> TrainingParts:
        program, process, leading = self.program, self.process, self.program.leading
        return TrainingParts(
            number=self.number,
            plan=self.setup.model.plan,
            context=TaskContext(task=TaskId.parse(process.task), rank=process.rank),
            section=self.setup.training,
            link=program.links[0],
            keeper=None if leading is None else leading.keeper,
            host=0,
            connect=self._connect,
            connect_s=CONNECT_S,
            patience_s=PATIENCE_S,
            reporter=program.reporter,
            sequence=program.pushes_sent,
            steps_per_epoch=1,  # a leader that does not train looks at every step
            checkpoint_folder=None if leading is None else leading.checkpoints,
            on_close=self._closed,
            local=self._local,
            clock=process.life,
        )

    def _connect(self, server: TaskId, timeout_s: float) -> VirtualChannel:
        return self.process.connect("data", server, timeout_s)

    def _closed(self, training: ServerTraining) -> None:
        """As the real strategy."""
        program, leading = self.program, self.program.leading
        if leading is not None and leading.keeper is not None and not leading.keeper.asked.alone:
            leading.recorded[self.number] = training.recorded
        program.pushes_sent = training.driver.machine.sequence
        program.links[0].on_failure = lambda reason: None
        training.driver.close()

    # Training

    def _over(self) -> bool:
        """Whether the last step is made, and of the leader, saved."""
        training = self.training
        while training.leads and self._record():
            pass
        if not training.finished:
            return False
        concluded = training.step(nothing) is Stepped.ENDED
        self._note_lost_epochs()
        return concluded

    def _record(self) -> bool:
        """Tell ps:0 of an epoch that has ended; False if none has."""
        training, epoch = self.training, len(self.training.recorded)
        steps = training.global_step - training.first_step
        stopped_within = training.finished and epoch * self._epochs < steps
        if not (stopped_within or (epoch + 1) * self._epochs <= steps):
            return False
        row = row_of([sums for each, sums in training.tally if each == epoch])
        training.order(FitOrder(rows={epoch: dict(row)}, open_from=epoch + 1))
        self._note_lost_epochs()
        return True

    def _note_lost_epochs(self) -> None:
        """As the loop of a leader: an epoch whose end the servers have lost begins anew, and with it its
        order.
        """
        if self.training.leads and not self._ended <= self.training.recorded.keys():
            self._until = self.training.global_step

    def _step(self) -> None:
        training = self.training
        if training.finished:
            return  # the servers had gone back, and the others have made all steps meanwhile
        if training.leads and self._has_to_order():
            self._order()
        elif training.replicas:
            self._contribute(training.replicas[0])
        else:
            training.step(nothing)
        self._note_lost_epochs()

    def _contribute(self, replica: TurnReplica) -> None:
        """Compute and push; what was computed with values that were taken back is void."""
        cut, scenario = self.training.cut, self.setup.scenario
        if self._reading is None:
            self._reading = Reading(scenario.seed, scenario.stream, cut, scenario.rounds, self.training)
        number = replica.next_batch()
        parts = self._reading.at(number)
        size = parts[0][1].batch_size
        if scenario.rounds is not None:
            size = scenario.data.size(number // cut.parts)
        unit = self.setup.unit(size, sum(len(rows) for *_, rows in parts))
        for part, found, rows in parts:
            outcome = self._contribute_one(replica, part, found, rows, unit)
            if outcome.verdict is not Verdict.PENDING:
                break

    def _contribute_one(
        self, replica: TurnReplica, part: int, found: Part, rows: Any, unit: float
    ) -> Outcome:
        driver, model, process = self.training.driver, self.setup.model, self.process
        random = process.network.random
        assert rows.max(initial=0) < model.examples, "the counters have too few elements"
        ids = model.chosen_rows(part)
        for name, listed in ids.items():
            if len(listed):
                replica.weights[name][listed]
        if not len(rows):
            return replica.commit(0.0, 0, None, found.empty)
        if not driver.overtaken:
            process.life.sleep(self.setup.scenario.compute_s * process.slowness * random.uniform(0.5, 1.5))
        self._write_gradients(replica, part, rows, unit)
        if ids:
            replica.rows["words"] = model.row_gradient(ids["words"], part)
        return replica.commit(0.0, len(rows), sums_of(rows.tolist()), found.empty)

    def _write_gradients(self, replica: Any, part: int, rows: Any, unit: float) -> None:
        model, random = self.setup.model, self.process.network.random
        blocks = [model.gradient_of(server, part, rows, unit) for server in range(model.plan.servers)]
        if random.random() < self.setup.scenario.nan_rate:
            blocks[random.randrange(len(blocks))][0][0] = np.nan
        numbers = gather(model.plan, blocks)
        for arrays in (replica.gradients, replica.updates):
            for name, array in arrays.items():
                array[...] = numbers[name]

    # Orders

    @property
    def _held(self) -> bool:
        return self.training.driver.machine.held

    def _reached(self) -> bool:
        return self._until is not None and self.training.global_step >= self._until

    def _has_to_order(self) -> bool:
        """Whether the leader has to give an order, or likes to, before it computes."""
        often = self.process.network.random.random() < OFTEN
        return self._due or self._held or self._reached() or often

    def _next_until(self) -> int | None:
        """As the real leader: the end of the epoch that the next step belongs to, if anything is done
        there.
        """
        scenario, training = self.setup.scenario, self.training
        if not (scenario.assigns or scenario.seed % 2):
            return None
        epoch = (training.global_step - training.first_step) // scenario.steps_per_epoch
        return int(training.first_step + (epoch + 1) * scenario.steps_per_epoch)

    def _order(self) -> None:
        """Order other numbers; where training waits for it, perhaps other values too: those at hand, with
        another mark.
        """
        random = self.process.network.random
        rule = optimizers.serialize(with_rate(self.setup.model.optimizer, random.choice(RATES)))
        # In async the other servers' values may have aged, unless they were pulled because training waits.
        waits = self._reached() and (self.setup.sync or self._held)
        mark = float(random.randint(1, 1 << 30)) if waits and self._assigns_here() else None
        weights = None if mark is None else self._assigned(mark)
        self._given = rule, mark
        self._until, self._due, self._ended = self._next_until(), False, frozenset(self.training.recorded)
        self.training.order(FitOrder(rule, weights=weights, until=self._until))

    def _heard(self, event: AnyEvent) -> None:
        """The order is in force, at the moment at which the leader learns it."""
        if isinstance(event, ConfigChanged):
            process, (rule, mark) = self.process, self._given
            process.network.say(f"{process.task} has ordered {rule} until {self._until}")
            told = rule if self._local is None else self._local.wrap(dict(rule))
            process.network.judge.leader_ordered(self.number, told, event.step, mark)

    def _assigns_here(self) -> bool:
        """Whether a callback assigns at the end of this epoch: when it comes again, so does the callback."""
        scenario = self.setup.scenario
        chance = Random(f"assigns {scenario.seed} {self.number} {len(self.training.recorded)}").random()
        return scenario.assigns and not scenario.alone and chance < 0.7  # a fit `alone` has no callbacks

    def _assigned(self, mark: float) -> Mapping[str, Any]:
        weights = self.training.weights
        new = {name: array.copy() for name, array in weights.items() if name.startswith("count")}
        for counter in new.values():
            counter[0, MARK] = mark
        return {**weights, **new}
