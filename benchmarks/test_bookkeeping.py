"""What parameter servers do for one heartbeat and one contribution, without sockets: with 100, 200 and 500
replicas.

The shipped machines are driven by hand, with variables of a few bytes, so bookkeeping is all they do. Without
--real the instructions of Python that they execute are counted: they are the same however busy the machine
is.
"""

import statistics
import sys
import time
from collections import defaultdict
from random import Random

import numpy as np
import pytest

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config import training_section
from dtrain.control.interface import Decide, Report, Send
from dtrain.learning import optimizers
from dtrain.messages import (
    Commit,
    Complete,
    Control,
    Heartbeat,
    Initialise,
    Pull,
    Push,
    Reply,
    Subscribe,
    Values,
)
from dtrain.parameters import placement
from dtrain.roles.parameter_server.machine import ParameterServer
from dtrain.state.batch_cut import Dealt
from dtrain.state.fit_state import FitState
from dtrain.variables import VariableSpec

SETTINGS = {
    "sync": {"updates": "sync"},
    "async": {"updates": "async"},
    "async, staleness bound 1": {"updates": "async", "staleness_bound": 1},
}
PROMISED_MS = "<= 0.2"
WAIT_S = 60.0
MAY_GROW = {"first heartbeat": 1.2, "heartbeat": 1.2, "contribution": 1.2, "goodbye": 2.0}
"""By how much the instructions of a message may grow with five times as many replicas. After a replica has
left, ps:0 counts the live ones anew.
"""


class CpuClock:
    """Milliseconds of CPU."""

    def __enter__(self):
        self._begin = time.process_time()

    def __exit__(self, *_):
        self.spent = 1e3 * (time.process_time() - self._begin)


class Instructions:
    """Instructions of Python that this thread executes."""

    def __enter__(self):
        self.spent, self._before = 0, sys.gettrace()
        sys.settrace(self._look)

    def __exit__(self, *_):
        sys.settrace(self._before)

    def _look(self, frame, event, argument):
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        self.spent += event == "opcode"
        return self._look


class Servers:
    """All parameter servers of a cluster of workers; `spent` is what each kind of work has cost each server,
    one by one.
    """

    def __init__(self, replicas, servers, meter, training):
        self.tasks = [TaskId.parse(f"worker:{index}") for index in range(replicas)]
        self.spent = defaultdict(list)
        self.now = 0.0
        self._meter = meter
        self._ended = False
        cluster = ClusterSpec.from_lists(
            worker=[f"w:{i}" for i in range(replicas)], ps=[f"p:{i}" for i in range(servers)]
        )
        section = training_section(**training)
        self._machines = [ParameterServer(index, cluster, section, 0.0) for index in range(servers)]
        self._plan = placement.plan([VariableSpec(f"v{index}", (2,)) for index in range(servers)], servers)
        self._blocks = [
            [np.zeros(group.size, group.dtype) for group in self._plan.layout(i).groups]
            for i in range(servers)
        ]
        self._training = section
        self._parts = replicas if section.updates == "sync" else 1
        self.may_push = dict.fromkeys(range(replicas), False)
        self.dealt = [-1] * replicas
        self.pushes = [0] * replicas

    def begin(self):
        """Every replica joins, asks for values, and waits until the leader brings them."""
        for rank in range(len(self.tasks)):
            self.beat(rank, "first heartbeat")
            self._say(rank, Pull(generation=1, at_least=0, wait_s=WAIT_S), "pull")
        rule, dealt = optimizers.serialize(optimizers.SGD(0.1)), Dealt(self._parts)
        order = Initialise(
            state=FitState(plan=self._plan.to_dict(), optimizer=rule, max_steps=1 << 40, dealt=dealt),
            training=self._training,
            directory="run",
        )
        for server in range(len(self._machines)):
            self._say(0, order, "initialise", server, [block.copy() for block in self._blocks[server]])
        for server in range(1, len(self._machines)):
            self._to_first(server, Subscribe(generation=1, version=0), "subscribe")

    def beat(self, rank, kind="heartbeat"):
        self._say(
            rank,
            Heartbeat(process=(0, 1), incarnation=0, leaving=kind == "goodbye"),
            kind,
            caller=f"{rank} beats",
        )

    def push(self, rank):
        """A gradient, if the replica may push; on every server."""
        if not self.may_push[rank]:
            return
        self.pushes[rank] += 1
        self.may_push[rank] = False
        for server, machine in enumerate(self._machines):
            version = machine.held.version
            push = Push(
                generation=1,
                incarnation=1,
                sequence=self.pushes[rank],
                base_version=version,
                plan_hash=self._plan.hash,
                part=self.dealt[rank],
            )
            self._say(rank, push, "contribution", server, self._blocks[server])

    def end(self):
        """The leader ends training, and every replica leaves."""
        self._ended = True
        for server, machine in enumerate(self._machines):
            version, rule = machine.held.version, machine.held.store.optimizer_config
            self._say(
                0,
                Control(
                    generation=1,
                    number=(1, 0),
                    term=machine.held.term,
                    version=version,
                    optimizer=rule,
                    stop=True,
                ),
                "end",
                server,
            )
        for rank in range(len(self.tasks)):
            self._say(
                rank, Pull(generation=1, at_least=0, wait_s=WAIT_S, answered=self.pushes[rank]), "last pull"
            )
        for rank in range(len(self.tasks)):
            self.beat(rank, "goodbye")

    def tick(self):
        for server, machine in enumerate(self._machines):
            self._deliver(server, "tick", lambda machine=machine: machine.tick(self.now, 1))

    def _say(self, rank, message, kind, server=0, blocks=(), caller=None):
        machine, task = self._machines[server], self.tasks[rank]
        self._deliver(server, kind, lambda: machine.receive(caller or rank, task, message, blocks, self.now))

    def _to_first(self, server, message, kind):
        sender = TaskId.parse(f"ps:{server}")
        self._deliver(0, kind, lambda: self._machines[0].receive(str(sender), sender, message, (), self.now))

    def _deliver(self, server, kind, receive):
        with self._meter:
            actions = receive()
        self.spent[kind, server].append(self._meter.spent)
        for action in actions:
            match action:
                case Decide():
                    machine = self._machines[server]
                    self._deliver(
                        server, kind, lambda later=action, machine=machine: machine.go_on(later, self.now)
                    )
                case Report(Complete() as complete):
                    self._to_first(server, complete, "contribution")
                case Send(str(follower), Commit() as commit):
                    self._follow(int(follower.removeprefix("ps:")), commit)
                case Send(int(rank), Reply() | Values() as answer) if server == 0:
                    self.may_push[rank], self.dealt[rank] = answer.ticket, answer.part
                    if not answer.ticket and not self._ended:
                        self._say(
                            rank,
                            Pull(generation=1, at_least=0, wait_s=WAIT_S, answered=self.pushes[rank]),
                            "contribution",
                        )

    def _follow(self, server, commit):
        first = TaskId.parse("ps:0")
        self._deliver(
            server, "contribution", lambda: self._machines[server].receive(None, first, commit, (), self.now)
        )

    def cost(self, kind):
        """What one of a kind costs ps:0 on average: all that follows from a contribution belongs to it."""
        events = sum(self.pushes) if kind == "contribution" else len(self.spent[kind, 0])
        return sum(self.spent[kind, 0]) / events


def costs(replicas, servers, rounds, meter, training):
    """What each kind costs ps:0 while all replicas push, a heartbeat after each push, and one replica is three
    times slower.
    """
    run = Servers(replicas, servers, meter, training)
    run.begin()
    order, random = list(range(replicas)), Random(0)
    for step in range(rounds):
        random.shuffle(order)
        for rank in order:
            if rank != replicas - 1 or step % 3 == 2 or training["updates"] == "sync":
                run.push(rank)
            run.beat(order[rank])
        run.now += 1.0
        run.tick()
    assert min(run.pushes) >= rounds // 3
    run.end()
    return {kind: run.cost(kind) for kind in MAY_GROW}


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("setting", SETTINGS)
def test_what_a_message_costs_the_first_server_does_not_grow_with_the_replicas(
    setting, servers, figure, real, runs
):
    if not real and servers == 1:
        pytest.skip("ps:0 does all that, and more, where there are 2 servers: --real")
    sizes, rounds, meter = ((100, 200, 500), 6, CpuClock()) if real else ((20, 100), 3, Instructions())
    found = {
        size: [costs(size, servers, rounds, meter, SETTINGS[setting]) for _ in range(runs)] for size in sizes
    }
    for kind, growth in MAY_GROW.items():
        *fewer, most = ([cost[kind] for cost in found[size]] for size in sizes)
        if real:
            beside = {
                f"{size} replicas": statistics.median(each) for size, each in zip(sizes, fewer, strict=False)
            }
            name = f"{kind}, {setting}, ps {servers}, {sizes[-1]} replicas"
            figure(name, most, "ms", PROMISED_MS, versus=beside)
        else:
            assert most[0] <= growth * fewer[0][0], f"instructions of a {kind} with {sizes} replicas"
