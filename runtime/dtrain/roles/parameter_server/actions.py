"""What a machine asks its driver to do. Decisions are made in machines; only drivers act."""

from collections.abc import Hashable, Sequence
from typing import Any

import msgspec
import numpy as np

from dtrain.messages import AnyMessage

Caller = Hashable
"""A connection, as a machine knows it: something to answer to."""


class Send(msgspec.Struct, frozen=True):
    """Answer on a connection. The blocks may be a server's own memory: the driver copies them before anything
    changes.
    """

    caller: Caller
    message: AnyMessage
    blocks: Sequence[np.ndarray[Any, Any]] = ()


class Report(msgspec.Struct, frozen=True):
    """ps:i: tell ps:0."""

    message: AnyMessage


class End(msgspec.Struct, frozen=True):
    """Stop serving; `failed` says why if it is not because all is done."""

    failed: str | None = None


Action = Send | Report | End
