"""Channels and ports of gRPC: made here alone, with TLS or in plaintext, with their options and reasons."""

from typing import TYPE_CHECKING, Any

import grpc

from dtrain.process.acceptor import GRPC_LIMITS
from dtrain.wire.frames import CHUNK_BYTES, SMALL_BYTES

if TYPE_CHECKING:  # they load ssl, which a task without TLS does not need
    from dtrain.wire.security.tls import Certificate, Certificates, Tls


def open_channel(peer: str, address: str, tls: "Tls | None") -> grpc.Channel:
    if tls is None or not tls.covers(address):
        return grpc.insecure_channel(address, options=CLIENT)
    material = tls.certificates.current().material
    credentials = grpc.ssl_channel_credentials(material.authorities, material.key, material.certificate)
    name = tls.server_name(peer)
    options = CLIENT if name is None else (*CLIENT, ("grpc.ssl_target_name_override", name))
    return grpc.secure_channel(address, credentials, options)


def add_port(server: grpc.Server, address: str, tls: "Tls | None") -> bool:
    try:
        if tls is None or not tls.covers(address):
            return bool(server.add_insecure_port(address))
        return bool(server.add_secure_port(address, _server_credentials(tls.certificates)))
    except RuntimeError:
        return False


def names_of(context: Any) -> list[str] | None:
    said = context.auth_context()
    if "transport_security_type" not in said:
        return None
    return [name.decode(errors="replace") for name in said.get("x509_subject_alternative_name", ())]


def _server_credentials(certificates: "Certificates") -> grpc.ServerCredentials:
    """Return credentials that demand a certificate of clients, and look for new files at each connection."""
    used = certificates.current()

    def replaced() -> Any:
        nonlocal used
        if (now := certificates.current()) is used:
            return None
        used = now
        return _configuration(now)

    return grpc.dynamic_ssl_server_credentials(_configuration(used), replaced, True)


def _configuration(certificate: "Certificate") -> Any:
    material = certificate.material
    pair = (material.key, material.certificate)
    return grpc.ssl_server_certificate_configuration([pair], material.authorities)


METHOD_SERVICE = "dtrain.Task"
TALK = "Talk"
MEET = "Meet"
HELLO_KEY = "dtrain-hello-bin"
"""What a client says before it is let in: its opening and its first proof to `Meet`, the last
one to `Talk`."""
LOCAL_KEY = "dtrain-local-bin"
"""In what the server says to whom it lets in: the name of its socket for tasks on its host."""

MESSAGE_LIMIT_BYTES = CHUNK_BYTES + SMALL_BYTES
"""The longest message of gRPC's: a chunk, or a header's piece with a small payload behind it."""

COMMON = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
    # A retry of gRPC's own would keep every message's history; dtrain's retries are idempotent instead (rule
    # 5).
    ("grpc.enable_retries", 0),
    # What a peer may send before it is read, below. gRPC's own estimate grows to whole messages, and so would
    # a server's memory.
    ("grpc.http2.bdp_probe", 0),
    # A frame takes its place in the window when it begins: with large ones there is room for the next while
    # it is still coming.
    ("grpc.http2.max_frame_size", 4 * 1024 * 1024),
    # A dead host is noticed although nothing is being sent.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

CLIENT = (
    *COMMON,
    # A replica has few servers: over 80 ms of network 32 MB of values come in two such windows, not in eight.
    ("grpc.http2.lookahead_bytes", 16 * 1024 * 1024),
    # A server that has just been forked is up within milliseconds: look again soon.
    ("grpc.initial_reconnect_backoff_ms", 20),
    # So long an attempt may take: over 500 ms of network it is two round trips.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Each connection has its own socket: heartbeats never queue behind tensors.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)

SERVER = (
    *COMMON,
    # A server has many clients, each of which may fill its window while it waits for its turn: with 16 MiB it
    # leaves its bound.
    ("grpc.http2.lookahead_bytes", 4 * 1024 * 1024),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    # A client has one call at a time on a connection; a stranger's costs memory until it is refused.
    ("grpc.max_concurrent_streams", 4),
    ("grpc.max_metadata_size", GRPC_LIMITS.message_bytes),
    ("grpc.server_handshake_timeout_ms", round(1000 * GRPC_LIMITS.wait_s)),
    # A connection that has no call for so long is no task's.
    ("grpc.max_connection_idle_ms", round(1000 * GRPC_LIMITS.wait_s)),
)
