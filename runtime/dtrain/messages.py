"""What travels between tasks: plain data, without the way it travels.

A message may be accompanied by *blocks*: one-dimensional contiguous arrays, one for each group of the receiving server's layout
(see `protocol.placement`), which the transport carries beside it without looking inside. Which messages have blocks, and which
blocks, is said at each class. Messages are msgspec structs, so nothing that arrives can be anything but one of them.

The life of a run, in messages:

    everybody  -> every server   Hello on opening a connection (rule 7); the server refuses or lets in
    leader     -> every server   Initialise (plan, optimizer, values); Initialised; again, in a new *term*, when a server died
    leader     -> every server   Load / Loaded: rows of tables, to be drawn or as they come, before the term begins
    replica    -> every server   Pull until initialised; then Push / Reply, one pair a step and server (rules 1-5, 8)
    anybody    -> every server   Lookup / Rows: the rows of a table that a batch needs
    ps:i       -> ps:0           Complete;  ps:0 -> ps:i  Commit (rule 2)
    everybody  -> ps:0           Heartbeat / HeartbeatReply each second, beside the tensors (rule 6)
    leader     -> every server   Snapshot / SnapshotReply for a checkpoint (rule 11), Resume to ps:0, SnapshotRows / Rows for tables
    leader     -> every server   Farewell / Farewell at the end (rule 12)
    leader     -> every server   Hold / Holding, then Control / Controlled: other numbers, other values, an end (rule 13)
    leader     -> ps:0           Conclude / Conclude: the last step is saved, so nobody can be needed again for this generation

Two numbers say which variables are meant. The *generation* counts the calls of `fit`. The *term* counts, within the run, how often
all servers were given their variables: when one of them dies, the leader begins a new term from the newest checkpoint on every
server, and whatever was said in an earlier term is void.
"""

from typing import Any

import msgspec

from dtrain.order_messages import AnyOrder
from dtrain.verdict import Verdict as Verdict


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """Base of all messages."""


class Hello(Message, frozen=True, gc=False):
    """Opens every connection: who wants to talk, and about which run. Rule 7."""

    run_id: str
    cluster_hash: str
    task: str
    secret: str | None = None


class Lineage(msgspec.Struct, frozen=True):
    """Where the variables of a term come from.

    Attributes:
        first_step: the version at which this generation began.
        origin: the version at which the optimizer began; its own steps (schedules, Adam's corrections) count from there. Below 0 if
            that was in another run.
        rolled_back_steps: versions that were made in this run and lost again with a server.
    """

    first_step: int = 0
    origin: int = 0
    rolled_back_steps: int = 0


class Initialise(Message, frozen=True, gc=False):
    """Leader to server: hold these variables. Blocks: values of every group; then every slot of every trainable group.

    Generation and term must be later than those of what the server holds, which is given up with whatever waits on it.

    Attributes:
        plan: of `protocol.placement`, as a dict.
        training: the `training` section of the spec, as the leader resolved it with its program's constructor.
        optimizer: name and numbers, never code (rule 8).
        version: of the values: 0, or the step of the checkpoint that they come from.
        directory: of the run, where the leader saves; for the evaluator.
        slots: names of the slots that follow as blocks; empty for a fresh start.
        seen: the table of rule 5 from a checkpoint.
        batches: how many this `fit` takes if none is refused or stale.
        dealt: which batches have been given out; see `protocol.batch_dealer`.
        drawn: for each sparse variable how its arrays are drawn (`DrawnTable.describe`): its rows under "", slots by name.
        loads: whether `Load` messages follow, for every row of every table. Only the last one begins the term.
        until: as in `Control`: the leader's first order comes before the first version.
    """

    generation: int
    plan: dict[str, Any]
    training: dict[str, Any]
    optimizer: dict[str, Any]
    version: int
    max_steps: int
    directory: str
    slots: tuple[str, ...] = ()
    seen: list[tuple[str, int, int]] = []
    lineage: Lineage = Lineage()
    batches: int = 0
    dealt: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    term: int = 0
    drawn: dict[str, dict[str, dict[str, Any]]] = {}
    loads: bool = False
    until: int | None = None


class Initialised(Message, frozen=True, gc=False):
    """Server to leader: done. `given_up` is the version of the same generation that it held before; -1 if it held none."""

    given_up: int = -1


class Load(Message, frozen=True, gc=False):
    """Leader to server: rows of one array of the table with this number in the layout. Blocks: the rows, flat; none: draw them.

    Attributes:
        array: "" for the rows of the variable, else a slot's name.
        start, stop: which rows, counted from the shard's first.
        last: everything has come: the term begins.
    """

    term: int
    table: int
    array: str
    start: int
    stop: int
    last: bool = False


class Loaded(Message, frozen=True, gc=False):
    """Server to leader: done."""


class Lookup(Message, frozen=True, gc=False):
    """Anybody to server: rows of the tables with these numbers in the layout. Blocks: row numbers in each shard, ascending.

    The server answers after `wait_s` at the latest.
    """

    generation: int
    tables: tuple[int, ...]
    wait_s: float
    term: int = 0


class Rows(Message, frozen=True, gc=False):
    """Server to whoever asked. Blocks: the rows of each table, flat.

    In sync they may be of a later version than the values at hand; then the gradient is stale already and will not be applied.
    """

    version: int


class Pull(Message, frozen=True, gc=False):
    """Replica to server: the newest values, once the generation and term are there and the version is at least `at_least`.

    The server answers after `wait_s` at the latest, with what it has. `term` 0 means any; `concluded` asks ps:0 for no values but
    whether the last step has been saved.
    """

    generation: int
    at_least: int
    wait_s: float
    term: int = 0
    concluded: bool = False


class NotReady(Message, frozen=True, gc=False):
    """Server to replica: `wait_s` is over and what was asked for is not there."""

    reason: str


class Values(Message, frozen=True, gc=False):
    """Server to replica: a version of everything it holds. Blocks: every group's values.

    To a replica that speaks of an earlier generation or term it says, without plan and blocks, that there is a later one.

    `ticket` (async, ps:0 only) is the permission to push once more; without one the replica pulls again. With it ps:0 says
    which `batch` of the stream is to be computed next; see `protocol.batch_dealer`. `held` tells the leader that the next version
    waits for its order.
    """

    generation: int
    version: int
    max_steps: int
    plan: dict[str, Any]
    ticket: bool = True
    batch: int = -1
    term: int = 0
    first_step: int = 0
    held: bool = False


class Push(Message, frozen=True, gc=False):
    """Replica to server: one gradient. Blocks: the gradient of every trainable group, the new values of every other group.

    Then, for each trainable table of the server, row numbers in its shard, ascending, and the gradients of these rows, flat.

    `sequence` counts the replica's pushes; `ordinal` those to `base_version` (sync with quotas). `finite` speaks of the whole
    gradient, so that every server refuses one whose NaN lies on another server (rule 2). `batch` is the one that ps:0 gave.
    """

    generation: int
    incarnation: int
    sequence: int
    base_version: int
    plan_hash: str
    ordinal: int = 0
    finite: bool = True
    batch: int = -1
    term: int = 0


class Reply(Message, frozen=True, gc=False):
    """Server to replica: what became of a push. Blocks: every group's values at `version`, unless `verdict` is pending.

    Attributes:
        verdict: what became of this push.
        version: the version of the values.
        staleness: async: versions applied between the pull and the push; 0 in sync.
        duplicate: this is the answer to a retry; `verdict` is the first one's.
        accepted: of this replica's contributions to the version just made, how many count (sync with quotas: may exceed 1).
        stale: of them, how many do not.
        ticket: as in `Values`.
        batch: as in `Values`.
    """

    verdict: Verdict
    version: int
    staleness: int = 0
    duplicate: bool = False
    accepted: int = 0
    stale: int = 0
    ticket: bool = True
    reason: str | None = None
    batch: int = -1


class Complete(Message, frozen=True, gc=False):
    """ps:i to ps:0: I hold this contribution whole. Rule 2."""

    generation: int
    rank: int
    incarnation: int
    version: int
    ordinal: int
    term: int = 0


class Subscribe(Message, frozen=True, gc=False):
    """ps:i to ps:0: send me every commit from this version of this generation and term on."""

    generation: int
    version: int
    term: int = 0


class Commit(Message, frozen=True, gc=False):
    """ps:0 to ps:i: these contributions, in rank order, make `version + 1`. Idempotent. Rule 2."""

    generation: int
    version: int
    contributors: tuple[tuple[int, int, int], ...]
    term: int = 0


class Heartbeat(Message, frozen=True, gc=False):
    """Anybody to ps:0 (the leader to every server): I am alive, and this is how I am doing.

    Attributes:
        process: which process speaks: the attempt and when it began (seconds); a later one is larger.
        incarnation: as the server said last; before that the millisecond at which the process began.
    """

    process: tuple[int, float]
    incarnation: int
    status: dict[str, Any] | None = None
    leaving: bool = False


class HeartbeatReply(Message, frozen=True, gc=False):
    """How the run stands.

    Attributes:
        incarnation: the one by which the sender is known from now on.
        generation: of the variables that the server holds; 0 before the first.
        version: of the same; the global step at ps:0.
        ended: the leader has said farewell, or its lease ran out long ago.
        waiting_for: the tasks without which the next version cannot be made.
        failed: why training cannot go on, by the rules of the spec.
        directory: of the run, as the leader named it.
        statuses: to the leader: the newest status of every member.
        term: of the variables; 0 before the first.
        lineage: of the same.
    """

    incarnation: int
    generation: int
    version: int
    ended: bool
    waiting_for: str | None = None
    failed: str | None = None
    directory: str | None = None
    statuses: tuple[dict[str, Any], ...] = ()
    term: int = 0
    lineage: Lineage = Lineage()


class Snapshot(Message, frozen=True, gc=False):
    """Leader to server: your state for a checkpoint, once your version in this term is at least `at_least`, within `wait_s`.

    In async the state of all servers must contain the same pushes (rule 11). ps:0 is asked first, with `mark`: it gives no more
    tickets until `Resume`, and answers when no push is under way. The others answer when they have seen what is in `covers`.
    """

    at_least: int
    wait_s: float
    term: int = 0
    mark: bool = False
    covers: list[tuple[str, int, int]] = []


class SnapshotReply(Message, frozen=True, gc=False):
    """Server to leader. Blocks: every group's values, then every slot of every trainable group, in the order of `slots`.

    Attributes:
        seen: the table of rule 5.
        dealt: which batches have been given out; see `protocol.batch_dealer`.
        live: at ps:0: who is alive; a push of anybody else may never arrive everywhere.
        whole: whether it is what was asked for; False if it was not so within the time.
        optimizer: the rule in force.
    """

    version: int
    slots: tuple[str, ...]
    seen: list[tuple[str, int, int]]
    dealt: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    live: tuple[str, ...] = ()
    whole: bool = True
    optimizer: dict[str, Any] = {}


class Resume(Message, frozen=True, gc=False):
    """Leader to ps:0: every server has answered; tickets are given again. Not answered; ps:0 waits for it for a while only."""


class SnapshotRows(Message, frozen=True, gc=False):
    """Leader to server: rows of one array of a table, as they were at the last snapshot. In order; see `roles.image`."""

    table: int
    array: str
    start: int
    stop: int


class Conclude(Message, frozen=True, gc=False):
    """Leader to ps:0: the last step of this generation is saved; its replicas may go. The server answers with the same."""

    generation: int


class Farewell(Message, frozen=True, gc=False):
    """Leader to server: nobody will train any more; end when the last connection is closed. The server answers with the same."""


class Refusal(Message, frozen=True, gc=False):
    """The receiver will not do what was asked, and why. The sender's mistake, not a verdict on a gradient."""

    reason: str


AnyMessage = (
    Hello
    | Initialise
    | Initialised
    | Load
    | Loaded
    | Lookup
    | Rows
    | Pull
    | NotReady
    | Values
    | Push
    | Reply
    | Complete
    | Subscribe
    | Commit
    | Heartbeat
    | HeartbeatReply
    | Snapshot
    | SnapshotReply
    | Resume
    | SnapshotRows
    | AnyOrder
    | Conclude
    | Farewell
    | Refusal
)
