"""Messages of membership: heartbeats, the state of the run, and the end.

Rules *No silent wait* (docs/design/protocol.md#no-silent-wait) and *Orderly end*
(docs/design/protocol.md#orderly-end).
"""

import msgspec

from dtrain.cluster import Moved
from dtrain.messages.message import Message, Refusal
from dtrain.messages.status import TaskStatus
from dtrain.state.fit_state import Lineage, Row


class Heartbeat(Message, frozen=True, gc=False, kw_only=True):
    """Every task to ps:0 (the leader to every server): it is alive, and its status.

    Attributes:
        process: which process speaks: the attempt and when it began (seconds); a later one is larger.
        incarnation: as the server said last; before that the millisecond at which the process began.
        moved_to: the address at which the sender serves, if that is not the one in the cluster.
        book: the digest of the sender's address book.
    """

    process: tuple[int, float]
    incarnation: int
    status: TaskStatus | None = None
    leaving: bool = False
    moved_to: str | None = None
    book: int = 0


class HeartbeatReply(Message, frozen=True, gc=False, kw_only=True):
    """The state of the run.

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
        max_steps: the last version; 0 before the first.
        heard_of: to the leader: every task that has been heard of, dead or alive.
        moved: the address book's entries that differ from the cluster, if the sender's has another digest.
    """

    incarnation: int
    generation: int
    version: int
    ended: bool
    waiting_for: str | None = None
    failed: Refusal | None = None
    directory: str | None = None
    statuses: tuple[TaskStatus, ...] = ()
    term: int = 0
    lineage: Lineage = Lineage()
    max_steps: int = 0
    heard_of: tuple[str, ...] = ()
    moved: Moved = msgspec.field(default_factory=dict)


class Record(Message, frozen=True, gc=False, kw_only=True):
    """Leader to ps:0: the numbers of epochs that have ended. The server answers with `Recorded`.

    Attributes:
        term: in which they have ended; in another one nothing changes.
        epoch: this and later ones have not ended; None: the leader only asks what was recorded.
        rows: by epoch; repeating one changes nothing.
        number: (incarnation of the leader, a count): one that comes after a later one changes nothing.
    """

    generation: int
    term: int = 0
    epoch: int | None = None
    rows: dict[int, Row] = msgspec.field(default_factory=dict)
    number: tuple[int, int] = (0, 0)


class Recorded(Message, frozen=True, gc=False, kw_only=True):
    """Server to leader: done, if it is in the leader's term.

    Attributes:
        term: of the server.
        rows: if the leader only asked, of all epochs of this generation that have ended.
    """

    term: int
    rows: dict[int, Row]


class Conclude(Message, frozen=True, gc=False, kw_only=True):
    """Leader to ps:0: the last step of this generation is saved; its replicas may go. The server answers with
    the same.

    `rows` are the numbers of every epoch: a ps:0 that was started again has none of its own. The answer to a
        replica brings them.
    """

    generation: int
    rows: dict[int, Row] = msgspec.field(default_factory=dict)


class Farewell(Message, frozen=True, gc=False, kw_only=True):
    """Leader to server: no task will train any more; end when the last connection is closed. The server
    answers with the same.

    `rows` are the numbers of every epoch of the last calls of `fit`, by call: a server that was started again
    has none of its own.
    """

    rows: dict[int, dict[int, Row]] = msgspec.field(default_factory=dict)
