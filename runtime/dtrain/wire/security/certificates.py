"""A task's certificate, its key and the authorities that it trusts: files that may be replaced at any time.

Nothing here parses a certificate. Both ends of a TLS handshake are played in memory instead: that shows
whether the three files fit each other, and says what the certificate names and how long it is valid.
"""

import os
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dtrain.errors import SpecError
from dtrain.process.tls_material import TlsMaterial, read_tls_file

_LONGEST_HANDSHAKE = 10
_BY_TIME = (9, 10)
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED. Source: openssl/x509_vfy.h."""


@dataclass(frozen=True)
class Certificate:
    """TlsMaterial that has been checked, and what its certificate says.

    Attributes:
        hosts: its DNS names.
        uris: its URIs.
        begins_s: from when on it is valid, in seconds since 1970.
        ends_s: until when.
    """

    material: TlsMaterial
    hosts: tuple[str, ...]
    uris: tuple[str, ...]
    begins_s: float
    ends_s: float


@dataclass(frozen=True)
class CertificateFiles:
    """The files with the material of a task."""

    authorities: Path
    certificate: Path
    key: Path

    def state(self) -> tuple[Any, ...]:
        """Return something that changes when a file is replaced."""
        return tuple(map(_state, (self.authorities, self.certificate, self.key)))

    def read(self) -> TlsMaterial:
        """Read the files.

        Raises:
            SpecError: one cannot be read, or the key can be read by others.
        """
        authorities, certificate = read_tls_file(self.authorities), read_tls_file(self.certificate)
        return TlsMaterial(authorities, certificate, read_tls_file(self.key, private=True))

    def __str__(self) -> str:
        return f"{self.authorities}, {self.certificate}, {self.key}"


class Certificates:
    """The certificate of a task as it is now; every new connection asks for it, from any thread."""

    def __init__(
        self, source: CertificateFiles | TlsMaterial, warn: Callable[[str], None] = lambda text: None
    ) -> None:
        """Read and check it.

        Args:
            source: the files, or what they would hold.
            warn: told when a file was replaced by one that cannot be used.

        Raises:
            SpecError: it cannot be used, and why.
        """
        self._source = source
        self._warn = warn
        self._lock = threading.Lock()
        self._state = source.state() if isinstance(source, CertificateFiles) else ()
        material = source.read() if isinstance(source, CertificateFiles) else source
        self._current = checked(
            material, str(source) if isinstance(source, CertificateFiles) else "handed over"
        )

    def current(self) -> Certificate:
        """Return the newest certificate that can be used: of files that were replaced, once they fit."""
        with self._lock:
            if isinstance(self._source, CertificateFiles) and (state := self._source.state()) != self._state:
                self._state = state
                try:
                    self._current = checked(self._source.read(), str(self._source))
                except SpecError as error:
                    self._warn(f"{error}; new connections use the certificate that was there before")
            return self._current


def _own_clock() -> str:
    """Return what is to be known where a time decides: a wrong clock is as likely as a wrong certificate."""
    return f"; the clock of {socket.gethostname()} says {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def checked(material: TlsMaterial, where: str) -> Certificate:
    """Check that a certificate, its key and the authorities fit each other.

    Args:
        material: what is checked.
        where: it comes from, for messages.

    Raises:
        SpecError: they do not.
    """
    try:
        said = _rehearsed(material)
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message + (_own_clock() if error.verify_code in _BY_TIME else "")
        raise SpecError(f"{where}: the certificate cannot be used: {why}") from None
    except (ssl.SSLError, ValueError) as error:
        raise SpecError(f"{where}: no files of TLS that fit each other: {error}") from None
    names = said.get("subjectAltName", ())
    return Certificate(
        material,
        hosts=tuple(name for kind, name in names if kind == "DNS"),
        uris=tuple(name for kind, name in names if kind == "URI"),
        begins_s=ssl.cert_time_to_seconds(said["notBefore"]),
        ends_s=ssl.cert_time_to_seconds(said["notAfter"]),
    )


def context(material: TlsMaterial, *, server: bool) -> ssl.SSLContext:
    """Return what one end of a connection needs; it demands a certificate of the other end.

    Raises:
        ValueError: one of the three is none, or they do not fit; `ssl.SSLError` is one.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    try:
        made.load_verify_locations(cadata=material.authorities.decode("ascii", "ignore"))
    except (ssl.SSLError, ValueError):
        raise ValueError("the first holds no certificates of authorities") from None
    # OpenSSL reads files alone; this one has no name. An encrypted key must not ask the terminal.
    with os.fdopen(os.memfd_create("dtrain", os.MFD_CLOEXEC), "wb") as file:
        file.write(material.key + b"\n" + material.certificate)
        file.flush()
        try:
            made.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password="")
        except ssl.SSLError as error:
            fault = "the key belongs to another certificate"
            if error.reason != "KEY_VALUES_MISMATCH":
                fault = "a certificate and a key without a password are expected"
            raise ValueError(fault) from None
    return made


def _rehearsed(material: TlsMaterial) -> dict[str, Any]:
    """Shake hands with itself; return the certificate as its peer sees it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context(material, server=False).wrap_bio(to_client, to_server)
    server = context(material, server=True).wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, server]
    for _ in range(_LONGEST_HANDSHAKE):
        waiting = [end for end in waiting if not _went_on(end)]
    return dict(client.getpeercert() or {})


def _went_on(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _state(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:  # there is something, and `read` will say what is wrong with it
        return (error.errno or -1,)
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
