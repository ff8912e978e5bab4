"""TLS of a task: its certificates, and handshakes; only a task that has TLS loads this file.

Both ends show a certificate that descends from an authority of the run. If certificates name their tasks
(`dtrain.cluster.spec`), a client takes no other server for the one it wants, and a server
compares the certificate with what its peer says of itself: a worker's key is no chief's. With a user's own
authority, whose certificates do not name tasks, the authority and the run's secret decide.

Nothing here parses a certificate. Both ends of a TLS handshake are played in memory instead: that shows
whether the three files fit each other, and says what the certificate names and how long it is valid.
"""

import os
import socket
import ssl
import threading
from collections.abc import Callable, Generator, Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from dtrain.cluster import JOINING, ClusterSpec, Role, TaskId
from dtrain.cluster.hosts import is_loopback
from dtrain.cluster.spec import (
    JOINED,
    NETWORK,
    SCHEME,
    host_name,
    joined_worker,
    names_tasks,
    task_name,
    task_uri,
)
from dtrain.config.choices import TlsMode
from dtrain.errors import SpecError
from dtrain.process.acceptor import WAITS, when_ready
from dtrain.process.assignment import TaskAssignment
from dtrain.process.tls_material import TlsMaterial, read_tls_file
from dtrain.wire.addresses import SILENT

_LONGEST_HANDSHAKE = 10
_BY_TIME = (9, 10)
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED. Source: openssl/x509_vfy.h."""


class Certificate(msgspec.Struct, frozen=True):
    """TlsMaterial that has been checked, and what its certificate says; times are in seconds since 1970."""

    material: TlsMaterial
    hosts: tuple[str, ...]
    uris: tuple[str, ...]
    begins_s: float
    ends_s: float


class CertificateFiles(msgspec.Struct, frozen=True):
    """The files with the material of a task."""

    authorities: Path
    certificate: Path
    key: Path

    def state(self) -> tuple[Any, ...]:
        return tuple(map(_state, (self.authorities, self.certificate, self.key)))

    def read(self) -> TlsMaterial:
        authorities, certificate = read_tls_file(self.authorities), read_tls_file(self.certificate)
        return TlsMaterial(authorities, certificate, read_tls_file(self.key, private=True))

    def __str__(self) -> str:
        return f"{self.authorities}, {self.certificate}, {self.key}"


class Certificates:
    """The certificate of a task as it is now; every new connection asks for it, from any thread."""

    def __init__(
        self, source: CertificateFiles | TlsMaterial, warn: Callable[[str], None] = lambda text: None
    ) -> None:
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
    return f"; the clock of {socket.gethostname()} says {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def checked(material: TlsMaterial, where: str) -> Certificate:
    """Raise a `SpecError` unless the certificate, key and authorities from `where` fit each other."""
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
    """Return what one end of a connection needs; it demands a certificate of the other end. A `ValueError`
    (or `ssl.SSLError`) says that one of the three is none, or that they do not fit.
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


MOUNTED = Path("/etc/dtrain/tls")
"""Where cert-manager's three files are looked for if no file is named."""
NO_CERTIFICATE = (
    "security.tls is required, and this task has no certificate: give it --tls-ca, --tls-cert and --tls-key "
    f"(`dtrain certificates SPEC --out tls` makes them), or put ca.crt, tls.crt and tls.key into {MOUNTED}"
)


class Tls(msgspec.Struct, frozen=True):
    """The TLS of one task.

    Attributes:
        run_id: of the run that certificates name; "" for a task that does not know it yet.
    """

    certificates: Certificates
    cluster: ClusterSpec
    run_id: str
    everywhere: bool

    def covers(self, address: str) -> bool:
        return self.everywhere or not is_loopback(address)

    def server_name(self, peer: str) -> str | None:
        """Return the name that the certificate of a server (``ps:0``) must have; None: its address's host."""
        own = self.certificates.current()
        if names_tasks(own.uris) and self.run_id:
            return host_name(task_name(TaskId.parse(peer)))
        return NETWORK if NETWORK in own.hosts else None

    def checker(self, peer: str, address: str) -> Callable[[socket.socket], str | None]:
        name = self.server_name(peer) or address.rpartition(":")[0].strip("[]")
        return partial(tls_obstacle, own=self.certificates.current(), name=name)

    def refusal(self, task: str, uris: Iterable[str]) -> str | None:
        """Return why a certificate with these URIs is not a task's; None if it is, or need not name one."""
        named = [uri for uri in uris if uri.startswith(SCHEME)]
        if not named and not names_tasks(self.certificates.current().uris):
            return None
        found = TaskId.parse(task)
        expected = set() if found == JOINING else {task_uri(self.run_id, task_name(found))}
        if found.role is Role.WORKER and found not in self.cluster:
            expected.add(task_uri(self.run_id, joined_worker()))
        if expected & set(named):
            return None
        who = "the worker that would like to join" if found == JOINING else task
        return f"the certificate of {who} is that of {', '.join(named) or 'no task'}, not of {min(expected)}"


def tls_of(assignment: TaskAssignment, warn: Callable[[str], None]) -> Tls | None:
    """Return the TLS of a task on a network, or that requires it; None if it has no certificate. A
    `SpecError` says that a required one is missing, cannot be used, or is another task's.
    """
    required = assignment.spec.security.tls == TlsMode.REQUIRED
    if (source := _source(assignment)) is None:
        if required:
            raise SpecError(NO_CERTIFICATE)
        return None
    certificates = Certificates(source, warn)
    tls = Tls(certificates, assignment.cluster, assignment.run_id, everywhere=required)
    if assignment.run_id and (reason := tls.refusal(str(assignment.task), certificates.current().uris)):
        raise SpecError(f"{source}: {reason}; after a change of addresses: `dtrain certificates --renew`")
    return tls


def _source(assignment: TaskAssignment) -> CertificateFiles | TlsMaterial | None:
    section = assignment.spec.security.of_task(
        assignment.task.role, JOINED if assignment.joined else assignment.task.index
    )
    if section.ca_file and section.cert_file and section.key_file:
        return CertificateFiles(
            *(Path(name).expanduser() for name in (section.ca_file, section.cert_file, section.key_file))
        )
    if assignment.tls is not None:
        return assignment.tls
    mounted = CertificateFiles(*(MOUNTED / name for name in ("ca.crt", "tls.crt", "tls.key")))
    return mounted if any(mounted.state()) else None


NO_TLS = "it does not speak TLS, or not with this run's CA"
NOT_WANTED = "it does not accept this task's certificate, which may be another CA's, or have expired"
_EXPIRED, _HOST_MISMATCH, _ADDRESS_MISMATCH = 10, 62, 64
"""OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED, _HOSTNAME_MISMATCH and _IP_ADDRESS_MISMATCH."""


def tls_obstacle(connection: socket.socket, own: Certificate, name: str) -> str | None:
    """Return why no TLS connection can be made of an open one, which is used up; None if one was made."""
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


class ServerEnd:
    """The serving end's context. A connection that does not block raises `waits` where it needs more."""

    waits = (*WAITS, ssl.SSLWantReadError, ssl.SSLWantWriteError)

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._used: Certificate | None = None

    def wrap(self, connection: socket.socket) -> ssl.SSLSocket:
        now = self._tls.certificates.current()
        if now is not self._used:
            self._context = context(now.material, server=True)
            self._used = now
        return self._context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def agreed(self, connection: socket.socket) -> Generator[None, None, list[str]]:
        """Return the names in the certificate of a client, once TLS has been agreed upon."""
        assert isinstance(connection, ssl.SSLSocket)
        yield from when_ready(connection.do_handshake, self.waits)
        said: dict[str, Any] = dict(connection.getpeercert() or {})
        return [name for _, name in said.get("subjectAltName", ())]


def client_end(connection: socket.socket, tls: Tls, peer: str, host: str) -> ssl.SSLSocket:
    """Return a connection with TLS, in which the server's certificate is the peer's; else an `OSError`."""
    made = context(tls.certificates.current().material, server=False)
    made.check_hostname = True
    return made.wrap_socket(connection, server_hostname=tls.server_name(peer) or host)
