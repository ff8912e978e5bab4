"""Messages that open a connection and a term: the task and run of a sender, the variables of the servers."""

from typing import Any

import msgspec

from dtrain.config import ServerSection
from dtrain.messages.message import Message
from dtrain.messages.steps import Sums

PROTOCOL_VERSION = 1
"""The version of all messages together. Raise it when a field of any message is added, removed, moved or
typed otherwise: two builds of different versions refuse each other before either reads another field.
"""

Row = dict[str, Any]
"""The numbers of one epoch by name, as callbacks left them: floats, or lists of floats."""


class Hello(Message, frozen=True, gc=False, kw_only=True):
    """The task at one end of a connection, and the run that it belongs to; it travels with a proof."""

    version: int = PROTOCOL_VERSION
    run_id: str
    cluster_hash: str
    task: str


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of the variables of a term.

    Attributes:
        first_step: the version at which this generation began.
        origin: the version at which the optimizer began; its own steps (schedules, Adam's corrections) count
            from there. Below 0 if that was in another run.
        rolled_back_steps: versions that were made in this run and lost again with a server.
    """

    first_step: int = 0
    origin: int = 0
    rolled_back_steps: int = 0


class Initialise(Message, frozen=True, gc=False, kw_only=True):
    """Leader to server: hold these variables. Blocks: values of every group; then every slot of every
    trainable group.

    Generation and term must be later than those of what the server holds, which is given up with whatever
    waits on it.

    Attributes:
        plan: of `protocol.placement`, as a dict.
        training: the `training` section of the spec, as the leader resolved it with its program's
            constructor.
        optimizer: name and numbers, never code.
        version: of the values: 0, or the step of the checkpoint that they come from, as this server counted.
        directory: of the run, where the leader saves; for the evaluator.
        slots: names of the slots that follow as blocks; empty for a fresh start.
        seen: the table of pushes from a checkpoint; see `protocol.exactly_once`.
        dealt: into how many parts batches are cut and which of them have been dealt; see
            `protocol.part_dealer`.
        applied: async: the batches that the values contain, if they are not those that have been dealt and
            are not left.
        repairs: async, to ps:0: the batches that its values contain and another server's do not; see
            `protocol.repairs`.
        alone: whether the replica of rank 0 computes every part.
        steps_per_epoch, first_epoch: loss and metrics belong to the epoch of their step; see
            `protocol.tally`.
        tally: the sums of epochs that have not ended.
        history: by call of `fit`, the numbers of every epoch that has ended.
        drawn: for each sparse variable how its arrays are drawn (`DrawnTable.describe`): its rows under "",
            slots by name.
        loads: whether `Load` messages follow, for every row of every table. Only the last one begins the
            term.
        until: as in `Control`: the leader's first order comes before the first version.
        heard_of: the tasks that ps:0 had heard of in an earlier term; one that was started again need not
            wait for them to join.
    """

    generation: int
    plan: dict[str, Any]
    training: ServerSection
    optimizer: dict[str, Any]
    version: int
    max_steps: int
    directory: str
    slots: tuple[str, ...] = ()
    seen: list[tuple[str, int, int]] = msgspec.field(default_factory=list)
    lineage: Lineage = Lineage()
    dealt: tuple[int, int, tuple[int, ...], bool, tuple[int, ...]] = (1, 0, (), False, ())
    term: int = 0
    drawn: dict[str, dict[str, dict[str, Any]]] = msgspec.field(default_factory=dict)
    loads: bool = False
    until: int | None = None
    heard_of: tuple[str, ...] = ()
    alone: bool = False
    steps_per_epoch: int = 0
    first_epoch: int = 0
    tally: tuple[tuple[int, Sums], ...] = ()
    history: dict[int, dict[int, Row]] = msgspec.field(default_factory=dict)
    applied: tuple[int, tuple[int, ...]] | None = None
    repairs: tuple[int, ...] = ()


class Initialised(Message, frozen=True, gc=False, kw_only=True):
    """Server to leader: done. `given_up`: the version that it held before of the same generation, or -1."""

    given_up: int = -1
