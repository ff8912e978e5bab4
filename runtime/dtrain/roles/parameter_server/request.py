"""A question to a parameter server that it cannot answer yet."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dtrain.control.interface import Caller
from dtrain.messages import Lookup, Pull, Snapshot

Question = Pull | Lookup | Snapshot


@dataclass(frozen=True)
class PendingRequest:
    """A request, which is answered at its deadline at the latest."""

    caller: Caller
    task: str
    message: Question
    deadline_s: float
    blocks: Sequence[np.ndarray[Any, Any]] = ()
