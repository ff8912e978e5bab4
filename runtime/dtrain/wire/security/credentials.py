"""The credentials of a task: what it says of itself and proves itself with on every connection."""

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

import msgspec
from msgspec.structs import replace

from dtrain.cluster.hosts import is_loopback
from dtrain.config.choices import TlsMode
from dtrain.messages import Hello
from dtrain.process.assignment import TaskAssignment
from dtrain.wire.security.proof import SALT_BYTES, Keyring

if TYPE_CHECKING:
    from dtrain.wire.security.tls import Tls


class Credentials(msgspec.Struct, frozen=True, eq=False):
    """The identity of a task, made once and given to everything that opens or accepts connections.

    Attributes:
        tls: of this task; None: it connects and serves in plaintext.
    """

    hello: Hello
    keyring: Keyring
    tls: "Tls | None" = None

    @classmethod
    def of(cls, assignment: TaskAssignment, warn: Callable[[str], None]) -> Self:
        """Return the credentials of one process's task; `warn` is told of replaced files that cannot be used.
        A required certificate that is missing, cannot be used, or is another task's raises a `SpecError`.
        """
        made = cls.made(assignment.hello(), assignment.secret)
        mode, cluster = assignment.spec.security.tls, assignment.cluster
        addresses = [cluster.address(task) or "" for task in cluster.tasks()]
        addresses += [assignment.moved_to] if assignment.moved_to else []
        if mode != TlsMode.REQUIRED and (mode != TlsMode.AUTO or all(map(is_loopback, addresses))):
            return made
        from dtrain.wire.security.tls import tls_of  # ssl: 1 MB and 10 ms, which no task on one host takes

        return replace(made, tls=tls_of(assignment, warn))

    @classmethod
    def made(cls, hello: Hello, secret: str | None = None) -> Self:
        return cls(hello, Keyring(secret, secrets.token_bytes(SALT_BYTES)))

    def certificate_life(self) -> tuple[float, float] | None:
        """Return the certificate's first and last moment, in seconds since 1970; None: there is none."""
        if self.tls is None:
            return None
        now = self.tls.certificates.current()
        return now.begins_s, now.ends_s
