"""Messages that open a connection, prove that both ends belong to one run, and open a term.

They tell the task and the run of a sender, and the variables of the servers; for the proof see
`wire.security`. One more worker joins a run of which it knows a server's address and the secret.
"""

from typing import Any

import msgspec

from dtrain.config import RunSpec, ServerSection
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
        slots: names of the slots that follow as blocks; empty for a fresh start.
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


class Opening(Message, frozen=True, gc=False, kw_only=True):
    """Client to server, the first on every connection: a task would like to talk.

    Attributes:
        version: of the sender's protocol. It is the first field in every version, so that builds of different
            versions can name both.
    """

    version: int = PROTOCOL_VERSION
    task: str
    nonce: bytes


class Challenge(Message, frozen=True, gc=False, kw_only=True):
    """Server to client: the answer to an opening. It proves nothing yet.

    Attributes:
        nonce: of the server; it recognises it, and takes it once.
    """

    version: int = PROTOCOL_VERSION
    salt: bytes
    nonce: bytes


class Proof(Message, frozen=True, gc=False, kw_only=True):
    """Client to server: the task proves that it has the run's key; the second time it says its run as well.

    Attributes:
        proof: see `wire.security.proof`.
    """

    version: int = PROTOCOL_VERSION
    task: str
    salt: bytes
    challenge: bytes
    nonce: bytes
    hello: Hello | None = None
    proof: bytes


class Proven(Message, frozen=True, gc=False, kw_only=True):
    """Server to client: the server has proven itself."""

    proof: bytes


class Join(Message, frozen=True, gc=False, kw_only=True):
    """A worker without an index to any server: it would like to join the run."""


class JoinPlace(Message, frozen=True, gc=False, kw_only=True):
    """Server to a worker that joins: what it must know to be a task of the run.

    Attributes:
        spec: of the run, with `training` as the leader has it; without the sections that a worker does not
            need and that may hold passwords or paths.
    """

    run_id: str
    launched: bool
    cluster: dict[str, list[str] | dict[str, str]]
    spec: RunSpec
    index: int = -1
