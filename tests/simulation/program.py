"""What a simulated chief or worker runs: the drivers that ship, and of the training loop what they need of it.

A program blocks where a real one does. What it computes with is chance; what it changes are the numbers and values of
`model`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from simulation.data import Cut, row_of, sums_of
from simulation.disk import FOLDER
from simulation.model import MARK, RATES
from simulation.network import VirtualChannel
from simulation.reporter import Reporter

from dtrain.config import CheckpointSection
from dtrain.errors import DtrainError
from dtrain.learning import optimizers
from dtrain.learning.optimizers.schedules import ExponentialDecay
from dtrain.messages import Row
from dtrain.parameters.replica_memory import ReplicaMemory, cut
from dtrain.parameters.row_routes import RowRoutes
from dtrain.parameters.table import VALUES
from dtrain.roles.chief.driver import Leader
from dtrain.roles.chief.generation import Generation
from dtrain.roles.chief.keeper.driver import Keeper, Place
from dtrain.roles.chief.order_driver import OrderDriver
from dtrain.roles.chief.recovery import Beginning, beginning
from dtrain.roles.chief.start import Start, continued, fresh, restored, saved_generation
from dtrain.roles.heartbeat import HeartbeatLink
from dtrain.roles.worker.driver import ReplicaDriver
from dtrain.roles.worker.machine import Replica

CONNECT_S = 60.0
PATIENCE_S = 60.0
OFTEN = 0.15
SAVES_S = (0.1, 2.0)


def with_rate(optimizer: optimizers.Optimizer, rate: float) -> optimizers.Optimizer:
    """The same rule with another learning rate; a schedule stays one."""
    if isinstance(optimizer.learning_rate, ExponentialDecay):
        return replace(optimizer, learning_rate=replace(optimizer.learning_rate, initial_learning_rate=rate))
    return replace(optimizer, learning_rate=rate)


class Program:
    """One process of a task: its leases, and one call of `fit` after the other."""

    def __init__(self, process: Any) -> None:
        self.process = process
        self.setup = process.setup
        self.leads = process.task == "chief:0"
        self.links: list[HeartbeatLink] = []
        self.leader: Leader | None = None
        self.sequence = 0
        self.recorded: dict[int, Mapping[int, Row]] = {}
        self.fit: Fit | None = None
        self.reporter = Reporter(lambda text: process.network.say(f"{process.task}: {text}"))

    def run(self) -> None:
        """Train, and say goodbye."""
        process, servers = self.process, range(self.setup.servers)
        for server in servers if self.leads else servers[:1]:
            link = HeartbeatLink(
                f"ps:{server}",
                partial(process.connect, "heartbeat", server),
                self.reporter,
                connect_s=CONNECT_S,
                patience_s=PATIENCE_S,
                on_silence=partial(self._is_silent, server) if self.leads else lambda: None,
                clock=process.life,
            )
            self.links.append(link)
        for generation in range(1, self.setup.scenario.fits + 1):
            self.fit = Fit(self, generation)
            self.fit.run()
        process.finished = True
        for link in self.links:
            link.close()
        if self.leader is not None:
            self.leader.farewell(self.recorded)
            self.leader.close()

    def _is_silent(self, server: int) -> None:
        """As the real leader: a server that has not answered for a lease is killed, and what it was asked broken off."""
        keeper = self.fit and self.fit.keeper
        if self.leader is not None and not (keeper and keeper.busy):
            self.leader.break_with(server, f"ps:{server} is silent")
        self.process.tell_silent(server)


class Fit:
    """One call of `fit` in one task."""

    def __init__(self, program: Program, generation: int) -> None:
        self.program = program
        self.generation = generation
        self.process = program.process
        self.setup = program.setup
        self.keeper: Keeper | None = None
        self.driver: ReplicaDriver | None = None
        self._epochs = self.setup.scenario.steps_per_epoch
        self._until: int | None = None
        self._data: dict[int, VirtualChannel] = {}
        self._due = True
        self._ended: frozenset[int] = frozenset()

    def run(self) -> None:
        """Train to the last step; a leader that finds that it is over does nothing."""
        if self.program.leads and not self._lead():
            return
        try:
            self._train()
        except DtrainError as error:
            reasons = [self.program.links[0].failure, self.keeper and self.keeper.failure, error]
            raise next(reason for reason in reasons if reason) from None
        finally:
            if self.driver is not None:
                self.program.sequence = self.driver.machine.sequence
        self.orders.close()
        self.driver.close()
        self.program.links[0].on_failure = lambda reason: None

    # The leader's beginning

    def _lead(self) -> bool:
        program, process, scenario = self.program, self.process, self.setup.scenario
        answers = [link.reply for link in program.links]
        found = beginning(self.generation, answers, saved_generation(FOLDER))
        process.network.say(f"{process.task} finds fit {self.generation}: {found.value}")
        if found is Beginning.PASS_OVER:
            return False
        if program.leader is None:
            connect = partial(process.connect, "control")
            program.leader = Leader(self.setup.servers, connect, CONNECT_S, process.life)
        every = CheckpointSection(every_s=process.network.random.uniform(*SAVES_S))
        place = Place(
            program.leader, program.links, program.reporter, Path("run"), every, PATIENCE_S, process.life
        )
        start = None if found is Beginning.ATTACH else self._start(found)
        lineage = answers[0].lineage if start is None else start.lineage
        generation = Generation(
            self.generation,
            self.setup.model.plan,
            self.setup.training,
            optimizers.serialize(self.setup.model.optimizer),
            lineage.first_step + scenario.max_steps,
            self.setup.batch_cut,
            steps_per_epoch=scenario.steps_per_epoch,
            alone=scenario.alone,
        )
        keeper = Keeper(place, generation)
        if start is None:
            keeper.attach()
        else:
            keeper.begin(start, save=found is Beginning.START)
        self.keeper = keeper
        return True

    def _start(self, found: Beginning) -> Start:
        model, sync = self.setup.model, self.setup.sync
        rule = optimizers.serialize(model.optimizer)
        if found is Beginning.RESTORE:
            return restored(FOLDER, model.plan, rule, by_server=not sync)
        values: dict[str, Any] = {
            spec.name: np.zeros(spec.shape, spec.dtype) for spec in model.plan.variables if not spec.sparse
        }
        values |= {name: arrays[VALUES] for name, arrays in model.drawn.items()}
        if self.generation > 1:
            return continued(FOLDER, model.plan, rule, values, None, same_owner=False)
        return fresh(model.plan, rule, values)

    # Training

    def _train(self) -> None:
        program, process, setup = self.program, self.process, self.setup
        plan, link = setup.model.plan, program.links[0]
        self.weights, self.gradients = ReplicaMemory(plan), ReplicaMemory(plan)
        machine = self.machine = Replica(
            plan.servers,
            self.generation,
            link.incarnation,
            plan.hash,
            setup.sync,
            trains=process.rank >= 0,
            saves=self.keeper is not None,
            first_judges=not setup.sync and setup.training.max_staleness is not None,
            sequence=program.sequence,
        )
        self.driver = ReplicaDriver(
            machine,
            self.weights,
            self.gradients,
            self._connect_data,
            program.reporter,
            connect_s=CONNECT_S,
            patience_s=PATIENCE_S,
            clock=process.life,
        )
        connect = partial(process.connect, "orders")
        self.orders = OrderDriver(
            plan.servers, self.generation, link.incarnation, connect, PATIENCE_S, process.life
        )
        link.on_failure = self._abort
        if self.keeper is not None:
            self.keeper.on_failure = self._abort
            self.keeper.own_step = lambda: (machine.term, machine.global_step)
        self.driver.start()
        if self.keeper is not None:
            self._look(self.keeper)
        while not self._over():
            self._step()
        process.network.judge.printed(process.task, self.generation, self._rows())

    def _connect_data(self, server: int, timeout_s: float) -> VirtualChannel:
        channel = self._data[server] = self.process.connect("data", server, timeout_s)
        return channel

    def _abort(self, reason: str) -> None:
        assert self.driver is not None
        self.driver.abort(reason)
        self.orders.abort(reason)

    def _look(self, keeper: Keeper) -> None:
        """See what is in force; nothing goes on before the leader's order."""
        assert self.driver is not None
        self.orders.look()
        if self.orders.torn:
            keeper.give_back()
            self.driver.start()
            self.orders.look()
        self.orders.ask_for_rows()

    def _rows(self) -> Mapping[int, Row]:
        return self.machine.rows if self.keeper is None else self.orders.rows

    def _over(self) -> bool:
        """Whether the last step is made, and of the leader, saved."""
        keeper, machine = self.keeper, self.machine
        if keeper is not None:
            while self._record():
                pass
        if not machine.finished:
            return False
        if keeper is None:
            return True
        if keeper.finish():
            self.program.recorded[self.generation] = self._rows()
            return True
        self._again()
        return False

    def _again(self) -> None:
        """Pull, because the servers have gone back, or wait for the order in force."""
        assert self.driver is not None
        self.driver.start()
        self._keep_orders()

    def _keep_orders(self) -> None:
        """As the session: where the servers have begun another term, they wait for the order in force."""
        if self.keeper is None:
            return
        assert self.driver is not None
        machine = self.machine
        while self.orders.repeat_in(machine.term):
            if not self._ended <= self.orders.rows.keys():  # an epoch begins anew, and with it its order
                self._until = machine.global_step
            if not machine.held or machine.finished:
                break
            self.driver.start()

    def _record(self) -> bool:
        """Tell ps:0 of an epoch that has ended; False if none has."""
        machine, rows = self.machine, self.orders.rows
        steps, epoch = machine.global_step - machine.first_step, len(rows)
        stopped_within = machine.finished and epoch * self._epochs < steps
        if not (stopped_within or (epoch + 1) * self._epochs <= steps):
            return False
        row = row_of([sums for each, sums in machine.tally if each == epoch])
        if not self.orders.record(self.orders.term, epoch + 1, {epoch: dict(row)}):
            self._again()
        return True

    # A step

    def _step(self) -> None:
        assert self.driver is not None
        machine = self.machine
        if machine.finished:
            return  # the servers had gone back, and the others have made all steps meanwhile
        if self.keeper is not None and self._has_to_order():
            self._order(self.keeper)
            return
        if not machine.trains:
            self.driver.wait_for(machine.global_step + 1)
        else:
            self._contribute()
        self._keep_orders()

    def _contribute(self) -> None:
        """Compute and push; what was computed with values that were taken back is void."""
        driver, model, process = self.driver, self.setup.model, self.process
        assert driver is not None
        part, now, random = self.machine.turn.part, self._cut(), process.network.random
        rows = now.rows(part)
        assert rows.stop <= model.examples, "the counters have too few elements"
        ids = model.chosen_rows(part)
        for name, listed in ids.items():
            if len(listed):
                driver.tables[name][listed]
        if not rows:
            driver.push(0, now.empty(part), None)
            return
        if not driver.overtaken:
            process.life.sleep(self.setup.scenario.compute_s * process.slowness * random.uniform(0.5, 1.5))
            self._values_may_break_off()
        self._write_gradients(now, part)
        if ids:
            driver.row_gradients["words"] = model.row_gradient(ids["words"], part)
        driver.push(len(rows), now.empty(part), sums_of(rows))

    def _write_gradients(self, now: Cut, part: int) -> None:
        model, random = self.setup.model, self.process.network.random
        blocks = [
            model.gradient(server, now, part, self.setup.by_examples) for server in range(model.plan.servers)
        ]
        if random.random() < self.setup.scenario.nan_rate:
            blocks[random.randrange(len(blocks))][0][0] = np.nan
        for mine, given in zip(self.gradients.blocks, blocks, strict=True):
            for block, numbers in zip(mine, given, strict=True):
                block[...] = numbers
        self.gradients.join()

    def _values_may_break_off(self) -> None:
        """A connection broke while values came with which the step has begun."""
        assert self.driver is not None
        for server, channel in self._data.items():
            if channel.is_gone and self.process.network.random.random() < 0.5:
                self.driver.fetch_again(server)

    def _cut(self) -> Cut:
        """How the batches are cut that ps:0 deals."""
        return Cut(self.setup.data, self.machine.cut.parts, self.machine.cut.even)

    # Orders

    def _reached(self) -> bool:
        return self._until is not None and self.machine.global_step >= self._until

    def _has_to_order(self) -> bool:
        """Whether the leader has to give an order, or likes to, before it computes."""
        often = self.process.network.random.random() < OFTEN
        return self._due or self.machine.held or self._reached() or often

    def _next_until(self) -> int | None:
        """As the real leader: the end of the epoch that the next step belongs to, if anything is done
        there.
        """
        scenario, machine = self.setup.scenario, self.machine
        if not (scenario.assigns or scenario.seed % 2):
            return None
        epoch = (machine.global_step - machine.first_step) // scenario.steps_per_epoch
        return int(machine.first_step + (epoch + 1) * scenario.steps_per_epoch)

    def _order(self, keeper: Keeper) -> None:
        """Order other numbers; where training waits for it, perhaps other values too: those at hand, with
        another mark.
        """
        random, machine, orders = self.process.network.random, self.machine, self.orders
        assert self.driver is not None
        rule = optimizers.serialize(with_rate(self.setup.model.optimizer, random.choice(RATES)))
        # In async the other servers' values may have aged, unless they were pulled because training waits.
        waits = self._reached() and (self.setup.sync or machine.held)
        mark = float(random.randint(1, 1 << 30)) if waits and self._assigns_here() else None
        values = self._assigned(mark) if mark is not None else ()
        self._until, self._due, self._ended = self._next_until(), False, frozenset(orders.rows)
        reached = machine.global_step
        version, stops = orders.give(
            rule,
            term=orders.term,
            reached=reached,
            stop=False,
            until=self._until,
            values=values,
            saved=keeper.saved_step,
        )
        process = self.process
        process.network.say(f"{process.task} has ordered {rule} until {self._until} from version {version}")
        process.network.judge.leader_ordered(self.generation, rule, version, mark)
        keeper.ordered(self._until, end=version if stops else None)
        if (stops or machine.held or orders.waits) and not machine.finished:
            self._again()

    def _assigns_here(self) -> bool:
        """Whether a callback assigns at the end of this epoch: when it comes again, so does the callback."""
        scenario = self.setup.scenario
        chance = Random(f"assigns {scenario.seed} {self.generation} {len(self.orders.rows)}").random()
        return scenario.assigns and not scenario.alone and chance < 0.7  # a fit `alone` has no callbacks

    def _assigned(self, mark: float) -> Sequence[Sequence[Any]]:
        new = {
            name: array.copy() for name, array in self.weights.variables.items() if name.startswith("count")
        }
        for counter in new.values():
            counter[0, MARK] = mark
        plan = self.setup.model.plan
        dense = cut(plan, {**self.weights.variables, **new})
        return [blocks + rows for blocks, rows in zip(dense, RowRoutes(plan).whole({}), strict=True)]
