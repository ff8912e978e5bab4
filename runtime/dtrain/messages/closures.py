"""Messages of a coordinator program: closures between the coordinator and its workers, and the variables that
closures read and change on the servers (docs/design/protocol.md#closures).

    worker -> coordinator   TakeClosure, with the session 0 at first / Attended: the session; then
                            TakeClosure / Closure, one pair a closure; a Refusal of kind `ended` is the end
    coordinator -> server   Share / Operated: hold these variables
    any of them -> server   Operate / Operated: read some, or change them

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


class Operation(StrEnum):
    """Kinds of operations on variables."""

    READ = "read"
    GRADIENT = "gradient"
    """An optimizer updates them by gradients."""
    ASSIGN = "assign"
    """They take new values."""
    ADD = "add"
    """They grow by values."""


class Operate(Message, frozen=True, gc=False, kw_only=True):
    """Worker or coordinator to server: read these shards, or change them. Blocks: for each shard that is
    changed a gradient or value, flat.

    Attributes:
        number: counts the changes of this closure on this server, from 0. One that was made before, in an
            earlier attempt at the closure, is not made again.
        settled: every closure below this number has ended, and changes no more.
        optimizer: its key, by which its slots and iterations are kept.
    """

    session: int
    closure: int
    settled: int
    kind: Operation
    number: int = 0
    shards: tuple[int, ...]
    optimizer: str = ""
    config: dict[str, Any] = msgspec.field(default_factory=dict)


class Operated(Message, frozen=True, gc=False, kw_only=True):
    """Server's answer. Blocks: after all but gradients the value of each shard, flat, the newest one or as it
    was when the change was made. `iterations` counts each optimizer's updates.
    """

    iterations: dict[str, int] = msgspec.field(default_factory=dict)


class Attended(Message, frozen=True, gc=False, kw_only=True):
    """Coordinator to a worker that is new or of an earlier session: this session, and its variables' plan."""

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

    session: int = 0
    closure: int = 0
    failure: Failure | None = None


class Closure(Message, frozen=True, gc=False, kw_only=True):
    """Coordinator to worker: call this function. Block: its arguments, encoded.

    Attributes:
        module, function: the names by which the worker's own program knows the function.
    """

    module: str
    function: str
    number: int = 0
    settled: int = 0
