"""Asynchronous servers and the machines of replicas, message by message: the test says what
comes next.
"""

from collections import defaultdict, deque

from roles.by_hand import TASKS, Hand

from dtrain.cluster import TaskId
from dtrain.control.interface import Send
from dtrain.messages import Conclude, HeartbeatReply, Push
from dtrain.protocol.membership import LEASE_S
from dtrain.roles.worker.machine import ReplicaMachine, ValuesReady


class Play:
    """A chief and two workers, whose messages wait until they are delivered, in their order on every
    connection.

    Attributes:
        under_way: by (task, life, server) what was said and has not arrived.
        applied: by server, the batches in the order in which they made its versions.
    """

    def __init__(self, servers=2, max_steps=6, **training):
        self.hand = Hand(servers=servers, max_steps=max_steps, updates="async", **training)
        self.hand.initialise()
        self.max_steps = max_steps
        self.first_judges = self.hand.training.max_staleness is not None
        self.machines = {}
        self.lives = dict.fromkeys(TASKS, 0)
        self.incarnations = {}
        self.asleep = set()
        self.under_way = defaultdict(deque)
        self.applied = [[] for _ in range(servers)]
        self.concluded = False
        for task in TASKS:
            self.start(task)

    @property
    def alive(self):
        return [task for task in TASKS if task in self.machines]

    def start(self, task):
        """A process of this task begins."""
        if task in self.machines:
            return
        self.lives[task] += 1
        self._beat(task, incarnation=0)
        self.machines[task] = ReplicaMachine(
            len(self.hand.servers),
            1,
            self.incarnations[task],
            self.hand.plan.hash,
            sync=False,
            saves=task == "chief:0",
            first_judges=self.first_judges,
        )
        self._say(task, self.machines[task].start())

    def _beat(self, task, incarnation):
        for answer in self._actions(self.hand.beat(task, incarnation)):
            if isinstance(answer, HeartbeatReply):
                self.incarnations[task] = answer.incarnation

    def kill(self, task, arrives=0):
        """The process dies; the first `arrives` of its messages to each server that are under way arrive all
        the same, later.
        """
        if self.machines.pop(task, None) is not None:
            self.asleep.discard(task)
            for server in range(len(self.hand.servers)):
                waiting = self.under_way[task, self.lives[task], server]
                while len(waiting) > arrives:
                    waiting.pop()

    def sleep(self, task):
        """It stands still: no heartbeats, and what it said is on its way."""
        self.asleep |= {task} & self.machines.keys()

    def wake(self):
        """Renew the lease of each replica that slept."""
        for task in sorted(self.asleep):
            self._beat(task, self.incarnations[task])
        self.asleep.clear()

    def lease(self):
        """Lose each replica that is dead or asleep."""
        self.hand.now += LEASE_S - 0.5
        for task in [task for task in self.alive if task not in self.asleep]:
            self._beat(task, self.incarnations[task])
        self.hand.now += 1.0
        for server in range(len(self.hand.servers)):
            self._actions(self.hand.tick(server))

    def deliver(self, task, server, life=None):
        """The next message of a task to a server arrives; if there is none, nothing does."""
        connection = task, life or self.lives[task], server
        if not self.under_way[connection]:
            return
        message = self.under_way[connection].popleft()
        machine = self.hand.servers[server]
        blocks = self.hand.blocks(server, 1) if isinstance(message, Push) else ()
        before = machine.held.version
        actions = machine.receive(connection, TaskId.parse(task), message, blocks, self.hand.now)
        made = machine.held.version - before
        assert made in (0, 1)
        if made:
            self.applied[server].append(message.part)
        self._actions(self.hand.carried_out(server, actions))

    def _actions(self, actions):
        """Replicas hear what is said to them at once; whatever else is said is returned."""
        others = []
        for action in actions:
            assert isinstance(action, Send), action
            if not isinstance(action.caller, tuple):
                others.append(action.message)
                continue
            task, life, server = action.caller
            if task in self.machines and life == self.lives[task]:
                self._say(task, self.machines[task].receive(server, action.message))
        return others

    def _say(self, task, outgoing):
        machine = self.machines[task]
        for server, message in outgoing:
            self.under_way[task, self.lives[task], server].append(message)
        if isinstance(machine.phase, ValuesReady) and not machine.held:
            self._say(task, machine.push())

    def to_the_end(self):
        """Let every replica live and every message arrive, until all have ended."""
        for task in TASKS:
            self.start(task)
        self.wake()
        for _ in range(100 * self.max_steps):
            for task, life, server in list(self.under_way):
                self.deliver(task, server, life)
            self.hand.now += 0.1
            for task in self.alive:
                self._beat(task, self.incarnations[task])
            for server in range(len(self.hand.servers)):
                self._actions(self.hand.tick(server))
            if self.machines["chief:0"].finished and not self.concluded:
                self.concluded = True
                self._actions(self.hand.say("chief:0", Conclude(generation=1), caller="control"))
            if all(machine.finished for machine in self.machines.values()):
                return
        raise AssertionError(
            {task: (machine.phase, machine.unanswered) for task, machine in self.machines.items()}
        )
