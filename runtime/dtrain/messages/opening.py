"""Messages that open a connection and a term: the task and run of a sender, the variables of the servers."""

from typing import Any

import msgspec

from dtrain.config import ServerSection
from dtrain.messages.message import Message
from dtrain.state.fit_state import FitState

PROTOCOL_VERSION = 1
"""The version of all messages together. Raise it when a field of any message is added, removed, moved or
typed otherwise: two builds of different versions refuse each other before either reads another field.
"""


class Hello(Message, frozen=True, gc=False, kw_only=True):
    """The task at one end of a connection, and the run that it belongs to; it travels with a proof."""

    version: int = PROTOCOL_VERSION
    run_id: str
    cluster_hash: str
    task: str


class Initialise(Message, frozen=True, gc=False, kw_only=True):
    """Leader to server: hold these variables. Blocks: values of every group; then every slot of every
    trainable group.

    Generation and term must be later than those of what the server holds, which is given up with whatever
    waits on it.

    Attributes:
        state: from which the term goes on, as `FitState.for_server` cuts it for this server, with the plan.
        training: the `training` section of the spec, as the leader resolved it with its program's
            constructor.
        directory: of the run, where the leader saves; for the evaluator.
        slots: names of the slots that follow as blocks; empty for a fresh start.
        repairs: async, to ps:0: the batches that its values contain and another server's do not; see
            `protocol.async_updates`.
        drawn: for each sparse variable how its arrays are drawn (`DrawnTable.describe`): its rows under "",
            slots by name.
        loads: whether `Load` messages follow, for every row of every table. Only the last one begins the
            term.
        until: as in `Control`: the leader's first order comes before the first version.
        heard_of: the tasks that ps:0 had heard of in an earlier term; one that was started again need not
            wait for them to join.
    """

    state: FitState
    training: ServerSection
    directory: str
    term: int = 0
    slots: tuple[str, ...] = ()
    drawn: dict[str, dict[str, dict[str, Any]]] = msgspec.field(default_factory=dict)
    loads: bool = False
    until: int | None = None
    heard_of: tuple[str, ...] = ()
    repairs: tuple[int, ...] = ()


class Initialised(Message, frozen=True, gc=False, kw_only=True):
    """Server to leader: done. `given_up`: the version that it held before of the same generation, or -1."""

    given_up: int = -1
