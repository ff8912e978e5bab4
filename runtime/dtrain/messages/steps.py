"""What a replica and a server say to each other at every step. Rules 1-5 and 8."""

from typing import Any

from dtrain.messages.message import Message
from dtrain.verdict import Verdict


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
