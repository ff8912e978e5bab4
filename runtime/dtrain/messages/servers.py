"""Messages among servers and the leader: decisions, orders, and the servers' state for a checkpoint.

The rules are *One decision* (docs/design/protocol.md#one-decision), *Configuration changes*
(docs/design/protocol.md#configuration-changes) and *Consistent checkpoints*
(docs/design/protocol.md#consistent-checkpoints). The leader reads the state block by block after the
servers have answered, while training goes on: copy on write.
"""

from typing import Any

from dtrain.messages.message import Message
from dtrain.state.fit_state import FitState


class Complete(Message, frozen=True, gc=False, kw_only=True):
    """ps:i to ps:0: this server holds the contribution whole."""

    generation: int
    rank: int
    incarnation: int
    version: int
    ordinal: int
    term: int = 0


class Subscribe(Message, frozen=True, gc=False, kw_only=True):
    """ps:i to ps:0: send me every commit from this version of this generation and term on."""

    generation: int
    version: int
    term: int = 0


class Commit(Message, frozen=True, gc=False, kw_only=True):
    """ps:0 to ps:i: these contributions, in the order of their parts, make `version + 1`. Idempotent.

    `parts` is the divisor of their mean: also the parts of the batch that have no examples count (`weighting:
    replicas`).
    """

    generation: int
    version: int
    contributors: tuple[tuple[int, int, int], ...]
    term: int = 0
    parts: int = 0


class Release(Message, frozen=True, gc=False, kw_only=True):
    """ps:0 to ps:i: answer this contribution's replica now, which has another part to compute. Idempotent."""

    generation: int
    version: int
    contribution: tuple[int, int, int]
    term: int = 0


class Mark(Message, frozen=True, gc=False, kw_only=True):
    """Leader to servers, async: hold new pushes until you have answered `Snapshot`, at most for `wait_s`."""

    wait_s: float
    term: int = 0


class Marked(Message, frozen=True, gc=False, kw_only=True):
    """Server to leader: it is so.

    Attributes:
        settled: at ps:0: below this number every batch is settled, and what was applied of them is on every
            server.
    """

    applied: tuple[int, tuple[int, ...]]
    again: tuple[int, ...] = ()
    settled: int = 0


class Snapshot(Message, frozen=True, gc=False, kw_only=True):
    """Leader to server: your state for a checkpoint, once your version in this term is at least `at_least`,
    within `wait_s`. In async the state of all servers must contain the same batches: the leader has marked
    all of them, and `covers` is what any of them had applied by then. Of the pushes that wait these are
    applied, and no others before the answer. `number` is another one each time that this is said, also on
    another connection.
    """

    at_least: int
    wait_s: float
    term: int = 0
    covers: tuple[int, tuple[int, ...]] = (0, ())
    number: int = 0
    settled: int = 0


class SnapshotReply(Message, frozen=True, gc=False, kw_only=True):
    """Server to leader: what belongs to the arrays, which are asked for by `SnapshotRows`.

    Attributes:
        state: with the table of pushes of this server and, in async, its contents; the rest is told by the
            control host alone. The plan and the model are left out: the leader has them.
    """

    state: FitState
    slots: tuple[str, ...]
    assigned: tuple[int, int] = (0, 0)


class SnapshotRows(Message, frozen=True, gc=False, kw_only=True):
    """Leader to server: rows of one array as they were at the last snapshot; answered by `Rows`.

    Attributes:
        part: whose: a group's with this number in the layout, whose elements are the rows; after the groups
            come the tables.
    """

    part: int
    array: str
    start: int
    stop: int
    number: int = 0


class Hold(Message, frozen=True, gc=False, kw_only=True):
    """Leader to server: ps:0 lets no version be made but those under way, until the order with this number
    comes.
    """

    generation: int
    number: tuple[int, int]


class Holding(Message, frozen=True, gc=False, kw_only=True):
    """Server to leader: acknowledges `Hold`.

    Attributes:
        version: ps:0: the first one that no push has begun to change; of others it means nothing.
        assigned: the number of the newest order with values that this server has heard.
    """

    term: int
    version: int
    optimizer: dict[str, Any]
    stopped: bool
    assigned: tuple[int, int] = (0, 0)


class Control(Message, frozen=True, gc=False, kw_only=True):
    """Leader to server: this holds from `version` on. Blocks: new values of every group, then of each table
    all rows, or none where they stay; no blocks at all where all values stay.

    Attributes:
        optimizer: the same rule as before, perhaps with other numbers.
        until: no version beyond this one may be made before the next order; None: there is no such limit.
    """

    generation: int
    number: tuple[int, int]
    term: int
    version: int
    optimizer: dict[str, Any]
    stop: bool = False
    until: int | None = None


class Controlled(Message, frozen=True, gc=False, kw_only=True):
    """Server to leader: done."""


class Learned(Message, frozen=True, gc=False, kw_only=True):
    """Leader to the control host: it has learned this; the host acknowledges it by the same without a state.

    Control host to another task: the answer to `AskLearned`.

    Attributes:
        state: JSON. Empty: the leader has not learned it, or it is too large: the task learns for itself.
    """

    key: str
    state: bytes = b""


class AskLearned(Message, frozen=True, gc=False, kw_only=True):
    """Any other task to the control host: what has the leader learned? The answer is `Learned`, once it is
    known.

    Attributes:
        fits: how many calls of `fit` this task has begun. A leader that has begun more has passed the place
            of the program where it would have learned it.
    """

    key: str
    fits: int
