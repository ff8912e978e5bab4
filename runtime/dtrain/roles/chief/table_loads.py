"""The loading of a term's tables on a server in parts that never keep it from others for long. Pure."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import numpy as np

from dtrain.learning.core.drawn_table import DrawnTable
from dtrain.messages import Load
from dtrain.parameters.placement import Plan
from dtrain.types import Array
from dtrain.variables import DTYPE_BYTES
from dtrain.variables.lazy_table import BLOCK_BYTES, row_blocks

Tables = Mapping[str, Mapping[str, Any]]
"""Arrays by variable: its rows under ``""`` and each slot under its name; sliced by rows."""

Part = tuple[Load, Callable[[], list[Array]]]
"""Rows of a table, and what makes its blocks: none for those that the server draws."""


def descriptions(tables: Tables) -> dict[str, dict[str, dict[str, Any]]]:
    """Return how the arrays that are not shipped are drawn; see `Initialise.drawn`."""
    return {
        name: {array: source.describe() for array, source in arrays.items() if isinstance(source, DrawnTable)}
        for name, arrays in tables.items()
    }


def loads(plan: Plan, server: int, tables: Tables, term: int, nbytes: int = BLOCK_BYTES) -> list[Part]:
    """Yield all tables of a server, in parts of about `nbytes`; the last one is marked."""
    parts: list[Part] = []
    for number, shard in enumerate(plan.layout(server).tables):
        for array, source in tables[plan.variables[shard.variable].name].items():
            for start, stop in row_blocks(shard.shape, DTYPE_BYTES[shard.dtype], nbytes):
                rows = slice(shard.row_start + start, shard.row_start + stop)
                parts.append(
                    (
                        Load(term=term, table=number, array=array, start=start, stop=stop),
                        partial(_blocks, source, rows),
                    )
                )
    if parts:
        parts[-1] = msgspec.structs.replace(parts[-1][0], last=True), parts[-1][1]
    return parts


def _blocks(source: Any, rows: slice) -> list[Array]:
    return [] if isinstance(source, DrawnTable) else [np.ascontiguousarray(source[rows]).reshape(-1)]
