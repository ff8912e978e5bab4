"""The head that goes before the lists of rows of one host, and what is refused of them.

A host sends, of each of its parts that count and for each table, ids and rows. How many lists there are, and
of which parts and tables, both ends know from the attempt; how long each is, the head says. So a receiver
knows what comes, and refuses a length that no list can have, before it takes memory for it.
"""

from collections.abc import Sequence

import numpy as np

from dtrain.collectives.tables import are_rows
from dtrain.errors import PeerRefusedError
from dtrain.types import Array

_WORDS = 3
"""The step, the attempt and the number of lists come before the lengths."""


def head_of(step: int, attempt: int, lengths: Sequence[int]) -> Array:
    """Return the head, int64, of lists with so many rows each."""
    return np.array([step, attempt, len(lengths), *lengths], np.int64)


def empty_head(lists: int) -> Array:
    """Return room for the head of so many lists."""
    return np.empty(_WORDS + lists, np.int64)


def lengths_in(head: Array, step: int, attempt: int, most: Sequence[int]) -> list[int]:
    """Return the length of each list that a head announces.

    Args:
        head: as it came, of as many lists as `most` has.
        step, attempt: of which the lists are expected.
        most: for each list, the rows of its table.

    Raises:
        PeerRefusedError: it is of other lists, or a list has more rows than its table.
    """
    words = [int(word) for word in head]
    expected = [step, attempt, len(most)]
    if words[:_WORDS] != expected:
        raise PeerRefusedError(
            "[step, attempt, number of lists] of the rows of tables: expected "
            f"{expected}, found {words[:_WORDS]}; do both ends run the same version and program?"
        )
    for length, rows in zip(words[_WORDS:], most, strict=True):
        if not 0 <= length <= rows:
            raise PeerRefusedError(
                f"the rows of a table: expected a list of 0 to {rows}, found one of {length}; do both ends "
                "run the same version and program?"
            )
    return words[_WORDS:]


def check_ids(ids: Array, before: int, rows: int) -> None:
    """Refuse ids that do not ascend from the one `before` them (-1: there is none) to the table's last row.

    Raises:
        PeerRefusedError: they do not.
    """
    if not are_rows(ids, rows, before):
        raise PeerRefusedError(
            f"the rows of a table: expected ascending numbers from {before + 1} to {rows - 1}, found others; "
            "do both ends run the same version and program?"
        )
