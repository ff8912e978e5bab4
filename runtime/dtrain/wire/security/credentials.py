"""The credentials of a task: what it says of itself and proves itself with on every connection."""

from dataclasses import dataclass
from typing import Self

from dtrain.messages import Hello
from dtrain.process.assignment import TaskAssignment


@dataclass(frozen=True)
class Credentials:
    """Made once a task, and given to everything that opens or accepts connections.

    Attributes:
        hello: the task, its run and its cluster.
    """

    hello: Hello

    @classmethod
    def of(cls, assignment: TaskAssignment) -> Self:
        """Return the credentials of one process's task."""
        return cls(assignment.hello())
