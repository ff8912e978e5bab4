"""A TLS handshake that is given up again, to learn why one fails: gRPC says no more than that it did."""

import socket
import ssl

from dtrain.wire.reaching import SILENT
from dtrain.wire.security.certificates import Certificate, context

NO_TLS = "it does not speak TLS, or not with this run's CA"
NOT_WANTED = "it does not accept this task's certificate, which may be another CA's, or have expired"
_EXPIRED, _HOST_MISMATCH, _ADDRESS_MISMATCH = 10, 62, 64
"""OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED, _HOSTNAME_MISMATCH and _IP_ADDRESS_MISMATCH."""


def tls_obstacle(connection: socket.socket, own: Certificate, name: str) -> str | None:
    """Return why no TLS connection can be made of an open one, which is used up; None if one was made.

    Args:
        connection: to the server, with a timeout.
        own: this task's certificate.
        name: that the server's certificate must have.
    """
    tls = context(own.material, server=False)
    tls.check_hostname = True
    tls.set_alpn_protocols(["h2"])
    made = None
    try:
        with tls.wrap_socket(connection, server_hostname=name) as made:
            # In TLS 1.3 a server looks at this task's certificate after the handshake; then it speaks first.
            return None if made.recv(1) else NOT_WANTED
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in (_HOST_MISMATCH, _ADDRESS_MISMATCH):
            return f"it is another task, or another host: its certificate is not that of {name}"
        if error.verify_code == _EXPIRED:
            return "its certificate has expired"
        return f"{NO_TLS} ({error.verify_message})"
    except TimeoutError:
        return SILENT
    except ssl.SSLError as error:
        return NOT_WANTED if made or "ALERT" in (error.reason or "") else NO_TLS
    except OSError:
        return NOT_WANTED if made else NO_TLS
