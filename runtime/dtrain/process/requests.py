"""The request of `dtrain worker --join` to a process of the runtime, as JSON.

The request goes through a process of its own, so that the command, which owns tasks, needs no gRPC and no
threads.
"""

import msgspec

from dtrain.config import SecuritySection
from dtrain.config.choices import Transport
from dtrain.messages import JoinPlace
from dtrain.process.tls_material import TlsMaterial


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The question to one server of a run.

    Attributes:
        parent: the pid of the command: its end is the request's end.
        server: for messages: ``ps:0``.
        address: where it serves.
        transport: as in `wire.connecting`.
        reach_s: how long the server may take to accept a connection.
        wait_s: how long the run may take to begin training.
        run_id: of the run; empty if the address is all that is known of it.
        cluster: as TF_CONFIG has it; its server alone if that is all that is known.
        security: of this machine.
        secret: of the run.
        tls: a certificate that the run's launcher has made.
    """

    parent: int
    server: str
    address: str
    transport: Transport
    reach_s: float
    wait_s: float
    run_id: str
    cluster: dict[str, list[str] | dict[str, str]]
    security: SecuritySection
    secret: str | None = None
    tls: TlsMaterial | None = None


class JoinAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The place, or why there is none: the class in `dtrain.errors`, and the message."""

    place: JoinPlace | None = None
    kind: str = "PeerError"
    error: str = ""


encode_join_message = msgspec.json.Encoder().encode
read_join_request = msgspec.json.Decoder(JoinRequest).decode
read_join_answer = msgspec.json.Decoder(JoinAnswer).decode
