"""The state of the servers for a checkpoint.

Rule *Consistent checkpoints* (docs/design/protocol.md#consistent-checkpoints).

The leader reads it block by block after the servers have answered, while training goes on: copy on write.
"""

from dtrain.messages.message import Message
from dtrain.state.fit_state import FitState


class Mark(Message, frozen=True, gc=False, kw_only=True):
    """Leader to servers, async: hold new pushes until you have answered `Snapshot`, at most for `wait_s`."""

    wait_s: float
    term: int = 0


class Marked(Message, frozen=True, gc=False, kw_only=True):
    """Server to leader: it is so.

    Attributes:
        applied: the batches that it has applied; see `protocol.applied_batches`.
        again: at ps:0: the batches that wait to be computed again; no replica is sending them.
        settled: at ps:0: below this number every batch is settled, and what was applied of them is on every
            server.
    """

    applied: tuple[int, tuple[int, ...]]
    again: tuple[int, ...] = ()
    settled: int = 0


class Snapshot(Message, frozen=True, gc=False, kw_only=True):
    """Leader to server: your state for a checkpoint, once your version in this term is at least `at_least`,
    within `wait_s`.

    In async the state of all servers must contain the same batches: the leader has marked all of them, and
    `covers` is what any of them had applied by then. Of the pushes that wait these are applied, and no others
    before the answer. `settled` as in `Marked`.

    `number` is another one each time that this is said, also to another server or on another connection.
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
        slots: names of the optimizer's slots.
        assigned: the number of the newest order whose values are among the arrays; every server tells it.
    """

    state: FitState
    slots: tuple[str, ...]
    assigned: tuple[int, int] = (0, 0)


class SnapshotRows(Message, frozen=True, gc=False, kw_only=True):
    """Leader to server: rows of one array as they were at the last snapshot; answered by `Rows`.

    Attributes:
        part: whose: a group's with this number in the layout, whose elements are the rows; after the groups
            come the tables.
        array: "" for the values, else a slot's name.
        start, stop: which rows. They are asked for in order: see `parameters.copy_on_write`.
        number: of the `Snapshot`; refused if there has been another one since, which may have come late on a
            broken connection.
    """

    part: int
    array: str
    start: int
    stop: int
    number: int = 0
