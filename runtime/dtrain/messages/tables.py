"""The rows of sparse variables: brought, looked up, saved."""

from dtrain.messages.message import Message


class Load(Message, frozen=True, gc=False, kw_only=True):
    """Leader to server: rows of one array of the table with this number in the layout. Blocks: the rows,
    flat; none: draw them.

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


class Loaded(Message, frozen=True, gc=False, kw_only=True):
    """Server to leader: done."""


class Lookup(Message, frozen=True, gc=False, kw_only=True):
    """Any task to server: rows of the tables with these numbers in the layout. Blocks: row numbers in each
    shard, ascending.

    The server answers after `wait_s` at the latest.
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
