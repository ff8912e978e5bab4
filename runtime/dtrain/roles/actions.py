"""What a machine asks its driver to do. Decisions are made in machines; only drivers act."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.messages import AnyMessage

Caller = Hashable
"""A connection, as a machine knows it: something to answer to."""


@dataclass(frozen=True, slots=True)
class Send:
    """Answer on a connection. The blocks may be a server's own memory: the driver copies them before anything changes."""

    caller: Caller
    message: AnyMessage
    blocks: Sequence[np.ndarray[Any, Any]] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """ps:i: tell ps:0."""

    message: AnyMessage


@dataclass(frozen=True, slots=True)
class End:
    """Stop serving; `failed` says why if it is not because all is done."""

    failed: str | None = None


Action = Send | Report | End
