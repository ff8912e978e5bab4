"""A question to a parameter server that it cannot answer yet."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.messages import Lookup, Pull, Snapshot
from dtrain.roles.parameter_server.actions import Caller

Question = Pull | Lookup | Snapshot


@dataclass(frozen=True)
class Request:
    """A request, which is answered at its deadline at the latest."""

    caller: Caller
    task: str
    message: Question
    deadline_s: float
    blocks: Sequence[np.ndarray[Any, Any]] = ()
