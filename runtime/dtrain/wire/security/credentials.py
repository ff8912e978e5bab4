"""The credentials of a task: what it says of itself and proves itself with on every connection."""

import secrets
from dataclasses import dataclass
from typing import Self

from dtrain.messages import Hello
from dtrain.process.assignment import TaskAssignment
from dtrain.wire.security.keys import SALT_BYTES, Keyring


@dataclass(frozen=True, eq=False)
class Credentials:
    """Made once a task, and given to everything that opens or accepts connections.

    Attributes:
        hello: the task, its run and its cluster.
        keyring: the keys of the run.
    """

    hello: Hello
    keyring: Keyring

    @classmethod
    def of(cls, assignment: TaskAssignment) -> Self:
        """Return the credentials of one process's task."""
        return cls.made(assignment.hello(), assignment.secret)

    @classmethod
    def made(cls, hello: Hello, secret: str | None = None) -> Self:
        """Return credentials with a new random salt."""
        return cls(hello, Keyring(secret, secrets.token_bytes(SALT_BYTES)))
