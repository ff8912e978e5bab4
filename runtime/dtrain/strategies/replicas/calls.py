"""One call that all replicas make together: what it is, and where in the program it stands."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from dtrain.errors import CallsDifferError

_OWN = (f"{Path(__file__).parents[2]}{os.sep}", f"{Path(os.__file__).parent}{os.sep}")
"""The folders of dtrain and of Python itself, whose lines are no call sites."""


@dataclass(frozen=True)
class Call:
    """A call in one replica.

    Attributes:
        kind: the function's name.
        what: what must be equal in all replicas, in words: operation, form, dtypes and shapes.
        site: ``file:line`` in the user's program.
    """

    kind: str
    what: str
    site: str

    def __str__(self) -> str:
        """Return the call for a message."""
        return f"{self.kind}{f' of {self.what}' if self.what else ''} at {self.site}"

    def agrees_with(self, other: "Call") -> bool:
        """Return whether two replicas make the same call."""
        return (self.kind, self.what) == (other.kind, other.what)


def call_site() -> str:
    """Return ``file:line`` of the innermost line that is not dtrain's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return "?" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def check_calls(calls: dict[int, Call]) -> None:
    """Raise a `CallsDifferError` that names two sites, unless all calls, by replica, agree."""
    first_rank = min(calls)
    for rank, call in sorted(calls.items()):
        if not call.agrees_with(calls[first_rank]):
            raise CallsDifferError(
                f"replicas made different calls: replica {first_rank} {calls[first_rank]}, replica {rank} "
                f"{call}; every replica must make the same calls in the same order, with values of the same "
                "form, shapes and dtypes"
            )


def missing(calls: dict[int, Call], ended: int) -> CallsDifferError:
    """Return the error for a replica that has ended without a call for which others wait."""
    rank = min(calls)
    return CallsDifferError(
        f"some replicas made a different number of calls: replica {rank} waits in {calls[rank]}, and replica "
        f"{ended} has ended without that call"
    )
