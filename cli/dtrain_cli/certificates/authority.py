"""A run's certificate authority, made by the package `cryptography`, else by the command `openssl`."""

import importlib.util
import secrets
import shutil
from typing import Protocol

from dtrain.errors import SpecError
from dtrain.process.tls_material import TlsMaterial
from dtrain_cli.certificates.leaf_names import LeafNames

AUTHORITY_DAYS = 365
NO_MAKER = (
    "making certificates needs the package cryptography or the command openssl, and neither is there: "
    "`pip install 'dtrain[tls]'`, or install openssl"
)


class Authority(Protocol):
    """The signer of all certificates of a run."""

    @property
    def certificate(self) -> bytes:
        """The authority's own certificate, in PEM, which every task trusts."""

    @property
    def key(self) -> bytes:
        """The authority's private key, in PEM, with which anybody is every task of the run."""

    def issue(self, names: LeafNames, days: int) -> TlsMaterial:
        """Make a certificate for a task, on the curve P-256, for servers and clients alike.

        Raises:
            SpecError: `openssl` failed.
        """

    def lives(self, days: int) -> bool:
        """Return whether the authority's own certificate is valid for so long."""


def make_authority(run_id: str, days: int = AUTHORITY_DAYS) -> Authority:
    """Make the authority of a run.

    Raises:
        SpecError: there is nothing to make it with.
    """
    # No two authorities may have one name: a ca.crt that holds both would be searched by it.
    name = f"dtrain {run_id.encode('ascii', 'replace').decode()[:40]} {secrets.token_hex(4)}"
    if _has_library():
        from dtrain_cli.certificates.by_library import LibraryAuthority

        return LibraryAuthority.make(name, days)
    from dtrain_cli.certificates.by_openssl import OpensslAuthority

    return OpensslAuthority.make(name, days)


def read_authority(certificate: bytes, key: bytes) -> Authority:
    """Read an authority that was made before.

    Raises:
        SpecError: there is nothing to use it with, or it is none.
    """
    if _has_library():
        from dtrain_cli.certificates.by_library import LibraryAuthority

        return LibraryAuthority.read(certificate, key)
    from dtrain_cli.certificates.by_openssl import OpensslAuthority

    return OpensslAuthority(certificate, key)


def _has_library() -> bool:
    """Return whether `cryptography` makes certificates here.

    Raises:
        SpecError: neither it nor `openssl` does.
    """
    if importlib.util.find_spec("cryptography") is not None:
        return True
    if shutil.which("openssl") is None:
        raise SpecError(NO_MAKER)
    return False
