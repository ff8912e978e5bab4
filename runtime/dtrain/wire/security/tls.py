"""TLS of one task: whether a connection has it, and whether a peer's certificate is that of the task it is.

Both ends show a certificate that descends from an authority of the run. If certificates name their tasks
(`dtrain.cluster.certificate_names`), a client takes no other server for the one it wants, and a server
compares the certificate with what its peer says of itself: a worker's key is no chief's. With a user's own
authority, whose certificates do not name tasks, the authority and the run's secret decide.
"""

import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dtrain.cluster import JOINING, ClusterSpec, Role, TaskId
from dtrain.cluster.certificate_names import (
    JOINED,
    NETWORK,
    SCHEME,
    host_name,
    joined_worker,
    names_tasks,
    task_name,
    task_uri,
)
from dtrain.cluster.loopback import is_loopback
from dtrain.config.choices import TlsMode
from dtrain.errors import SpecError
from dtrain.process.assignment import TaskAssignment
from dtrain.process.tls_material import TlsMaterial
from dtrain.wire.security.certificates import CertificateFiles, Certificates
from dtrain.wire.security.trying import tls_obstacle

MOUNTED = Path("/etc/dtrain/tls")
"""Where cert-manager's three files are looked for if no file is named."""
NO_CERTIFICATE = (
    "security.tls is required, and this task has no certificate: give it --tls-ca, --tls-cert and --tls-key "
    f"(`dtrain certificates SPEC --out tls` makes them), or put ca.crt, tls.crt and tls.key into {MOUNTED}"
)


@dataclass(frozen=True)
class Tls:
    """The TLS of one task.

    Attributes:
        certificates: its own.
        cluster: whose tasks it talks to.
        run_id: of the run that certificates name; "" for a task that does not know it yet.
        everywhere: whether connections to loopback addresses have TLS, too.
    """

    certificates: Certificates
    cluster: ClusterSpec
    run_id: str
    everywhere: bool

    def covers(self, address: str) -> bool:
        """Return whether connections to an address have TLS."""
        return self.everywhere or not is_loopback(address)

    def server_name(self, peer: str) -> str | None:
        """Return the name that a server's certificate must have; None: the host of its address.

        Args:
            peer: the server: ``ps:0``.
        """
        own = self.certificates.current()
        if names_tasks(own.uris) and self.run_id:
            return host_name(task_name(TaskId.parse(peer)))
        return NETWORK if NETWORK in own.hosts else None

    def look(self, peer: str, address: str) -> Callable[[socket.socket], str | None]:
        """Return a function that says why an open connection to a server cannot have TLS; None if it can."""
        name = self.server_name(peer) or address.rpartition(":")[0].strip("[]")
        return partial(tls_obstacle, own=self.certificates.current(), name=name)

    def refusal(self, task: str, uris: Iterable[str]) -> str | None:
        """Return why a certificate is not that of a task; None if it is, or names no task and need not.

        Args:
            task: as it calls itself: ``worker:0``.
            uris: of its certificate.
        """
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
    """Return the TLS of a task on a network, or that requires it; None if it has no certificate.

    Args:
        assignment: the task's.
        warn: told when files that were replaced cannot be used.

    Raises:
        SpecError: TLS is required and there is no certificate; or it cannot be used, or is another task's.
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
    """Return where the certificate comes from: named files, a launcher, or mounted files."""
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
