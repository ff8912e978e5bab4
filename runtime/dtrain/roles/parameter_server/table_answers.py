"""A server's answers to messages about one of its tables."""

from dtrain.errors import InputError
from dtrain.messages import AnyMessage, Load, Loaded, Lookup, Refusal, Rows, SnapshotRows
from dtrain.roles.parameter_server.term_state import TermState
from dtrain.types import Blocks


def table_answer(
    held: TermState | None,
    message: Load | Lookup | SnapshotRows,
    blocks: Blocks,
    rank: int | None = None,
    whole: bool = True,
) -> tuple[AnyMessage, Blocks]:
    """Return the answer and its blocks, or a refusal; rows are compressed unless they are to be `whole`."""
    if held is None:
        return Refusal(reason=f"there are no tables for {type(message).__name__} in this term"), ()
    try:
        match message:
            case Load():
                held.store.table(message.table).load(message.array, message.start, message.stop, *blocks)
                return Loaded(), ()
            case Lookup():
                rows = held.rule.rows_for(rank, message.tables, blocks)
                rows = rows if whole else held.store.compressed_rows(message.tables, rows)
            case SnapshotRows():
                rows = [held.store.read_snapshot(message.part, message.array, message.start, message.stop)]
        return Rows(), rows
    except (InputError, ValueError, TypeError) as error:
        return Refusal(reason=f"{type(message).__name__} does not fit: {error}"), ()
