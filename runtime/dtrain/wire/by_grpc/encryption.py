"""Encryption of gRPC: the only place where channels and ports are made, with TLS or in plaintext."""

from typing import TYPE_CHECKING, Any

import grpc

from dtrain.wire.by_grpc.options import CLIENT

if TYPE_CHECKING:  # they load ssl, which a task without TLS does not need
    from dtrain.wire.security.certificates import Certificate, Certificates
    from dtrain.wire.security.tls import Tls


def open_channel(peer: str, address: str, tls: "Tls | None") -> grpc.Channel:
    """Return a channel to a server, with the certificate that this task has now.

    Args:
        peer: the server: ``ps:0``.
        address: where it serves.
        tls: of this task.
    """
    if tls is None or not tls.covers(address):
        return grpc.insecure_channel(address, options=CLIENT)
    material = tls.certificates.current().material
    credentials = grpc.ssl_channel_credentials(material.authorities, material.key, material.certificate)
    name = tls.server_name(peer)
    options = CLIENT if name is None else (*CLIENT, ("grpc.ssl_target_name_override", name))
    return grpc.secure_channel(address, credentials, options)


def add_port(server: grpc.Server, address: str, tls: "Tls | None") -> bool:
    """Bind the address of a server; return whether that was possible."""
    try:
        if tls is None or not tls.covers(address):
            return bool(server.add_insecure_port(address))
        return bool(server.add_secure_port(address, _server_credentials(tls.certificates)))
    except RuntimeError:
        return False


def names_of(context: Any) -> list[str] | None:
    """Return the names in the certificate of a call's client; None if the call came without TLS."""
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
