"""Messages of a coordinator program: closures between the coordinator and its workers, and the variables that
closures read and change on the servers (docs/design/coordinator.md).

    worker -> coordinator   Attend / Attended, then TakeClosure / Closure, one pair a closure; a Refusal of
                            kind `ended` is the end
    coordinator -> server   Share / Shared: hold these variables
    any of them -> server   Look / Shown: the newest values;  Alter / Altered: change some

A *session* is one process of the coordinator: one that is started again begins anew on every server, and what
was said in an earlier session is void.
"""

from enum import StrEnum
from typing import Any

import msgspec

from dtrain.messages.message import Message


class Share(Message, frozen=True, gc=False, kw_only=True):
    """Coordinator to server: hold these variables, one by one, until the next session. Blocks: the values of
    each of the server's shards, flat, in the order of the plan.
    """

    session: int
    plan: dict[str, Any]


class Shared(Message, frozen=True, gc=False, kw_only=True):
    """Server to coordinator: acknowledges `Share`."""


class Look(Message, frozen=True, gc=False, kw_only=True):
    """Worker or coordinator to server: the newest values of these shards, by their numbers in the plan."""

    session: int
    shards: tuple[int, ...]


class Shown(Message, frozen=True, gc=False, kw_only=True):
    """Server's answer to `Look`. Blocks: the values of each shard, flat. `iterations` counts each optimizer's
    updates.
    """

    iterations: dict[str, int]


class Alteration(StrEnum):
    """The ways to change variables."""

    GRADIENT = "gradient"
    """An optimizer updates them by gradients."""
    ASSIGN = "assign"
    """They take new values."""
    ADD = "add"
    """They grow by values."""


class Alter(Message, frozen=True, gc=False, kw_only=True):
    """Worker or coordinator to server: change these shards. Blocks: for each a gradient or value, flat.

    Attributes:
        number: counts the changes of this closure on this server, from 0. One that was made before, in an
            earlier attempt at the closure, is not made again.
        settled: every closure below this number has ended, and changes no more.
        optimizer: its key, by which its slots and iterations are kept.
    """

    session: int
    closure: int
    number: int
    settled: int
    kind: Alteration
    shards: tuple[int, ...]
    optimizer: str = ""
    config: dict[str, Any] = msgspec.field(default_factory=dict)


class Altered(Message, frozen=True, gc=False, kw_only=True):
    """Server's answer to `Alter`. Blocks: after an assignment or addition each shard's new value, flat, as it
    was when the change was made.
    """

    iterations: int = 0


class Attend(Message, frozen=True, gc=False, kw_only=True):
    """Worker to coordinator: this process takes closures from now on."""


class Attended(Message, frozen=True, gc=False, kw_only=True):
    """Coordinator to worker: the session and the plan of its variables, also for a worker of an earlier
    session.
    """

    session: int
    plan: dict[str, Any]


class Failure(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """An exception that has ended a closure."""

    kind: str
    message: str
    trace: str


class TakeClosure(Message, frozen=True, gc=False, kw_only=True):
    """Worker to coordinator: the next closure; and what came of the last one. Block: its result, encoded.

    Attributes:
        closure: the one that has ended; 0: none.
    """

    session: int
    closure: int = 0
    failure: Failure | None = None


class Closure(Message, frozen=True, gc=False, kw_only=True):
    """Coordinator to worker: call this function. Block: its arguments, encoded.

    Attributes:
        module, function: the names by which the worker's own program knows the function.
    """

    number: int
    settled: int
    module: str
    function: str
