"""Parameter servers driven by hand: say a message, look at the answers, compare the variables bit for bit."""

import msgspec
import numpy as np

from dtrain.cluster import ClusterSpec, TaskId
from dtrain.config import WaitSection, training_section
from dtrain.control.interface import Decide, Note, Redeliver, Send
from dtrain.learning import optimizers
from dtrain.messages import Heartbeat, Initialise, Pull, Push, Reply, Values
from dtrain.parameters import placement
from dtrain.protocol.membership import LEASE_S
from dtrain.roles.parameter_server.machine import ParameterServer
from dtrain.state.batch_cut import Dealt
from dtrain.state.fit_state import FitState
from dtrain.variables import VariableSpec

VARIABLES = (
    VariableSpec("kernel", (2, 2)),
    VariableSpec("bias", (3,)),
    VariableSpec("table", (2,), "int64", trainable=False),
)


TASKS = ("chief:0", "worker:0", "worker:1")


class Hand:
    """All servers of a cluster of a chief and some workers; the clock stands where `now` says."""

    def __init__(
        self,
        workers=2,
        servers=1,
        max_steps=10,
        optimizer=None,
        variables=VARIABLES,
        evaluators=0,
        wait=None,
        allocator=None,
        **training,
    ):
        self.training = training_section(**training)
        names = {
            "chief": ["c:0"],
            "worker": [f"w:{i}" for i in range(workers)],
            "ps": [f"p:{i}" for i in range(servers)],
        }
        self.cluster = ClusterSpec.from_lists(**names)
        self.plan = placement.plan(variables, servers)
        self.optimizer = optimizer or optimizers.SGD(0.5)
        self.max_steps = max_steps
        self.now = 0.0
        self.processes = {}
        self.parts = {}
        about = (self.cluster, self.training, self.now, evaluators, wait or WaitSection(), allocator)
        self.servers = [ParameterServer(i, *about) for i in range(servers)]

    @property
    def replicas(self):
        """How many tasks train."""
        return len(self.cluster.replicas(self.training.chief_trains))

    def blocks(self, server=0, value=0):
        return [np.full(group.size, value, group.dtype) for group in self.plan.layout(server).groups]

    def initialisation(self, **changes):
        """What the leader says to every server."""
        state = FitState(
            plan=self.plan.to_dict(),
            optimizer=optimizers.serialize(self.optimizer),
            max_steps=self.max_steps,
            dealt=Dealt(1),
        )
        if self.training.updates == "sync":
            needed = self.training.replicas_needed(self.replicas)
            state = state.but(dealt=Dealt(needed, even=self.training.has_backups(self.replicas)))
        message = Initialise(state=state, training=self.training, directory="run-dir")
        if "dealt" in changes:
            changes["dealt"] = Dealt(*changes["dealt"])
        if "seen" in changes:  # by this server
            changes["seen"] = (tuple(changes["seen"]),)
        of_state = {name: changes.pop(name) for name in state.__struct_fields__ if name in changes}
        return msgspec.structs.replace(message, state=state.but(**of_state), **changes)

    def initialise(self, **changes):
        """Say it; returns the answers."""
        message = self.initialisation(**changes)
        return [
            self.say("chief:0", message, self.blocks(server), server=server)[0].message
            for server in range(len(self.servers))
        ]

    def say(self, task, message, blocks=(), server=0, caller=None):
        """Hand a message to a server; returns its actions, with their blocks as they are now.

        The parts that are dealt are left out of them and stand in `parts`, by caller.
        """
        machine = self.servers[server]
        actions = machine.receive(caller or task, TaskId.parse(task), message, blocks, self.now)
        return self.carried_out(server, actions, self._noted)

    def carried_out(self, server, actions, noted=lambda action: action):
        """All that a driver would carry out: the machine goes on with what it has left for later."""
        done = []
        for action in actions:
            if isinstance(action, Decide | Redeliver):
                done += self.carried_out(server, self.servers[server].go_on(action, self.now), noted)
            elif not isinstance(action, Note):  # what is kept in a trace changes nothing
                done.append(noted(action) if isinstance(action, Send) else action)
        return done

    def _noted(self, action):
        message = action.message
        if isinstance(message, Values | Reply):
            if message.part >= 0:
                self.parts[action.caller] = message.part
            implied = self.training.updates == "sync" and isinstance(
                message, Reply
            )  # there the permission is the part
            message = msgspec.structs.replace(message, part=-1, ticket=implied or message.ticket)
        return Send(action.caller, message, [block.copy() for block in action.blocks])

    def push(self, task, sequence=1, base=0, value=1, server=0, caller=None, blocks=None, **changes):
        """A gradient of equal numbers, of the part that ps:0 has dealt; returns the actions."""
        if "part" not in changes:
            changes["part"] = self.dealt(task, caller)
        message = Push(
            generation=1, incarnation=1, sequence=sequence, base_version=base, plan_hash=self.plan.hash
        )
        blocks = self.blocks(server, value) if blocks is None else blocks
        return self.say(task, msgspec.structs.replace(message, **changes), blocks, server, caller)

    def dealt(self, task, caller=None):
        """The part that a replica has; it asks for one if it has none."""
        if self.servers[0].held is None:
            return -1
        dealer = self.servers[0].held.steps.dealer
        rank = self.servers[0].control.roster.ranks.get(task, -1)
        if caller not in self.parts and rank not in dealer.current:
            self.parts.pop(task, None)
            self.servers[0].held.steps.next_turn(rank)
        return self.parts.get(caller, dealer.current.get(rank, self.parts.get(task, -1)))

    def pull(self, task, at_least=0, wait_s=5.0, server=0):
        return self.say(task, Pull(generation=1, at_least=at_least, wait_s=wait_s), server=server)

    def beat(self, task, incarnation=0, process=None, **more):
        """A heartbeat: of a new process unless it knows its incarnation."""
        self.processes[task] = self.processes.get(task, 0) + (incarnation == 0)
        return self.say(
            task,
            Heartbeat(
                process=(0, self.processes[task] if process is None else process),
                incarnation=incarnation,
                **more,
            ),
        )

    def tick(self, server=0, connections=1):
        return self.carried_out(server, self.servers[server].tick(self.now, connections))

    def image(self, server=0):
        """The state of a server that a refused message must leave alone, bit for bit."""
        held = self.servers[server].held
        arrays = [array for arrays in held.store.parts for array in arrays.values()]
        return held.version, held.seen.export(), [array.tobytes() for array in arrays]

    def version(self, server=0):
        return self.servers[server].held.version


def only(actions):
    """The message of the one answer there is."""
    [action] = actions
    return action.message


def sync(**more):
    """Servers that wait for contributions."""
    hand = Hand(**{"updates": "sync", **more})
    hand.initialise()
    return hand


def asynchronous(**more):
    """Servers that apply what comes."""
    hand = Hand(**{"updates": "async", **more})
    hand.initialise()
    return hand


def lost(hand, *tasks):
    """These tasks are heard of no more, all others are; returns what follows."""
    for task in TASKS:
        hand.beat(task)
    hand.now += LEASE_S + 0.1
    for task in [task for task in TASKS if task not in tasks]:
        hand.beat(task, 1)
    return hand.tick()
