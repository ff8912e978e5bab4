"""The state of the servers for a checkpoint. Rule 11."""

from typing import Any

import msgspec

from dtrain.messages.message import Message


class Snapshot(Message, frozen=True, gc=False):
    """Leader to server: your state for a checkpoint, once your version in this term is at least `at_least`, within `wait_s`.

    In async the state of all servers must contain the same pushes (rule 11). ps:0 is asked first, with `mark`: it gives no more
    tickets until `Resume`, and answers when no push is under way. The others answer when they have seen what is in `covers`.
    """

    at_least: int
    wait_s: float
    term: int = 0
    mark: bool = False
    covers: list[tuple[str, int, int]] = msgspec.field(default_factory=list)


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
    optimizer: dict[str, Any] = msgspec.field(default_factory=dict)


class Resume(Message, frozen=True, gc=False):
    """Leader to ps:0: every server has answered; tickets are given again. Not answered; ps:0 waits for it for a while only."""
