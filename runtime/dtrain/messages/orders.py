"""The words of the leader: orders (docs/design/protocol.md#configuration-changes), which bring other numbers
or values, or an end; and what it has learned from data (docs/design/protocol.md#learned-once).
"""

from typing import Any

from dtrain.messages.message import Message


class Hold(Message, frozen=True, gc=False, kw_only=True):
    """Leader to server: ps:0 lets no version be made but those under way, until the order with this number
    comes.

    See `roles.chief.order`.
    """

    generation: int
    number: tuple[int, int]


class Holding(Message, frozen=True, gc=False, kw_only=True):
    """Server to leader: acknowledges `Hold`.

    Attributes:
        version: ps:0: the first one that no push has begun to change; of others it means nothing.
        optimizer: the rule in force.
        stopped: an earlier order has ended training.
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
        stop: it is the last version.
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
        key: says what, the same in every task.
        state: JSON. Empty: the leader has not learned it, or it is too large: the task learns for itself.
    """

    key: str
    state: bytes = b""


class AskLearned(Message, frozen=True, gc=False, kw_only=True):
    """Any other task to the control host: what has the leader learned? The answer is `Learned`, once it is
    known.

    Attributes:
        key: says what.
        fits: how many calls of `fit` this task has begun. A leader that has begun more has passed the place
            of the program where it would have learned it.
    """

    key: str
    fits: int
