"""Limits of the connections that have proven nothing yet, one row for every listener of dtrain's."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PendingLimits:
    """The limits of the connections to one listener that have not proven yet that they belong to the run.

    Attributes:
        connections: how many may wait at a time. For one more the oldest of the source with the most is
            closed; gRPC, which accepts by itself, closes the new one.
        wait_s: how long each may take for its proof.
        message_bytes: the longest message that it may send before.
    """

    connections: int
    wait_s: float
    message_bytes: int


GREETING_LIMIT_BYTES = 4096

GRPC = PendingLimits(connections=256, wait_s=2.0, message_bytes=8192)
"""Connections beside those that the run's tasks may have open. The message is the metadata of a call, in
which a greeting is a third longer. A task whose proof takes longer than `wait_s` connects again."""
STREAMS = PendingLimits(connections=64, wait_s=10.0, message_bytes=GREETING_LIMIT_BYTES)
"""TCP connections between replicas (`wire.streams`), the time of a TLS handshake included."""
ONE_HOST = PendingLimits(connections=256, wait_s=10.0, message_bytes=GREETING_LIMIT_BYTES)
"""The Unix socket of a server (`wire.one_host`)."""
