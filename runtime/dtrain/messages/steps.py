"""The messages between a replica and a server at every step, and of rows (docs/design/protocol.md)."""

from enum import StrEnum
from typing import Any

from dtrain.messages.message import Message
from dtrain.state.fit_state import Sums


class Load(Message, frozen=True, gc=False, kw_only=True):
    """Leader to server: rows of one array of the table with this number in the layout. Blocks: the rows,
    flat; none: draw them.

    Attributes:
        array: "" for the rows of the variable, else a slot's name.
        last: everything has come: the term begins.
    """

    term: int
    table: int
    array: str
    start: int
    stop: int
    last: bool = False


class Loaded(Message, frozen=True, gc=False, kw_only=True):
    """Server to leader: done."""


class LookupRows(Message, frozen=True, gc=False, kw_only=True):
    """Any task to server: rows of the tables with these numbers in the layout, within `wait_s`. Blocks: row
    numbers in each shard, ascending.
    """

    generation: int
    tables: tuple[int, ...]
    wait_s: float
    term: int = 0


class Rows(Message, frozen=True, gc=False, kw_only=True):
    """Server to the task that asked. Blocks: the rows of each table, flat.

    In sync they may be of a later version than the values at hand; then the gradient is stale already and
    will not be applied.
    """


class Verdict(StrEnum):
    """The verdict on a push."""

    ACCEPTED = "accepted"
    """It is part of a version."""
    PENDING = "pending"
    """Sync with quotas: held for the version that is being made; contribute again to the same version."""
    STALE = "stale"
    """Not applied: it came too late (async: after its replica was thought dead) or was too old (async)."""
    REFUSED = "refused"
    """It breaks the rules (shape, plan, non-finite values) and was not applied; `reason` says which."""
    FINISHED = "finished"
    """Training has reached its last step; it was not applied."""
    VOID = "void"
    """The servers have gone back to a checkpoint: whatever it was, it is not part of what they hold now."""


class Pull(Message, frozen=True, gc=False, kw_only=True):
    """Replica to server: the newest values, once the generation and term are there and the version is at
    least `at_least`; after `wait_s` what there is. `term` 0 means any; `concluded` asks ps:0 only whether
    the last step has been saved. `answered` is the replica's newest push that every server has answered.
    """

    generation: int
    at_least: int
    wait_s: float
    term: int = 0
    concluded: bool = False
    answered: int = 0


class NotReady(Message, frozen=True, gc=False, kw_only=True):
    """Server to replica: `wait_s` is over and what was asked for is not there."""

    reason: str


class Values(Message, frozen=True, gc=False, kw_only=True):
    """Server to replica: a version of everything it holds. Blocks: every group's values.

    To a replica that speaks of an earlier generation or term it says, without blocks, that there is a later
    one.

    `ticket` (ps:0 only) is the permission to push once more; without one the replica pulls again. With it
    ps:0 says which `part` is to be computed next, every batch being cut into `parts`, in `even` pieces or
    not, and `rest` being made of parts of several; see `protocol.part_dealer` and `state.batch_cut`.
    `held` tells the leader that the next version waits for its order. `tally` is for
    the leader alone: see `protocol.tally`. In async `repairs` says that the part makes no step, because some
    server may lack what ps:0 has of it; `settled` is False where ps:0 makes nothing more before every server
    has what it has. `inner` is the optimizer of replicas in local steps, and `speeds` says how the round is
    shared among them by their speed; see `state.rounds`.
    """

    generation: int
    version: int
    max_steps: int
    ticket: bool = True
    part: int = -1
    term: int = 0
    first_step: int = 0
    held: bool = False
    parts: int = 1
    tally: tuple[tuple[int, Sums], ...] = ()
    repairs: bool = False
    settled: bool = True
    even: bool = False
    rest: tuple[int, ...] = ()
    inner: dict[str, Any] | None = None
    speeds: tuple[int, ...] = ()


class Push(Message, frozen=True, gc=False, kw_only=True):
    """Replica to server: one gradient. Blocks: the gradient of every trainable group, the new values of every
    other group.

    Then, for each trainable table of the server, row numbers in its shard, ascending, and the gradients of
    these rows, flat.

    `sequence` counts the replica's pushes; `ordinal` those to `base_version` (sync with quotas). `finite`
    speaks of the whole gradient, so that every server refuses one whose NaN lies on another server.

    Attributes:
        part: the one that ps:0 gave; see `protocol.part_dealer`.
        empty: how many of its batch's parts have none: the last ones.
        steps: in local steps, how many the round has had.
        step_s: and how many seconds each of them took.
    """

    generation: int
    incarnation: int
    sequence: int
    base_version: int
    plan_hash: str
    ordinal: int = 0
    finite: bool = True
    part: int = -1
    term: int = 0
    examples: int = 1
    empty: int = 0
    sums: Sums | None = None
    steps: int = 1
    step_s: float = 0.0


class Reply(Message, frozen=True, gc=False, kw_only=True):
    """Server to replica: what became of a push. Blocks: every group's values at `version`, unless `verdict`
    is pending.

    Attributes:
        staleness: async: versions applied between the pull and the push; 0 in sync.
        accepted: of this replica's contributions to the version just made, how many count (sync with quotas:
            may exceed 1).
        inner: the optimizer of replicas in local steps, as of these values; None: as before.
        speeds: as in `Values`; none: as before.
    """

    verdict: Verdict
    version: int
    staleness: int = 0
    duplicate: bool = False
    accepted: int = 0
    stale: int = 0
    ticket: bool = True
    reason: str | None = None
    part: int = -1
    tally: tuple[tuple[int, Sums], ...] = ()
    repairs: bool = False
    inner: dict[str, Any] | None = None
    speeds: tuple[int, ...] = ()
